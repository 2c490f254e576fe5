"""
Masks
=====

Who may read whom: the future hidden, padding left out, two documents packed into one row, and a
window. Drawn are the weights of a layer, which are zero where a mask says so (Vaswani et al. 2017).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
length = 12
x, place = torch.randn(1, length, 32), torch.arange(length)[None]
padding, packed = ef.Mask(padding_mask=place < 9), ef.Mask(documents=(place >= 7).long())
cases = {
    "both ways": (False, {}, None),
    "causal": (True, {}, None),
    "causal, three padded": (True, {}, padding),
    "causal, two documents": (True, {}, packed),
    "causal, a window of 4": (True, {"window": 4}, None),
}
figure, panels = plt.subplots(1, len(cases), figsize=(14, 3.2), layout="constrained")
for axes, (name, (causal, options, mask)) in zip(panels, cases.items(), strict=True):
    mixer = ef.create_mixer("attention", width=32, heads=1, causal=causal, **options)
    with torch.no_grad(), ef.trace(mixer) as trace:
        mixer(x, mask=mask)
    [weights] = trace.find("weights").values()
    axes.imshow(weights[0, 0].numpy(), cmap="Blues")
    ticks = range(0, length, 3)
    axes.set(title=name, xlabel="is read", ylabel="reads", xticks=ticks, yticks=ticks)
plt.show()
