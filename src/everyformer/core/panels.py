"""`Panels`: a picture that a part of a model offers of itself, as matrices and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


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
    """whether each panel has colours of its own"""
    wide: bool = False
    """whether panels fill the width, whatever their shape"""


Pictures = dict[str, Callable[[], Panels]]
"""by name (``encodings``, ``rotary`` and ``masks`` are in use), made when they are asked for"""
