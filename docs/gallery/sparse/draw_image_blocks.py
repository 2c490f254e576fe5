"""
Blocks of pictures
==================

What a pixel (orange) may see (dark) of a picture of 12 by 12 that is drawn pixel by pixel (light:
drawn before): blocks of the order with a memory before them, or tiles with a flange around them
(Parmar et al. 2018).
"""

import matplotlib.pyplot as plt
import torch

import everyformer as ef
from everyformer.engines.sparse.patterns_grid import Rectangles

tiles = {"grid": (12, 12), "tile": (4, 4), "flange": (2, 2)}
raster = Rectangles(grid=(12, 12), tile=(1, 12))
cases = {
    "1-D: blocks of 24, 24 before": (raster, {"block_size": 24, "memory_size": 24}),
    "2-D: tiles of 4 x 4, flange of 2": (Rectangles(**tiles), {"dims": 2, **tiles}),
}
figure, panels = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
for n, (name, (order, options)) in enumerate(cases.items()):
    mixer = ef.create_mixer("image-transformer", width=8, heads=1, causal=True, **options)
    visible = mixer.plan(144).mask(144)[0]
    rows, columns = order.cells(torch.arange(144))  # of the tokens, in the order they are drawn
    for axes, query in zip(panels[2 * n :], (76, 91), strict=False):
        picture = torch.zeros(12, 12)
        picture[rows, columns] = 0.2 * (torch.arange(144) <= query) + 0.6 * visible[query]
        axes.imshow(picture.numpy(), cmap="Blues", vmin=0, vmax=1)
        axes.plot(columns[query], rows[query], "s", color="C1")
        axes.set(title=name, xticks=[], yticks=[])
        axes.title.set_fontsize(9)
plt.show()
