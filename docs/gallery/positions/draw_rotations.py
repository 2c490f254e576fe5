"""
Rotary positions
================

Queries and keys are turned pair by pair of channels, each pair at its own speed. So the product of
two depends on their distance alone, and falls with it where all pairs agree (Su et al. 2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

turned = ef.functional.rotate(torch.ones(1, 1, 513, 128), torch.arange(513)[None])[0, 0]
products = (turned[256] * turned).sum(-1) / 128

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.6), width_ratios=(1, 2), layout="constrained"
)
for pair, marker in ((0, "o"), (16, "s"), (32, "^")):
    x, y = turned[:8, pair], turned[:8, pair + 64]
    left.plot(x, y, marker=marker, label=f"pair {pair + 1}")
left.set(xlabel="first channel", ylabel="second channel", title="positions 0 to 7", aspect=1)
left.legend(fontsize=8, loc="center")
right.plot(range(-256, 257), products)
right.set(xlabel="distance", ylabel="product of equal vectors", title="all 64 pairs")
plt.show()
