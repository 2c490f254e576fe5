"""`Row`, what is read of one input, and rows beside each other in a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class CsvForm(NamedTuple):
    """The form of a file of comma-separated values."""

    delimiter: str = ","
    marked: bool = False
    """whether it begins with a byte-order mark, by which spreadsheets know UTF-8"""


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


def padded(rows: Sequence[np.ndarray], front: bool) -> tuple[Tensor, Tensor | None]:
    """Rows beside each other, and flags of what is real where they differ in length."""
    longest = max(map(len, rows))
    if all(len(row) == longest for row in rows):
        return torch.from_numpy(np.stack(rows)), None
    inputs = np.zeros((len(rows), longest, *rows[0].shape[1:]), dtype=rows[0].dtype)
    keep = np.zeros((len(rows), longest), dtype=bool)
    for index, row in enumerate(rows):
        place = slice(longest - len(row), None) if front else slice(len(row))
        inputs[index, place], keep[index, place] = row, True
    return torch.from_numpy(inputs), torch.from_numpy(keep)


def batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """``size`` rows at a time, the last fewer."""
    after = iter(rows)
    while chunk := list(itertools.islice(after, size)):
        yield chunk
