"""Image Transformer: bits/dim against what a block remembers, and stretches against rectangles."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from everyformer.experiments.base import Outcome, Study, experiment, load
from everyformer.experiments.figures import panels, plot
from everyformer.generation.pixels import draw_images
from everyformer.models.base import Model
from everyformer.models.build import create_model

ROWS, COLUMNS, LEVELS, KEPT = 12, 16, 8, 0.9
"""pictures of columns: a cell has the level of the one above, but for one in ten"""
MEMORIES = (0, 8, 16, 56)
"""l_m beside blocks of a row of 8 digits' pixels"""
STRETCH: dict[str, Any] = {"block_size": 4, "memory_size": 12}
RECTANGLE: dict[str, Any] = {
    "dims": 2, "flange": (2, 1), "pixels": {"order": "blocks", "tile": (2, 2)},
}  # fmt: skip
LEARNED: dict[str, Any] = {"places": "learned"}
"""both read at most 16 cells a query"""
FALL, AHEAD = 0.1, 0.5


def columns(count: int, generator: torch.Generator) -> Tensor:
    """Pictures (count, 1, 12, 16) uint8 whose columns do not know of each other."""
    fresh = torch.randint(LEVELS, (count, ROWS, COLUMNS), generator=generator)
    kept = torch.rand(count, ROWS, COLUMNS, generator=generator) < KEPT
    for row in range(1, ROWS):
        fresh[:, row] = torch.where(kept[:, row], fresh[:, row - 1], fresh[:, row])
    return (fresh * (255 // (LEVELS - 1)))[:, None].to(torch.uint8)


def drawn(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Eight of `columns`, and the values of their pixels."""
    images = columns(8, generator)
    return images, images.flatten(1).long()


def least_bits() -> float:
    """Bits/dim of `columns` for who knows how they are made."""
    same, other = KEPT + (1 - KEPT) / LEVELS, (1 - KEPT) / LEVELS
    below = -same * math.log2(same) - (LEVELS - 1) * other * math.log2(other)
    return (math.log2(LEVELS) + (ROWS - 1) * below) / ROWS


@experiment(
    "bits/dim on digits fall by over 0.1 from blocks without a memory to blocks with one, of a "
    "row or more; and of 16 cells a query, rectangles need at least 0.5 bits/dim less than "
    "stretches of the raster where pictures are made of columns",
    members=("image-transformer",),
    minutes=9,
)
def picture_memory(study: Study) -> Outcome:
    """Two layers; digits with blocks of a row, then 16 cells a query in both shapes."""
    digits = load("pixels", source="digits")
    assert digits.image is not None
    validation = next(iter(digits.validation_batches(180))).inputs
    test = columns(200, torch.Generator().manual_seed(99))
    arms: dict[str, tuple[dict[str, Any], Tensor]] = {
        f"digits, l_m = {size}": ({"block_size": 8, "memory_size": size}, validation)
        for size in MEMORIES
    }
    for what, images in (("digits", validation), ("columns", test)):
        arms[f"{what}, 16 cells, 1-D"] = (STRETCH, images)
        arms[f"{what}, 16 cells, 2-D"] = (RECTANGLE, images)
    models: dict[str, Model] = {}
    for name, (options, images) in study.each(arms.items()):
        chosen = options | {"pixels": LEARNED | options.get("pixels", {})}
        model = create_model(
            "image-transformer", "pixels", width=64, layers=2, heads=4, dropout=0.0,
            scale_embedding=False, image=tuple(images.shape[1:]), **chosen,
        )  # fmt: skip
        study.fit(model, (digits, 16) if images is validation else drawn, 800, lr=3e-3)
        study.keep(name, bits(model, images), "{:.3f} bits/dim")
        models[name] = model
    means = study.means()
    fallen = [means[f"digits, l_m = {size}"] for size in MEMORIES]
    listed = ", ".join(f"{size}: {value:.3f}" for size, value in zip(MEMORIES, fallen, strict=True))
    one, two = means["columns, 16 cells, 1-D"], means["columns, 16 cells, 2-D"]
    both = means["digits, 16 cells, 1-D"], means["digits, 16 cells, 2-D"]
    sentence = (
        f"Bits/dim on 8x8 digits by l_m, {listed}. At 16 cells a query: pictures of columns "
        f"(least possible {least_bits():.3f}) 1-D {one:.3f}, 2-D {two:.3f}; digits 1-D "
        f"{both[0]:.3f}, 2-D {both[1]:.3f}."
    )
    holds = fallen[0] - max(fallen[1:]) > FALL and one - two > AHEAD
    figures = {"memory": _curve(fallen, both), "completed": _completed(models, validation)}
    return Outcome(study.numbers, holds, sentence, figures)


@torch.no_grad()
def bits(model: nn.Module, images: Tensor) -> float:
    """Bits/dim of pictures (N, 1, H, W)."""
    loss: Tensor = model(images, targets=images.flatten(1).long()).loss
    return loss.item() / math.log(2)


def _curve(fallen: list[float], both: tuple[float, float]) -> Figure:
    figure, [axis] = panels(size=(4.5, 3))
    for value, marker, label in zip(both, "sD", ("1-D", "2-D"), strict=True):
        axis.plot([12], [value], marker, color="C1", label=f"{label}, 16 cells a query")
    labels: dict[str, Any] = {"xlabel": "l_m (pixels)", "ylabel": "bits/dim on held-out digits"}
    plot(axis, {"1-D, blocks of a row": fallen}, MEMORIES, **labels)
    return figure


def _completed(models: dict[str, Model], validation: Tensor) -> Figure:
    """Held-out digits, and what is drawn below their upper halves."""
    given = validation[::18][:10]
    rows = {"digits": given}
    for name in (f"digits, l_m = {MEMORIES[0]}", f"digits, l_m = {MEMORIES[-1]}"):
        rows[name] = draw_images(models[name], len(given), given=given, show=False)
    name = "digits, 16 cells, 2-D"
    rows[name] = draw_images(models[name], len(given), given=given, show=False)
    figure = Figure(figsize=(7, 3.2), layout="tight")
    axes: Any = figure.subplots(len(rows), len(given))
    for line, (title, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(title.removeprefix("digits, "), fontsize=7, rotation=0, ha="right")
        for axis, image in zip(line, images, strict=True):
            axis.imshow(image[0].numpy(), cmap="Greys", vmin=0, vmax=255)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.axhline(3.5, color="C0", linewidth=0.8)
    return figure
