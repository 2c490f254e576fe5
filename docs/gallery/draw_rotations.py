"""
Rotary positions
================

Rotations make the product of a query and a key depend on their distance alone, and let it fall.
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

ones = torch.ones(1, 1, 513, 128)
turned = ef.functional.rotate(ones, torch.arange(513)[None])
products = (turned[0, 0, 256] * turned[0, 0]).sum(-1) / 128

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.plot(range(-256, 257), products.numpy())
axes.set(xlabel="distance", ylabel="product of equal vectors")
plt.show()
