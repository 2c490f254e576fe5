"""
Windows, global tokens, random blocks
=====================================

Whom a query (row) may see (dark) in Longformer, BigBird and ETC, as these members plan it for 64
tokens, and the share of all pairs that this is (Beltagy et al. 2020; Zaheer et al. 2020; Ainslie et
al. 2020).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
x, place = torch.randn(1, 64, 32), torch.arange(64)[None]
first = ef.Mask(global_tokens=place < 2)
# four sentences of 15 tokens, behind a global token for each
sentences = torch.where(place < 4, place, (place - 4) // 15)
cases = {
    "Longformer": ("longformer", {"window": 6}, None),
    "dilated": ("longformer", {"window": 6, "dilation": 2}, None),
    "with two global tokens": ("longformer", {"window": 6}, first),
    "BigBird": ("bigbird", {"block_size": 2, "random_blocks": 1}, None),
    "ETC": ("etc", {"radius": 3}, ef.Mask(global_tokens=place < 4, sentences=sentences)),
}
figure, panels = plt.subplots(1, len(cases), figsize=(15, 3.6), layout="constrained")
for axes, (name, (member, options, mask)) in zip(panels, cases.items(), strict=True):
    mixer = ef.create_mixer(member, width=32, heads=1, max_length=64, **options)
    with torch.no_grad(), ef.trace(mixer) as trace:
        mixer(x, mask=mask)
    [weights] = trace.find("weights").values()
    seen = weights[0, 0] > 0
    axes.imshow(seen.numpy(), cmap="Blues", vmin=0, vmax=1.5)
    axes.set_title(f"{name}\n{seen.float().mean():.0%} of all pairs")
plt.show()
