"""
The rank of attention
=====================

Left: how much of the weights of four heads over 256 tokens their largest singular values hold: the
flatter the rows, the fewer are needed. Right: a Linformer projects keys and values to 32 slots, and
queries weigh these (Wang et al. 2020). Projections are random.
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
x = torch.randn(1, 256, 64)
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 3.6), width_ratios=(1.4, 1), layout="constrained"
)
for name, scale in (("flat rows", 1.0), ("sharper rows", 2.0), ("sharp rows", 4.0)):
    mixer = ef.create_mixer("attention", width=64, heads=4)
    with torch.no_grad(), ef.trace(mixer) as trace:
        mixer(scale * x)
    [weights] = trace.find("weights").values()
    values = torch.linalg.svdvals(weights[0]).mean(0)
    left.plot(range(1, 257), values.cumsum(0) / values.sum(), label=name)
left.set(xlabel="singular values", ylabel="share of their sum", ylim=(0, 1.02))
left.legend()
mixer = ef.create_mixer("linformer", width=64, heads=4, max_length=256, k=32)
with torch.no_grad(), ef.trace(mixer) as trace:
    mixer(2 * x)
[slots] = trace.find("slot_weights").values()
right.imshow(slots[0, 0, :96].sqrt().numpy(), cmap="Blues", aspect="auto")
right.set(xlabel="slot", ylabel="query (the first 96)", title="weights of the slots")
plt.show()
