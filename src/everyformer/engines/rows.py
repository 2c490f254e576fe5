"""Rows with holes: any padding or packing becomes right-padded rows, and back.

Mixers whose tables are indexed by position (AFT, the spatial gating unit) want every row to start
at its first real token. `compact` moves the real tokens of each row to the front, in order, and
`spread` puts the results back; `unpack` gives every packed document a row of its own. Both are
exact: padding never matters, and padded outputs are zero.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.core.mask import Mask, runs_of
from everyformer.core.state import S
from everyformer.core.subset import gather_rows, order_of_real, widen
from everyformer.engines.softmax.visibility import surely


def checked_keep(x: Tensor, mask: Mask | None) -> Tensor | None:
    """Flags (B, L) of the tokens of ``x`` (B, L, ...) that are real by ``mask``; None: all.

    For contexts and functions; what a mixer is called with, `Mixer.check_input` has checked.
    """
    if mask is None:
        return None
    mask.check(x.shape[0], x.shape[1], x.shape[1])
    return mask.padding_mask


class Compacted(NamedTuple):
    """Rows whose real tokens come first."""

    x: Tensor
    """(B, L, ...) real tokens first, then the rest"""
    padding_mask: Tensor
    """(B, L) bool, a prefix of True in every row, or in both parts of it"""
    order: Tensor
    """(B, L) where each came from"""


_first: ContextVar[bool] = ContextVar("first", default=False)


@contextmanager
def real_first() -> Iterator[None]:
    """Within it the real tokens of every row are known to come first, which no graph can ask."""
    token = _first.set(True)
    try:
        yield
    finally:
        _first.reset(token)


def are_first(padding_mask: Tensor) -> bool:
    """True where the real tokens of every row are known to come first."""
    # a graph that leaves the length open cannot compare neighbours
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting() and _first.get()
    return surely(padding_mask[:, 1:] <= padding_mask[:, :-1])


def compact(x: Tensor, padding_mask: Tensor, prefix: int = 0) -> Compacted:
    """Move the real tokens of each row of ``x`` (B, L, ...) to the front, keeping their order.

    Those of the first ``prefix`` tokens and those of the others are moved apart.
    """
    order = order_of_real(padding_mask[:, prefix:] if prefix else padding_mask)
    if prefix:
        order = torch.cat((order_of_real(padding_mask[:, :prefix]), prefix + order), 1)
    return Compacted(gather_rows(x, order), padding_mask.gather(1, order), order)


def spread(y: Tensor, rows: Compacted) -> Tensor:
    """Undo `compact` on a result ``y`` (B, L, ...); tokens that were padding become zero."""
    y = y.masked_fill(~widen(rows.padding_mask, y), 0)
    return torch.empty_like(y).scatter(1, widen(rows.order, y).expand_as(y), y)


def next_window(t: Tensor, size: int, padding_mask: Tensor | None) -> Tensor:
    """The last ``size`` real tokens (B, size, ...) of each row of ``t`` (B, size + L, ...).

    These are the window that was carried and L tokens after it, of which those that
    ``padding_mask`` (B, L), a prefix of True, marks are real (None: all).
    """
    if padding_mask is None:
        return t[:, t.shape[1] - size :]
    return gather_rows(t, padding_mask.sum(1)[:, None] + torch.arange(size, device=t.device))


class Unpacked(NamedTuple):
    """Every document in a row of its own."""

    x: Tensor
    """(documents, longest, ...)"""
    padding_mask: Tensor
    """(documents, longest) bool"""
    row: Tensor
    """(B, L) the document's row of each packed token"""
    column: Tensor
    """(B, L) its place in that row"""

    def each(self, t: Tensor) -> Tensor:
        """Values (documents,) of ``t`` (B or 1, ...), alike for all tokens of a document."""
        t = t.expand_as(self.row)
        return t.new_zeros(len(self.x)).index_put((self.row,), t)

    def initial(self, state: S, runs: Tensor) -> S:
        """States before the documents: of number 0 in ``runs`` (B, L) the ``state`` of
        their rows, the others with none."""
        rows = torch.arange(len(self.row), device=runs.device)[:, None]
        return state.reorder(self.each(rows)).reset(self.each(runs != 0))

    def lay(self, t: Tensor) -> Tensor:
        """``t`` (B, L, ...) of the packed tokens as `x` lies, zeros where no token is."""
        rows = t.new_zeros(*self.padding_mask.shape, *t.shape[2:])
        return rows.index_put((self.row, self.column), t)


def unpack(x: Tensor, documents: Tensor, padding_mask: Tensor | None = None) -> Unpacked:
    """Packed rows ``x`` (B, L, ...) as one row per document, as `runs_of` tells them apart."""
    batch, length = documents.shape
    runs = runs_of(documents, padding_mask)
    starts = torch.ones_like(runs, dtype=torch.bool)
    starts[:, 1:] = runs[:, 1:] != runs[:, :-1]
    row = (starts.flatten().long().cumsum(0) - 1).view(batch, length)
    first = starts.flatten().nonzero().squeeze(1)
    column = torch.arange(batch * length, device=x.device).view(batch, length) - first[row]
    longest = int(column.max()) + 1
    rows = x.new_zeros(first.numel(), longest, *x.shape[2:])
    rows = rows.index_put((row, column), x)
    real = torch.zeros(rows.shape[:2], dtype=torch.bool, device=x.device)
    real[row, column] = True if padding_mask is None else padding_mask
    return Unpacked(rows, real, row, column)


def repack(y: Tensor, rows: Unpacked) -> Tensor:
    """Undo `unpack` on a result ``y`` (documents, longest, ...)."""
    return y[rows.row, rows.column]
