"""Neighbours of every token of a text, looked up once, as a frozen model's states find them.

A text is read in windows that overlap, as its stores are. Windows are taken some at a time, always
the same together, when one of their tokens is first requested: what a token finds depends neither
on what was requested before nor on where a run was stopped, and a run looks up no more than it
reads.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from everyformer.models.language import LanguageModel
from everyformer.stores.indexing import new_keys
from everyformer.stores.store.index import Index
from everyformer.stores.texts import Window, windows

TOGETHER = 8
"""windows that are read at a time"""


def window_of(position: Any, context: int, stride: int) -> Any:
    """The number of the window in which the token at ``position`` (ints of any shape) is new."""
    after_first = (np.asarray(position) - context) // stride + 1
    return np.where(np.asarray(position) < context, 0, after_first)


def first_new(window: int, context: int, stride: int) -> int:
    """The first position that is new in a window."""
    return 0 if window == 0 else context + (window - 1) * stride


@dataclass(eq=False)
class PhraseTable:
    """`everyformer.data.text.NeighbourTokens` of one row of tokens."""

    tokens: np.ndarray
    model: LanguageModel
    index: Index
    k: int
    context: int
    stride: int
    tap: str
    own: np.ndarray | None = None
    """(keys,) where in these tokens each key of the store lies, if they are what was stored"""
    near: int = 0
    """how far from a token's own position those lie that it does not find"""
    _parts: dict[int, np.ndarray] = field(default_factory=dict)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """(..., k) int32 tokens for the contexts that end at ``positions``; -1: none."""
        parts = window_of(positions, self.context, self.stride) // TOGETHER
        neighbours = np.empty((*positions.shape, self.k), np.int32)
        for part in np.unique(parts).tolist():
            if part not in self._parts:
                self._parts[part] = self._look_up(part)
            inside = parts == part
            first = first_new(part * TOGETHER, self.context, self.stride)
            neighbours[inside] = self._parts[part][positions[inside] - first]
        return neighbours

    @cached_property
    def _windows(self) -> list[Window]:
        return list(windows(self.tokens, self.context, self.stride))

    def _look_up(self, part: int) -> np.ndarray:
        """(n, k) of the new tokens of some windows."""
        batch = self._windows[part * TOGETHER : (part + 1) * TOGETHER]
        queries = new_keys(self.model, batch, self.tap)
        return self._search(queries, batch[0].first + batch[0].new).astype(np.int32)

    def _search(self, queries: Tensor, first: int) -> np.ndarray:
        """(n, k) tokens that followed the neighbours of the positions from ``first`` on."""
        store = self.index.store
        spare = 0 if self.own is None else 2 * self.near + 1
        fetched = min(self.k + spare, len(store))
        rows = self.index.search(queries, fetched).rows.numpy()
        present = np.ones_like(rows, dtype=bool)
        if self.own is not None:
            positions = first + np.arange(len(queries))
            present = np.abs(self.own[rows] - positions[:, None]) > self.near
        order = np.argsort(~present, axis=1, kind="stable")[:, : self.k]
        rows, present = (np.take_along_axis(each, order, 1) for each in (rows, present))
        values = store.following(np.where(present, rows, -1))
        missing = self.k - values.shape[1]
        return np.pad(values, ((0, 0), (0, missing)), constant_values=-1) if missing else values
