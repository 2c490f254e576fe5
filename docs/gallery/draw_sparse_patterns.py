"""
Sparse patterns
===============

What a query (row) may see (dark) as the Sparse Transformer, Longformer and BigBird have it.
"""

import matplotlib.pyplot as plt

from everyformer.engines.sparse.patterns import GlobalKeys, GlobalQueries, Near
from everyformer.engines.sparse.plan import SparsePlan

plans = {
    "strided (Child et al. 2019)": SparsePlan.of(Near(before=7), Near(dilation=8)),
    "window": SparsePlan.of(Near(before=7, after=7)),
    "dilated window": SparsePlan.of(Near(before=7, after=7, dilation=2)),
    "with global tokens (Beltagy et al. 2020)": SparsePlan.of(
        Near(before=5, after=5), GlobalKeys(tokens=(0, 1)), GlobalQueries(tokens=(0, 1))
    ),
}
figure, panels = plt.subplots(1, len(plans), figsize=(12, 3.4), layout="constrained")
for axes, (name, plan) in zip(panels, plans.items(), strict=True):
    axes.imshow(plan.mask(48)[0].numpy(), cmap="Blues")
    axes.set_title(f"{name}\n{plan.density(48):.0%} of all pairs", fontsize=9)
plt.show()
