"""
Sinusoidal positions
====================

The encoding of 2017, 32 positions by 128 channels: fast waves first, slow ones last. Products of
two encodings depend on how far apart they are (Vaswani et al. 2017).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

waves = ef.functional.sinusoid(torch.arange(32), 128)
products = waves @ waves.T

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
drawn = left.imshow(waves.numpy(), cmap="RdBu_r", aspect="auto", interpolation="none")
left.set(xlabel="channel", ylabel="position")
figure.colorbar(drawn, ax=left)
for position in (0, 8, 16, 24):
    right.plot(products[position], label=f"with {position}")
right.set(xlabel="position", ylabel="inner product", ylim=(30, 72))
right.legend(ncols=4, loc="upper center")
plt.show()
