"""
Segments with and without a memory
==================================

Texts are read in segments of four. Which tokens (columns) an output (rows) can be changed by,
through one, two and three layers: without a memory none of an earlier segment; with that of
Transformer-XL each layer reaches one memory further back (Dai et al. 2019).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef


@torch.no_grad()
def read(body, x, carry):
    """The outputs of segments in order; those that carry nothing start each over."""
    outputs, state = [], None
    for segment in x.split(4, dim=1):
        y, after = body(segment, state)
        state = after if carry else None
        outputs.append(y)
    return torch.cat(outputs, 1)


torch.manual_seed(0)
length = 16
x = torch.randn(1, length, 16).repeat(length + 1, 1, 1)
x[range(length), range(length)] = torch.randn(length, 16)  # row s has another token s

figure, panels = plt.subplots(2, 3, figsize=(9, 6.2), layout="constrained")
for line, name in zip(panels, ("attention", "transformer-xl"), strict=True):
    for layers, axes in enumerate(line, 1):
        options = {"slots": 4} if name == "transformer-xl" else {"max_length": 4}
        body = ef.create_body(name, width=16, layers=layers, heads=2, **options).eval()
        y = read(body, x, carry=name == "transformer-xl")
        axes.imshow(((y[:-1] - y[-1]).norm(dim=-1).T > 0).numpy(), cmap="Blues", vmax=1.5)
        for cut in (3.5, 7.5, 11.5):
            axes.axhline(cut, color="0.7", linewidth=0.8)
            axes.axvline(cut, color="0.7", linewidth=0.8)
        axes.set_title(f"{name}, {layers} layer{'s' if layers > 1 else ''}")
    line[0].set_ylabel("output")
for axes in panels[1]:
    axes.set_xlabel("token")
plt.show()
