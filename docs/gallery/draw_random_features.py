"""
Random features
===============

Softmax attention from random features: the error falls with their number, and positive ones stay
good where keys are large (Choromanski et al. 2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

torch.manual_seed(0)
q, k = (0.5 * torch.randn(256, 16) for _ in range(2))
exact = (q @ k.T).exp()
counts = [16, 64, 256, 1024, 4096]
figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for name, features in (
    ("positive", ef.functional.positive_features),
    ("Fourier", ef.functional.fourier_features),
):
    errors = []
    for count in counts:
        projection = torch.randn(count, 16)
        products = features(q, projection) @ features(k, projection).T
        scale = exact.norm() / products.norm()
        errors.append(((scale * products - exact).norm() / exact.norm()).item())
    axes.loglog(counts, errors, marker="o", label=name)
axes.set(xlabel="features", ylabel="relative error of the weights")
axes.legend()
plt.show()
