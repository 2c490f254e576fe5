"""
Who reads whom
==============

How much the output at one position changes when the input at another does, of layers of random
weights.
"""

import matplotlib.pyplot as plt

import everyformer as ef
from everyformer.lab.report.influence import influence

names = ["attention", "alibi", "routing", "sparse-transformer", "linformer"]
figure, panels = plt.subplots(1, len(names), figsize=(13, 3), layout="constrained")
for axes, name in zip(panels, names, strict=True):
    seen = influence(ef.info(name))
    axes.imshow((seen / seen.amax(1, keepdim=True)).nan_to_num().sqrt().numpy(), cmap="Blues")
    axes.set_title(name)
plt.show()
