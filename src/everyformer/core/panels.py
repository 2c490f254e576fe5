"""`Panels`: a picture that a part of a model offers of itself, as matrices and what they mean."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Panel:
    """One matrix; NaN cells stay blank."""

    title: str
    values: np.ndarray
    axes: tuple[str, str] | None = None
    """what columns and rows are"""


@dataclass(frozen=True)
class Panels:
    """Matrices in rows, and what they show."""

    rows: Sequence[Sequence[Panel]]
    caption: str
    scale: str | None
    """what the colours mean; None: it is clear without"""
    signed: bool = False
    """whether zero is the middle of the colours"""
    apart: bool = False
    """whether each panel has its colours"""
    wide: bool = False
    """whether panels fill the width, whatever their shape"""
    text: bool = False
    """whether the cells of each panel, row by row, are the tokens: their texts are written there"""


Pictures = dict[str, Callable[[], Panels]]
"""by name (``encodings``, ``rotary`` and ``masks`` are in use), made when they are drawn"""
Recorded = Mapping[str, Callable[[Mapping[str, Tensor], bool], Panels]]
"""how a part of a model draws what it records as it runs (`everyformer.core.trace`), by name: from
the tensors by module path, and whether the layers are causal"""


def layer_name(path: str) -> str:
    """``layer-3`` of the path of a module in the third layer; of others the path."""
    number = next((part for part in path.split(".") if part.isdigit()), None)
    return path if number is None else f"layer-{int(number) + 1}"


def layer_title(path: str, rest: str = "") -> str:
    """``rest`` after the layer that a module's path names."""
    return ", ".join(filter(None, (layer_name(path).replace("-", " "), rest)))


COLUMNS = 32
"""tokens of a line of text"""


def line_by_line(values: np.ndarray) -> np.ndarray:
    """Numbers of a text's tokens (L,) as lines of `COLUMNS`, blank after the last."""
    columns = min(COLUMNS, len(values))
    lines = np.full((-(-len(values) // columns), columns), np.nan)
    lines.flat[: len(values)] = values
    return lines
