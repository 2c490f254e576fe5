"""Distances of queries and keys of a block of attention scores, and tables over them.

The distance of query i and key j is d = i - j: positive to the past. A position that depends on
distances alone makes one column for each distance of a call, from the farthest past to the nearest
future (``Pairs.span``); ``lay`` puts column d at every pair (i, j) that is d apart, ``collect``
adds the pairs up again. Where positions count up by one (no holes), both are views of memory that
was skewed by one column a row, never look-ups. What is the same for all queries is skewed once for
all blocks of a call (``tile``).

Source of the skew: Dai et al. 2019, arXiv 1901.02860, appendix B; Huang et al. 2018, 1809.04281.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.errors import ShapeError
from everyformer.core.leaving import leaves_torch
from everyformer.core.shared import shared


@dataclass(frozen=True)
class Pairs:
    """Positions of L queries and S keys, and the columns of tables over their distances."""

    queries: Tensor
    """(B or 1, L) int64, absolute"""
    keys: Tensor
    """(B or 1, S) int64, absolute"""
    farthest: int
    """largest distance that a column is made for; pairs beyond it are hidden ones"""
    columns: int
    """how many distances, going down by one from ``farthest``"""
    rows: int
    """queries of the largest block of the call"""
    regular: bool
    """whether both count up by one, the first pair being ``farthest`` - L + 1 apart"""
    causal: bool = False
    """whether keys later than their query are hidden"""
    skipped: int = 0
    """columns of the whole call's tables before this block's first"""

    @classmethod
    def of(
        cls,
        queries: Tensor,
        keys: Tensor,
        *,
        regular: bool,
        causal: bool = False,
        farthest: int | None = None,
        length: int | None = None,
    ) -> Pairs:
        """Pairs of L queries and S keys, with all distances that they have if both end together.

        ``regular``: the last query stands where the last key does and both count up by one. Any
        other positions are allowed if visible pairs are at most S - 1 apart, or ``farthest``.
        ``length``: tokens that the queries are some of (default: they are all).
        """
        length = queries.shape[-1] if length is None else length
        far = keys.shape[-1] - 1 if farthest is None else farthest
        # an exported graph serves lengths of which a view would be right for all but one or two
        regular = regular and not leaves_torch()
        return cls(queries, keys, far, length + far, length, regular, causal)

    def in_blocks(self, rows: int) -> Pairs:
        """Pairs of this call, cut into blocks of ``rows`` queries.

        Causal blocks end with the last key that they see, so fewer columns are hidden for good.
        """
        columns = self.farthest + rows if self.causal else self.columns
        return dataclasses.replace(self, rows=rows, columns=columns)

    @property
    def later(self) -> int:
        """Number of the last columns that are of no visible pair."""
        return self.columns - self.farthest - 1 if self.causal else 0

    @property
    def seen(self) -> int:
        """Number of the first columns, those of pairs that may be visible."""
        return self.columns - self.later

    @property
    def last(self) -> bool:
        """True if there is one query, which stands at the last of its keys."""
        return self.regular and self.causal and self.queries.shape[1] == 1

    def span(self) -> Tensor:
        """(columns,) int64: the distance of each column."""
        return shared(_falling, self.farthest, self.columns, self.queries.device)

    def distances(self) -> Tensor:
        """(B or 1, L, S) int64: the distance of every pair."""
        return self.queries[:, :, None] - self.keys[:, None, :]

    def block(self, rows: slice, first: int, last: int, keys: int) -> Pairs:
        """The queries from ``first`` up to ``last`` with the first ``keys`` keys, of these rows."""
        queries, source = _of_rows(self.queries, rows), _of_rows(self.keys, rows)[:, :keys]
        queries = queries[:, first:last]
        if not self.regular:
            return dataclasses.replace(self, queries=queries, keys=source)
        skipped, count = self.queries.shape[1] - last, last - first
        return dataclasses.replace(
            self, queries=queries, keys=source, farthest=self.farthest - skipped,
            columns=count + keys - 1, skipped=skipped,
        )  # fmt: skip

    def take(self, table: Tensor, dim: int = -1) -> Tensor:
        """Columns of this block in a table over the whole call's, which lie along ``dim``."""
        return table.narrow(dim, self.skipped, self.columns)

    def lay(self, columns: Tensor) -> Tensor:
        """Columns (B, H, L, columns) to pairs (B, H, L, S)."""
        if not self.regular:
            index = self._column_of_pairs()[:, None]
            return columns.gather(-1, index.expand(*columns.shape[:3], index.shape[-1]))
        pairs: Tensor = _Skew.apply(columns, self.keys.shape[-1])
        return pairs

    def collect(self, pairs: Tensor) -> Tensor:
        """The adjoint of `lay`: pairs (B, H, L, S) to columns (B, H, L, columns)."""
        if self.regular and pairs.shape[2] == 1:
            return pairs
        if not self.regular:
            index = self._column_of_pairs()[:, None].expand(pairs.shape)
            return pairs.new_zeros(*pairs.shape[:3], self.columns).scatter_add(-1, index, pairs)
        columns: Tensor = _Unskew.apply(pairs)
        return columns

    def widen(self, table: Tensor, first: int, dim: int = -1) -> Tensor:
        """A column for every distance from a table that ends sooner, whose ends serve the rest.

        Entries along ``dim`` go down by one from the distance ``first`` >= 0, at least to 0.
        """
        count = table.shape[dim]
        if torch.compiler.is_compiling():
            return table.index_select(dim, self._entries(first, count))
        before, inside, after = self._ends(first, count)

        def end(index: int, copies: int) -> Tensor:
            size = list(table.shape)
            size[dim] = copies
            return table.narrow(dim, index, 1).expand(size)

        middle = table.narrow(dim, inside.start, inside.stop - inside.start)
        return torch.cat((end(0, before), middle, end(count - 1, after)), dim)

    def narrowed(self, columns: Tensor, first: int, count: int) -> Tensor:
        """The adjoint of `widen` along the last dimension: (..., columns) to (..., ``count``)."""
        if torch.compiler.is_compiling():
            summed = columns.new_zeros(*columns.shape[:-1], count)
            return summed.index_add(-1, self._entries(first, count), columns)
        before, inside, after = self._ends(first, count)
        if count == 1:
            return columns.sum(-1, keepdim=True)
        # the distance 0 is among both, so an end that has copies is itself among the columns
        ends = (before + 1 if before else 0, after + 1 if after else 0)
        left, middle, right = columns.split((ends[0], self.columns - sum(ends), ends[1]), -1)
        parts = [left.sum(-1, keepdim=True)] if before else []
        parts += [middle, right.sum(-1, keepdim=True)] if after else [middle]
        middle = torch.cat(parts, -1) if len(parts) > 1 else middle
        lacks = inside.start, count - inside.stop
        return F.pad(middle, lacks) if any(lacks) else middle

    def _ends(self, first: int, count: int) -> tuple[int, slice, int]:
        """Parts of ``count`` entries: copies of the first, a slice of all, copies of the last."""
        begin = first - self.farthest
        end = begin + self.columns
        return max(-begin, 0), slice(max(begin, 0), min(end, count)), max(end - count, 0)

    def _entries(self, first: int, count: int) -> Tensor:
        return (first - self.span()).clamp(0, count - 1)

    def tile(self, table: Tensor) -> Tensor:
        """Tensor that the blocks of a call read of a table (H, columns) that all queries share."""
        if not self.regular:
            return table
        wide = table[:, None].expand(-1, self.rows, -1).contiguous()
        tile: Tensor = _Skew.apply(wide, self.columns - self.rows + 1)
        return tile

    def cut(self, tile: Tensor) -> Tensor:
        """Part of this block in a whole call's `tile`, a view."""
        if not self.regular:
            return tile
        length, source = self.queries.shape[-1], self.keys.shape[-1]
        return tile[:, self.rows - length :].narrow(-1, self.skipped, source)

    def of_cut(self, part: Tensor) -> Tensor:
        """The numbers of pairs (B or 1, H, L, S) from a `cut`."""
        return part[None] if self.regular else part[:, self._column_of_pairs()].transpose(0, 1)

    def _column_of_pairs(self) -> Tensor:
        """(B or 1, L, S): hidden pairs beyond the span get its ends."""
        return (self.farthest - self.distances()).clamp(0, self.columns - 1)


def _falling(first: int, count: int, device: torch.device) -> Tensor:
    return first - torch.arange(count, device=device)


def relative_shift(scores: Tensor) -> Tensor:
    """Scores by key from scores by relative distance (Dai et al. 2019, appendix B).

    Args:
        scores: (..., L, L + S - 1); the columns of a query fall from the distance of the farthest
            pair, S - 1 if the last query stands where the last of S keys does, by one each.

    Returns:
        (..., L, S): entry (i, j) is column L - 1 - i + j of row i.

    Raises:
        ShapeError: fewer columns than rows, or no rows.
    """
    length, columns = scores.shape[-2:]
    if not 0 < length <= columns:
        raise ShapeError(
            "scores by distance must be (..., L, L + S - 1) with L and S of at least 1, not "
            f"{tuple(scores.shape)}"
        )
    shifted: Tensor = _Skew.apply(scores, columns - length + 1)
    return shifted


def relative_shift_reference(scores: Tensor) -> Tensor:
    """`relative_shift`, entry by entry."""
    length, columns = scores.shape[-2:]
    keys = range(columns - length + 1)
    rows = [
        torch.stack([scores[..., i, length - 1 - i + j] for j in keys], -1) for i in range(length)
    ]
    return torch.stack(rows, -2)


def _of_rows(positions: Tensor, rows: slice) -> Tensor:
    return positions[rows] if positions.shape[0] > 1 else positions


def _skewed(columns: Tensor, source: int) -> Tensor:
    """A view: pair (i, j) is column L - 1 - i + j, so rows one column shorter walk back by one."""
    length, count = columns.shape[-2:]
    if length == 1:
        return columns
    rows = columns.flatten(-2).narrow(-1, length - 1, length * (count - 1))
    return rows.unflatten(-1, (length, count - 1)).narrow(-1, 0, source)


class _Skew(torch.autograd.Function):
    """(..., L, L + S - 1) to (..., L, S); its gradient is one copy, not one for each view."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, source: int) -> Tensor:
        return _skewed(columns.contiguous(), source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        columns: Tensor = _Unskew.apply(grad)
        return columns, None


class _Unskew(torch.autograd.Function):
    """The adjoint of `_Skew`."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor) -> Tensor:
        length, source = ctx.shape = pairs.shape[-2:]
        columns = pairs.new_zeros(*pairs.shape[:-1], length + source - 1)
        _skewed(columns, source).copy_(pairs)
        return columns

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        pairs: Tensor = _Skew.apply(grad, ctx.shape[1])
        return pairs
