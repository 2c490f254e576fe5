"""`Row`, what is read of one input, and `Prediction`, what a model answers to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from everyformer.system.plain import to_json


@dataclass(frozen=True)
class Row:
    """One row to be read."""

    shown: str
    """what its prediction calls it"""
    value: str | np.ndarray
    """a text; or tokens (L,), steps of a series (L, n) or a picture (C, H, W) uint8"""
    cells: tuple[tuple[str, Any], ...] = ()
    """the columns of the table that it is a row of, with their names"""
    target: Any = None
    """what is true, where that is known"""


class Candidate(NamedTuple):
    """One class or one token, with its probability."""

    text: str
    """name of the class, or text of the token"""
    probability: float
    id: int


@dataclass(frozen=True)
class Prediction:
    """The answer of a model to one row; fields without a use for its task stay empty.

    A row without text, such as an empty line of a file, has ``input`` alone.
    """

    input: str
    """the text, or the name of the file or the number of the row that was read"""
    label: str | None = None
    """the most probable class"""
    probability: float | None = None
    """of that class"""
    top: tuple[Candidate, ...] = ()
    """as many classes as were asked for, the most probable first"""
    value: float | tuple[float, ...] | None = None
    """the predicted number, or several, in the units of the training data"""
    tokens: tuple[Candidate, ...] = ()
    """what may come next, the most probable first"""
    masks: tuple[tuple[Candidate, ...], ...] = ()
    """for each mask what it may hide, the most probable first"""
    filled: str | None = None
    """the text with the most probable tokens in the masks' places"""
    target: str | float | tuple[float, ...] | None = None
    """of a held-out row what is true"""

    def fields(self) -> dict[str, Any]:
        """The fields that are filled, as plain values for JSON."""
        result: dict[str, Any] = {"input": self.input}
        for name in ("target", "label", "probability", "value", "filled"):
            if getattr(self, name) is not None:
                result[name] = getattr(self, name)
        if len(self.top) > 1:
            result["top"] = [{"label": one.text, "probability": one[1]} for one in self.top]
        if self.tokens:
            result["tokens"] = _tokens(self.tokens)
        if self.masks:
            result["masks"] = [_tokens(candidates) for candidates in self.masks]
        return result

    def cells(self) -> dict[str, Any]:
        """A line of a table of the same: candidates side by side, numbered from the second on."""
        result: dict[str, Any] = {} if self.target is None else _numbered("target", self.target)
        for rank, one in enumerate(self.top, 1):
            result |= {ranked("label", rank): one.text, ranked("probability", rank): one[1]}
        if self.value is not None:
            result |= _numbered("value", self.value)
        for rank, one in enumerate(self.tokens, 1):
            result |= {ranked("token", rank): one.text, ranked("probability", rank): one[1]}
        if self.filled is not None:
            masks = [_tokens(candidates) for candidates in self.masks]
            result |= {"filled": self.filled, "masks": to_json(masks, ensure_ascii=False)}
        return result


def _tokens(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [{"token": one.text, "id": one.id, "probability": one[1]} for one in candidates]


def ranked(name: str, rank: int) -> str:
    """The column of the candidate of this rank, counted from 1."""
    return name if rank == 1 else f"{name}_{rank}"


def _numbered(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, tuple):
        return {name: value}
    return {f"{name}_{number}": one for number, one in enumerate(value, 1)}
