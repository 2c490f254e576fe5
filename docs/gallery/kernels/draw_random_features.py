"""
Random features
===============

Weights of softmax attention from random features. The error falls with their number; waves need
fewer where queries and keys are short, positive features where they are long, since waves may make
weights negative (Choromanski et al. 2021).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef


def waves(x, projection):
    """Sines and cosines that estimate exp(x . y), not exp(-|x - y|^2 / 2)."""
    return ef.functional.fourier_features(x, projection) * (x.square().sum(-1, True) / 2).exp()


kinds = {"positive": ef.functional.positive_features, "sines and cosines": waves}
counts = [16, 64, 256, 1024]
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for axes, norm in zip(panels, (1, 2), strict=True):
    torch.manual_seed(0)
    q, k = (norm * torch.randn(2, 64, 16)).div(4)
    exact = (q @ k.T).softmax(-1)
    for name, features in kinds.items():
        errors = []
        for count in counts:
            projection = torch.randn(100, count, 16)  # a hundred draws
            products = features(q, projection) @ features(k, projection).mT
            found = products / products.sum(-1, keepdim=True)
            error = (found - exact).norm(dim=(1, 2)) / exact.norm()
            errors.append(error.median().item())
        axes.loglog(counts, errors, marker="o", label=name)
    axes.set(xlabel="features", title=f"vectors of norm {norm}")
    axes.set_xticks(counts, counts, minor=False)
    axes.minorticks_off()
panels[0].set_ylabel("relative error of the weights")
panels[1].legend()
plt.show()
