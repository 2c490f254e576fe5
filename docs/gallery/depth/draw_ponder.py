"""
One layer, many times
=====================

A universal Transformer uses the same weights at every step of its depth. Left: how far the stream
still moves. Right: the steps that each letter takes before it halts (ACT), by the bias that halting
starts with; weights are random (Dehghani et al. 2018).
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import torch

import everyformer as ef

text = "the cat sat on the mat"
ids = torch.tensor([list(text.encode())])
sizes = {"width": 64, "layers": 1, "heads": 4, "vocabulary": 256, "max_length": 32}
torch.manual_seed(0)
start = ef.create_model("universal", "lm", steps=8, halting="none", **sizes).state_dict()


def read(**options):
    """The same weights with other options of the depth, and what was recorded."""
    torch.manual_seed(0)
    model = ef.create_model("universal", "lm", **options, **sizes).eval()
    model.load_state_dict(start, strict=False)
    with torch.no_grad(), ef.trace(model) as trace:
        logits = model(ids).logits
    return logits, trace


figure, (left, right) = plt.subplots(
    1, 2, figsize=(12, 3.4), width_ratios=(1, 1.8), layout="constrained"
)
outputs = [read(steps=n, halting="none")[0] for n in range(1, 13)]
moves = [((b - a).norm() / b.norm()).item() for a, b in pairwise(outputs)]
left.plot(range(2, 13), moves, marker="o")
left.set(xlabel="step", ylabel="relative change of the logits", ylim=(0, None))
for bias, marker in ((1.0, "o"), (0.0, "s"), (-1.0, "^"), (-2.0, "D")):
    _, trace = read(steps=12, halting_bias=bias)
    [steps] = trace.find("halting").values()
    right.plot(steps[0], marker=marker, linestyle=":", label=f"b = {bias:g}")
right.set_xticks(range(len(text)), text)
right.set(xlabel="letter", ylabel="steps", ylim=(0, 14.5))
right.legend(ncols=4, loc="upper center", fontsize=8)
plt.show()
