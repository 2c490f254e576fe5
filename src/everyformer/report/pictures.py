"""Pictures of the inside of a model: what it weighs, what it learned, what it may see.

`PICTURES` names them; `draw_pictures` draws one kind, `learned_pictures` those that training
changes. Each figure carries its caption as its label (``figure.get_label()``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.image import imsave
from torch import Tensor

from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.core.files import file_written_whole, named_as
from everyformer.core.trace import Trace, trace
from everyformer.generation.pixels import draw_images
from everyformer.models.base import Model
from everyformer.models.enlarging import SuperResolution
from everyformer.models.pixels import PixelModel
from everyformer.models.seq2seq import EncoderDecoder
from everyformer.report.heatmaps import draw_offered
from everyformer.report.inside import draw_traced, recorded
from everyformer.report.places import (
    draw_distances,
    draw_terms,
    offered,
    positions_of,
)
from everyformer.report.style import WIDE, styled
from everyformer.report.words import listed

TRACED = (
    "weights", "features", "sort", "position-bias", "spatial", "buckets", "clusters", "terms",
)  # fmt: skip
"""what mixers offer while they run"""
COMPARED = ("position-bias", "spatial")
"""those that are drawn beside what they were before training"""
PICTURES = (*TRACED, "encodings", "rotary", "distances", "masks")

ENCODING = (EncoderDecoder, SuperResolution)
"""models of which the encoder is shown"""


class Look:
    """A model, the same before training if it is known, and what both show as they read.

    Args:
        inputs: what the model reads, one row or more; the first is drawn (of an encoder-decoder,
            how its encoder reads the source).
        start: the model before training.
    """

    def __init__(self, model: Model, inputs: Tensor, start: Model | None = None) -> None:
        self.model, self.inputs, self.start = model, inputs, start

    @cached_property
    def traced(self) -> Trace:
        """What the model's mixers offer, all of it in one pass."""
        return _traced(self.model, self.inputs)

    @cached_property
    def before(self) -> Trace | None:
        """The same before training."""
        return None if self.start is None else _traced(self.start, self.inputs)

    def draw(
        self, what: str, labels: Sequence[str] | None, length: int | None, most: int | None
    ) -> dict[str, Figure]:
        """The figures of one kind of picture, by name; none where there is no such thing."""
        if what == "distances":
            return draw_distances(self.model, length)
        if what not in TRACED:
            own = offered(self.model, length)
            return {what: draw_offered(own[what]())} if what in own else {}
        causal = bool(self.model.config.causal) and not isinstance(self.model, ENCODING)
        if what == "terms":
            return draw_terms(self.traced, causal, most)
        before = self.before if what in COMPARED and self.applies(what) else None
        return draw_traced(self.traced, before, what, causal, labels, most)

    def able(self) -> list[str]:
        """What there is to draw, names of a member's own last."""
        own = [name for name in offered(self.model, None) if name not in PICTURES]
        return [*filter(self.applies, PICTURES), *own]

    def applies(self, what: str) -> bool:
        """Whether there is something to draw."""
        if what == "distances":
            model = self.model
            nothing = torch.zeros(1, dtype=torch.long, device=next(model.parameters()).device)
            return any(p.curve(nothing) is not None for p in positions_of(model).values())
        if what in TRACED:
            return bool(recorded(self.traced, what))
        return what in offered(self.model, None)


def learned_pictures(
    model: Model,
    inputs: Tensor,
    *,
    start: Model | None = None,
    labels: Sequence[str] | None = None,
    most: int | None = None,
) -> dict[str, Figure]:
    """What training has changed, as far as the model has it: by name, each with its caption.

    Args:
        inputs: what the model reads, one row or more; the first is drawn (of an encoder-decoder,
            how its encoder reads the source).
        start: the same model before training, to draw beside it where that helps.
        labels: a text for each token.
        most: at most so many layers and heads of each (default: all).
    """
    look = Look(model, inputs, start)
    found: dict[str, Figure] = {}
    for what in (*TRACED, "encodings", "distances"):
        if what == "encodings" and model.position and not list(model.position.parameters()):
            continue
        found |= look.draw(what, labels, None, most)
    return found


def draw_pictures(
    model: Model,
    inputs: Tensor,
    what: str,
    *,
    start: Model | None = None,
    labels: Sequence[str] | None = None,
    length: int | None = None,
    most: int | None = None,
) -> dict[str, Figure]:
    """The figures of one kind of picture, by name.

    Args:
        what: one of `PICTURES`.
        length: positions of encodings and masks (default: 32 and 16).
        (others as in `learned_pictures`)

    Raises:
        UnsupportedError: the model has no such thing; the message names what it has.
    """
    look = Look(model, inputs, start)
    made = look.draw(what, labels, length, most)
    if not made:
        able = [name for name in look.able() if name != what]
        lacks = f"has no {what.replace('-', ' ')} to show"
        if what == "position-bias" and look.traced.find("position_bias"):
            lacks = "has position biases that are zero everywhere"
        raise UnsupportedError(f"{model.config.member} {lacks}; it has {listed(able)}")
    return made


def applicable(model: Model, inputs: Tensor) -> list[str]:
    """The names in `PICTURES`, or of a member's own, that this model has something to show for."""
    return Look(model, inputs).able()


def save_images(images: Tensor, path: str | Path, columns: int | None = None) -> Path:
    """Write images (N, C, H, W) uint8 as one picture, in a grid; small ones are enlarged.

    ``columns`` is how many stand side by side (default: as many as below each other).
    """
    if images.dim() != 4 or images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
        raise ShapeError(
            "images must be (N, 1 or 3, H, W) uint8, not "
            f"{tuple(images.shape)} {str(images.dtype).removeprefix('torch.')}"
        )
    path = picture_path(path)
    with file_written_whole(path, parents=True) as made:
        imsave(made, _grid(images, columns))
    return path


def picture_path(path: str | Path) -> Path:
    """``path``, of a picture that can be written; else a `ConfigError`."""
    return named_as(path, (".png",))


@styled
def drawn_images(model: PixelModel, count: int = 16, small: Tensor | None = None) -> Figure:
    """Images that a pixel model draws, seed 0, as a figure with its caption.

    Classes take turns; ``small`` (1, C, h, w) is what all are drawn from, if the model enlarges.
    """
    figure = Figure(figsize=(WIDE, WIDE), layout="constrained")
    what = "one small image" if small is not None else "the model"
    figure.set_label(f"{count} images drawn from {what}, pixel by pixel (temperature 1, seed 0).")
    axes = figure.subplots()
    images = draw_images(model, count, labels=model.every_class(count), small=small)
    axes.imshow(_grid(images), interpolation="none")
    axes.set_axis_off()
    return figure


def _grid(images: Tensor, columns: int | None = None) -> np.ndarray:
    """(N, C, H, W) as one picture (rows, columns, 3), nearly square, with white gaps."""
    count, _, height, width = images.shape
    columns = columns or int(np.ceil(np.sqrt(count)))
    rows, gap = -(-count // columns), 2
    factor = max(1, 64 // max(height, width))
    cells = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).cpu().numpy()
    cells = cells.repeat(factor, 1).repeat(factor, 2)
    high, wide = cells.shape[1] + gap, cells.shape[2] + gap
    grid = np.full((rows * high - gap, columns * wide - gap, 3), 255, np.uint8)
    for n, cell in enumerate(cells):
        top, left = n // columns * high, n % columns * wide
        grid[top : top + cell.shape[0], left : left + cell.shape[1]] = cell
    return grid


def _traced(model: Model, inputs: Tensor) -> Trace:
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), trace(model) as traced:
            if isinstance(model, ENCODING):
                model.encode(inputs[:1])
            elif isinstance(model, PixelModel):
                model(inputs[:1], labels=model.every_class(1))
            else:
                model(inputs[:1])
    finally:
        model.train(training)
    return traced
