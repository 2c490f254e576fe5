"""Pictures of the inside of a model: what it weighs, what it learned, what it may see.

`PICTURES` names them; `draw_pictures` draws one kind, `learned_pictures` those that training
changes. Each figure carries its caption as its label (``figure.get_label()``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.image import imsave
from torch import Tensor

from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError, nearest
from everyformer.core.modules import evaluating
from everyformer.core.panels import Recorded
from everyformer.core.trace import Trace, trace
from everyformer.core.wording import join_names
from everyformer.generation.pixels import draw_images
from everyformer.genes import GENES
from everyformer.lab.show.confusion import MEASURED, Measured
from everyformer.lab.show.heatmaps import draw_offered
from everyformer.lab.show.inside import COMPARED, KINDS, View
from everyformer.lab.show.positions import draw_distances, offered, positions_of
from everyformer.lab.show.style import WIDE, styled
from everyformer.models.base import Model
from everyformer.models.pixels import DrawingModel
from everyformer.system.files import file_written_whole, named_as

PICTURES = (*KINDS, "encodings", "rotary", "distances", "masks", *MEASURED)
"""those that all know; parts of a model may offer others"""


@dataclass(eq=False)
class Inside:
    """A model, the same before training if it is known, and what both show as they read."""

    model: Model
    inputs: Tensor
    """what the model reads, one row or more; the first is drawn (of an encoder-decoder, how its
    encoder reads the source)"""
    start: Model | None = None
    """the model before training, to draw beside it where that helps"""
    labels: Sequence[str] | None = None
    """a text for each token"""
    length: int | None = None
    """positions of encodings and masks (default: 32 and 16)"""
    most: int | None = None
    """at most so many layers and heads of each (default: all)"""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """what the model reads beside the inputs, where that is known (see `Model.extra_inputs`)"""
    measure: Callable[[], Measured] | None = None
    """evaluates on held-out rows, where they are at hand and have classes"""

    @property
    def causal(self) -> bool:
        """True if what is drawn hides the future."""
        return bool(self.model.config.causal) and not self.model.config.does.encodes

    @cached_property
    def traced(self) -> Trace:
        """The trace of the model: all that its mixers offer, in one pass."""
        return _traced(self.model, self.inputs, self.extra)

    @cached_property
    def before(self) -> Trace | None:
        """The trace before training, where that is known."""
        return None if self.start is None else _traced(self.start, self.inputs, self.extra)

    @cached_property
    def recorded(self) -> Recorded:
        """Functions by which parts of the model draw what they alone record."""
        parts: Iterator[Recorded] = (getattr(m, "recorded", {}) for m in self.model.modules())
        return {name: draw for part in parts for name, draw in part.items()}

    def draw(self, what: str) -> dict[str, Figure]:
        """The figures of one kind of picture, by name; none where there is no such thing."""
        if not self.applies(what):
            return {}
        if what in MEASURED:
            assert self.measure is not None
            return {what: MEASURED[what](self.measure())}
        if what in self.recorded:
            result = dict(list(self.traced.find(what).items())[: self.most])
            return {what: draw_offered(self.recorded[what](result, self.causal), self.labels)}
        if what == "distances":
            return draw_distances(self.model, self.length)
        if what not in KINDS:
            return {what: draw_offered(offered(self.model, self.length)[what]())}
        view = View(self.traced, what, self.causal, self.labels, self.most)
        if what in COMPARED and self.before is not None:
            view = replace(view, before=replace(view, traced=self.before))
        return KINDS[what](view)

    def require(self, what: str) -> dict[str, Figure]:
        """The figures of one kind of picture, by name, which there must be.

        Raises:
            UnsupportedError: the model has no such thing; the message names what it has.
        """
        result = self.draw(what)
        if not result:
            able = [name for name in self.able() if name != what]
            lacks = f"has no {what.replace('-', ' ')} to show"
            if what == "position-bias" and self.traced.find("position_bias"):
                lacks = "has position biases that are zero everywhere"
            raise UnsupportedError(
                f"{self.model.config.member} {lacks}; it has {join_names(able) or 'none'}"
            )
        return result

    def able(self) -> list[str]:
        """The names in `PICTURES` that there is something to draw for, a part's own last."""
        further = [name for name in offered(self.model, None) if name not in PICTURES]
        after = [name for name in PICTURES if name not in KINDS]
        return [*filter(self.applies, (*KINDS, *self.recorded, *after)), *further]

    def applies(self, what: str) -> bool:
        """True if there is something to draw."""
        if what in MEASURED:
            return self.measure is not None
        if what in self.recorded:
            return bool(self.traced.find(what))
        if what in KINDS:
            return bool(View(self.traced, what, self.causal).maps)
        if what == "distances":
            model = self.model
            nothing = torch.zeros(1, dtype=torch.long, device=next(model.parameters()).device)
            return any(p.curve(nothing) is not None for p in positions_of(model).values())
        return what in offered(self.model, None)


def learned_pictures(model: Model, inputs: Tensor, **known: Any) -> dict[str, Figure]:
    """Pictures of what training has changed, by name, each with its caption.

    ``known``: fields of `Inside`.
    """
    inside = Inside(model, inputs, **known)
    result: dict[str, Figure] = {}
    for what in (*KINDS, *inside.recorded, "encodings", "distances"):
        if what == "encodings" and model.position and not list(model.position.parameters()):
            continue
        result |= inside.draw(what)
    return result


def draw_pictures(model: Model, inputs: Tensor, what: str, **known: Any) -> dict[str, Figure]:
    """The figures of one kind of picture, by name.

    Args:
        what: one of `PICTURES`, or of those that parts of the model offer.
        known: fields of `Inside`.

    Raises:
        UnsupportedError: the model has no such thing; the message names what it has.
    """
    return Inside(model, inputs, **known).require(what)


def require_picture(model: Model, what: str, others: Iterable[str] = ()) -> None:
    """Refuse a name that neither this model nor any other has a picture of.

    Args:
        others: names of what is drawn of several trainings, or of a comparison.

    Raises:
        ConfigError: with the names that are closest, or all.
    """
    parts = [gene.alternatives.get(n) for gene in GENES.values() for n in gene.alternatives.names()]
    recorded = (name for part in parts for name in getattr(part, "recorded", ()))
    known = {"all", *PICTURES, *others, *recorded, *offered(model, None)}
    if what not in known:
        raise ConfigError(f"unknown picture '{what}'; {nearest(what, known)}")


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
    with file_written_whole(path, parents=True) as new:
        imsave(new, _grid(images, columns))
    return path


def picture_path(path: str | Path) -> Path:
    """``path``, of a picture that can be written; else a `ConfigError`."""
    return named_as(path, (".png",))


@styled
def drawn_images(model: DrawingModel, count: int = 16, small: Tensor | None = None) -> Figure:
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


def _traced(model: Model, inputs: Tensor, extra: Mapping[str, Tensor]) -> Trace:
    with evaluating(model), torch.no_grad(), trace(model) as traced:
        model.inspect(inputs[:1], **extra)
    return traced
