"""
Sinusoidal positions
====================

The encoding of 2017: fast waves in the first channels, slow ones in the last.
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

waves = ef.functional.sinusoid(torch.arange(64), 128).numpy()

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.imshow(waves, cmap="RdBu_r", aspect="auto")
left.set(xlabel="channel", ylabel="position")
# what a shift by k does to an inner product depends on k alone
right.plot(waves @ waves[32])
right.set(xlabel="position", ylabel="inner product with position 32")
plt.show()
