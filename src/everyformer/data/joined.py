"""Files of raw bytes as one row of tokens: mapped where they lie, and never copied together.

    file 1 | end | file 2 | end | ...      a position's file is found among the cumulative lengths

It is the row that `everyformer.data.corpus` would write of them, ends of documents and all. So
windows cross files as they cross documents: a model of running text learns from U+0000 that
another one begins (with ``packing`` it sees only its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

OPEN = 64
"""Files that are mapped at a time; each takes a handle of the system's."""


class JoinedFiles:
    """A row of uint8 tokens in files, read as an array is: by positions of any shape, or a slice
    with a step forward. What is read is a copy.

    Args:
        paths: the files, in order; none of them is empty.
        ended: whether each is followed by a 0, which ends a document.
        start, stop: the stretch of the row that this is.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self, paths: Sequence[Path], ended: bool, start: int = 0, stop: int | None = None
    ) -> None:
        self._paths = paths
        self._ends = np.cumsum([path.stat().st_size + ended for path in paths])
        self._start, self._stop = start, int(self._ends[-1]) if stop is None else stop
        self._open: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._stop - self._start

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, at: slice | np.ndarray) -> np.ndarray:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            return self._stretch(start, max(start, stop))[::step]
        if at.size and not 0 <= at.min() <= at.max() < len(self):
            raise IndexError(f"positions {at.min()} to {at.max()} of a row of {len(self)} tokens")
        places = at + self._start
        files = np.searchsorted(self._ends, places, side="right")
        result = np.zeros(places.shape, self.dtype)
        for number in np.unique(files):
            content = self._content(int(number))
            here = files == number
            inside = places[here] - (self._ends[number - 1] if number else 0)
            # the place after the last byte is the end of the document, a 0
            result[here] = np.where(
                inside < len(content), content[np.minimum(inside, len(content) - 1)], 0
            )
        return result

    def _stretch(self, start: int, stop: int) -> np.ndarray:
        result, first = np.zeros(stop - start, self.dtype), self._start + start
        last = first + len(result)
        for number in range(np.searchsorted(self._ends, first, side="right"), len(self._ends)):
            begin = int(self._ends[number - 1]) if number else 0
            if begin >= last:
                break
            content = self._content(number)[max(first - begin, 0) : last - begin]
            at = max(begin - first, 0)
            result[at : at + len(content)] = content
        return result

    def _content(self, number: int) -> np.ndarray:
        if number not in self._open:
            if len(self._open) >= OPEN:
                self._open.clear()
            self._open[number] = np.memmap(self._paths[number], self.dtype, mode="r")
        return self._open[number]
