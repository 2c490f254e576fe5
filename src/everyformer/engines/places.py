"""Where the queries and keys of a block of scores stand, and tables over their distances.

The distance of query i and key j is d = i - j: positive to the past. A position that depends on
distances alone makes one column for each distance of a call, from the farthest past on
(``Places.span``); ``lay`` puts column d at every pair (i, j) that is d apart, and ``collect`` adds
the pairs up again. Where positions count up by one (no holes), both are views of memory that
was skewed by one column a row, never look-ups.

Source of the skew: Dai et al. 2019, arXiv 1901.02860, appendix B; Huang et al. 2018, 1809.04281.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Positions of a block of L queries and S keys."""

    queries: Tensor
    """(B or 1, L) int64, absolute"""
    keys: Tensor
    """(B or 1, S) int64, absolute"""
    farthest: int
    """largest distance that a column is made for; pairs beyond it are hidden ones"""
    columns: int
    """how many distances, going down by one from ``farthest``"""
    regular: bool
    """whether both count up by one, the first pair being ``farthest`` - L + 1 apart"""
    skipped: int = 0
    """columns of the whole call's tables before this block's first"""

    @classmethod
    def of(
        cls, queries: Tensor, keys: Tensor, *, regular: bool, farthest: int | None = None
    ) -> Places:
        """All distances that L queries and S keys can have, if the keys end with the queries.

        ``regular``: the last query stands where the last key does and both count up by one. Any
        other positions may be given if visible pairs are at most S - 1 apart, or ``farthest``.
        """
        length, far = queries.shape[-1], keys.shape[-1] - 1 if farthest is None else farthest
        return cls(queries, keys, far, length + far, regular)

    def span(self) -> Tensor:
        """(columns,) int64: the distance of each column."""
        return self.farthest - torch.arange(self.columns, device=self.queries.device)

    def distances(self) -> Tensor:
        """(B or 1, L, S) int64: the distance of every pair."""
        return self.queries[:, :, None] - self.keys[:, None, :]

    def block(self, first: int, last: int, keys: int) -> Places:
        """The queries from ``first`` up to ``last`` with the first ``keys`` keys."""
        queries, source = self.queries[:, first:last], self.keys[:, :keys]
        if not self.regular:
            return Places(queries, source, self.farthest, self.columns, False)
        length = self.queries.shape[1]
        skipped, columns = length - last, last - first + keys - 1
        return Places(queries, source, self.farthest - skipped, columns, True, skipped)

    def take(self, table: Tensor, dim: int = -1) -> Tensor:
        """This block's columns of a table over the whole call's, which lie along ``dim``."""
        return table.narrow(dim, self.skipped, self.columns)

    def lay(self, table: Tensor) -> Tensor:
        """Columns (H, columns), or (B, H, L, columns) by query, to pairs (B or 1, H, L, S)."""
        length, source = self.queries.shape[-1], self.keys.shape[-1]
        if table.dim() == 2 and (not self.regular or torch.compiler.is_compiling()):
            # a compiled `unfold` is made for one length
            return table[:, self._column_of_pairs()].transpose(0, 1)
        if not self.regular:
            index = self._column_of_pairs()
            return table.gather(-1, index[:, None].expand(*table.shape[:3], source))
        if table.dim() == 2:
            return table.unfold(-1, source, 1).flip(-2)[None]
        if length == 1:
            return table
        # pair (i, j) is column L - 1 - i + j: rows of one column less walk back by one a row
        rows = table.flatten(-2).narrow(-1, length - 1, length * (self.columns - 1))
        return rows.unflatten(-1, (length, self.columns - 1))[..., :source]

    def collect(self, pairs: Tensor) -> Tensor:
        """The adjoint of `lay` by query: pairs (B, H, L, S) to columns (B, H, L, columns)."""
        length, source = self.queries.shape[-1], self.keys.shape[-1]
        if not self.regular:
            index = self._column_of_pairs()[:, None].expand(pairs.shape)
            return pairs.new_zeros(*pairs.shape[:3], self.columns).scatter_add(-1, index, pairs)
        if length == 1:
            return pairs
        wide = F.pad(pairs, (0, self.columns - 1 - source)).flatten(-2)
        return F.pad(wide, (length - 1, 1)).unflatten(-1, (length, self.columns))

    def _column_of_pairs(self) -> Tensor:
        """(B or 1, L, S): hidden pairs beyond the span get its ends."""
        return (self.farthest - self.distances()).clamp(0, self.columns - 1)
