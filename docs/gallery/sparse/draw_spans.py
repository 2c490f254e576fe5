"""
Adaptive spans
==============

Each head learns how far back it looks. Left: what is left of a weight at a distance, for three
spans and a ramp of 32. Right: weights of two heads, one of short and one of long span (Sukhbaatar
et al. 2019).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef


@torch.no_grad()
def weights(x, *spans):
    """(heads, L, L) of heads with these shares of a window of 128 as their spans."""
    torch.manual_seed(0)
    sizes = {"width": 32, "heads": len(spans), "causal": True}
    mixer = ef.create_mixer("adaptive-span", window=128, ramp=32, **sizes)
    mixer.spans.copy_(torch.tensor(spans))
    with ef.trace(mixer) as trace:
        mixer(x)
    [found] = trace.find("weights").values()
    return found[0]


figure, (left, *maps) = plt.subplots(
    1, 3, figsize=(12, 3.4), width_ratios=(1.5, 1, 1), layout="constrained"
)
alike = weights(torch.zeros(1, 192, 32), 0.0, 0.25, 0.5, 0.75)  # all contents are the same
for z, row in zip((0, 32, 64, 96), alike[:, -1].flip(1), strict=True):
    left.plot(row[1:] / row.max(), label=f"z = {z}")
left.set(xlabel="tokens before the nearest", ylabel="factor of the weight")
left.legend()
torch.manual_seed(0)
heads = weights(torch.randn(1, 192, 32), 0.05, 0.75)
for axes, head, name in zip(maps, heads, ("short", "long"), strict=True):
    axes.imshow(head.sqrt().numpy(), cmap="Blues")
    axes.set(title=f"a head of {name} span", xlabel="key", ylabel="query")
plt.show()
