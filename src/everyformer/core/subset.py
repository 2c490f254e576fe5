"""Tokens at different places of different rows: picked out, put back, moved up."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.core.leaving import leaves_torch


class TokenSubset(NamedTuple):
    """Some tokens of some rows: n of each of R rows."""

    at: Tensor
    """(R, n) their places"""
    real: Tensor
    """(R, n) bool; the others fill rows up"""
    rows: Tensor | None = None
    """(R,) which rows; None: all"""

    @classmethod
    def of(cls, flags: Tensor) -> TokenSubset | None:
        """Tokens with ``flags`` (B, L), at least one; None: all of a row, and some of each row."""
        counts = flags.sum(1)
        rows = None
        if len(flags) > 1 and not bool(counts.all()):
            rows = counts.nonzero().squeeze(1)
            flags = flags[rows]
        most = int(counts.max())
        if rows is None and most == flags.shape[1]:
            return None
        at = order_of_real(flags)[:, :most]
        return cls(at, flags.gather(1, at), rows)

    def row(self, x: Tensor) -> Tensor:
        """``x`` (B, ...) of these rows: (R, ...)."""
        return x if self.rows is None else x.index_select(0, self.rows)

    def pick(self, x: Tensor) -> Tensor:
        """``x`` (B, L, ...) of these tokens: (R, n, ...)."""
        return gather_rows(self.row(x), self.at)

    def put(self, into: Tensor, new: Tensor) -> Tensor:
        """``into`` (B, L, ...) with the ``new`` (R, n, ...) of these tokens."""
        rows = self.row(into)
        new = torch.where(widen(self.real, new), new, gather_rows(rows, self.at))
        rows = rows.scatter(1, widen(self.at, new).expand_as(new), new)
        return rows if self.rows is None else into.index_copy(0, self.rows, rows)


def order_of_real(padding_mask: Tensor, last: bool = False) -> Tensor:
    """Places (B, L) of the tokens of each row, the real ones first, or ``last``."""
    later = padding_mask if last else ~padding_mask
    if not leaves_torch():
        return torch.argsort(later.to(torch.uint8), dim=1, stable=True)
    # counted, since ONNX has no stable sort
    behind = later.long()
    before = 1 - behind
    index = torch.where(later, before.sum(1, keepdim=True) + behind.cumsum(1), before.cumsum(1)) - 1
    tokens = torch.arange(padding_mask.shape[1], device=padding_mask.device).expand_as(index)
    return torch.empty_like(index).scatter(1, index, tokens)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """``x`` (B, S, ...) at ``index`` (B, L) along the second dimension."""
    wide = widen(index, x).expand(*index.shape, *x.shape[2:])
    return x.gather(1, wide)


def widen(index: Tensor, like: Tensor) -> Tensor:
    """``index`` (B, L) with a dimension of one for each further one of ``like``."""
    return index.view(*index.shape, *[1] * (like.dim() - 2))
