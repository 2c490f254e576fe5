"""
Strided and fixed sets
======================

The Sparse Transformer's two ways to divide what a token sees between two sets: as pixels of a
picture with rows of 8 (above, for the pixel in orange), and as a matrix (below, the first set dark,
the second lighter) (Child et al. 2019).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef

options = {"strided": {"stride": 8}, "fixed": {"stride": 8, "columns": 2, "pattern": "fixed"}}
cases = {"full": torch.ones(2, 64, 64).tril()}
for name, chosen in options.items():
    sizes = {"width": 8, "heads": 2, "causal": True, "mode": "heads"}
    mixer = ef.create_mixer("sparse-transformer", sets=("first", "second"), **sizes, **chosen)
    cases[name] = mixer.plan(64).mask(64, 2).float()

query = 44
figure, panels = plt.subplots(2, 3, figsize=(9, 6.2), layout="constrained")
for column, (name, (first, second)) in zip(panels.T, cases.items(), strict=True):
    for axes, seen in ((column[0], (first, second)), (column[1], (first, second))):
        shade = torch.maximum(seen[0], 0.5 * seen[1])
        shade = shade[query].view(8, 8) if axes is column[0] else shade
        axes.imshow(shade.numpy(), cmap="Blues", vmin=0, vmax=1.2)
    column[0].plot(query % 8, query // 8, "s", color="C1", markersize=10)
    column[0].set(title=name, xticks=[], yticks=[])
    column[1].set(xlabel="key", ylabel="query")
plt.show()
