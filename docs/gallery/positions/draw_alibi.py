"""
ALiBi
=====

Each head adds its own multiple of the distance to the scores: the matrices as a layer adds them,
and what is left of a weight so many tokens back (Press et al. 2022).
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import everyformer as ef

mixer = ef.create_mixer("attention", width=32, heads=4, causal=True, position="alibi")
with torch.no_grad(), ef.trace(mixer) as trace:
    mixer(torch.randn(1, 64, 32))
[bias] = trace.find("position_bias").values()
hidden = torch.ones(64, 64).triu(1) > 0

figure, panels = plt.subplots(
    1, 5, figsize=(14, 3), width_ratios=(1, 1, 1, 1, 1.6), layout="constrained"
)
for head, axes in enumerate(panels[:4]):
    drawn = axes.imshow(bias[0, head].masked_fill(hidden, torch.nan).numpy(), vmin=-8, vmax=0)
    axes.set(title=f"head {head + 1}", xlabel="key", ylabel="query" if head == 0 else "")
figure.colorbar(drawn, ax=panels[3], label="added to scores")
distance = np.arange(64)
for head, slope in enumerate(ef.functional.alibi_slopes(4), 1):
    panels[4].plot(distance, np.exp(-slope * distance), label=f"head {head}")
panels[4].set(xlabel="tokens back", ylabel="factor of the weight")
panels[4].legend(fontsize=8)
plt.show()
