"""
Longer texts than those of training
===================================

Trained on 64 bytes, measured on 512: how many times the loss at 64. These are the recorded numbers
of ``everyformer reproduce extrapolation --seeds 3``, three seeds each, not trained here
(Press et al. 2022).
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

recorded = json.loads(Path("../../results/extrapolation.json").read_text("utf-8"))["numbers"]
names = [name.removesuffix(", side by side, 64") for name in recorded if "side by side, 64" in name]
how = {"side by side": "windows side by side", "sliding": "a sliding window"}

figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
for at, (kind, label) in enumerate(how.items()):
    short, long = ([recorded[f"{n}, {kind}, {size}"]["mean"] for n in names] for size in (64, 512))
    ratio = [b / a for a, b in zip(short, long, strict=True)]
    axes.bar([n + 0.4 * at for n in range(len(names))], ratio, width=0.38, label=label)
axes.axhline(1, color="0.4", linestyle=":")
axes.set_xticks([n + 0.2 for n in range(len(names))], names, rotation=20)
axes.set(ylabel="loss at 512 / loss at 64")
axes.legend()
plt.show()
