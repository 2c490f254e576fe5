"""Parts of ETC: tokens of one kind, projections and labels of one kind of queries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyformer.engines.layouts import Windows
from everyformer.engines.sparse_parts import laid


class Row(NamedTuple):
    """Tokens of one kind, real ones first, and what is known of them."""

    x: Tensor
    """(B, N, width)"""
    order: Tensor
    """(B, N) where each stands among all tokens"""
    keep: Tensor
    """(B, N) bool"""
    sentences: Tensor
    """(B, N), -1 unknown"""
    documents: Tensor
    """(B, N)"""


class Side(nn.Module):
    """Projections of one kind of queries, and of the keys and values that they read."""

    def __init__(self, width: int, bias: tuple[str, ...], apart: bool) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias="query" in bias)
        kinds = ("long", "global") if apart else ("any",)
        self.key = nn.ModuleDict({kind: nn.Linear(width, width, "key" in bias) for kind in kinds})
        self.value = nn.ModuleDict(
            {kind: nn.Linear(width, width, "value" in bias) for kind in kinds}
        )
        for linear in self.modules():
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def read(self, x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens of a kind."""
        kind = kind if kind in self.key else "any"
        return self.key[kind](x), self.value[kind](x)


class Labels(nn.Module):
    """a (V, H, D) and b (V, H) of one kind of queries."""

    def __init__(self, count: int, heads: int, size: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(count, heads, size))
        self.numbers = nn.Parameter(torch.zeros(count, heads))
        nn.init.trunc_normal_(self.vectors, std=0.5, a=-1.0, b=1.0)

    def forward(self, q: Tensor) -> Tensor:
        """q . a_t + b_t for every label t: (..., H, D) to (..., H, V)."""
        return torch.einsum("...hd,vhd->...hv", q, self.vectors.to(q)) + self.numbers.T.to(q)


def wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def labelled(by_label: Tensor, label: Tensor) -> Tensor:
    """Numbers of pairs: (..., H, R, V) at labels that broadcast to (..., H, R, S)."""
    shape = (*by_label.shape[:-1], label.shape[-1])
    return by_label.gather(-1, label.expand(shape))


def seen_of(queries: Row, keys: Row) -> Tensor:
    """(B, L, S) bool: real keys of the same document."""
    same = queries.documents[:, :, None] == keys.documents[:, None]
    return same & keys.keep[:, None]


def same_in_units(queries: Row, keys: Row, rows: Windows, columns: Windows) -> Tensor:
    """`seen_of` by units: (B, U, 1, R, S); what stands before or behind all tokens is not real."""
    here = laid(rows, queries.documents[:, :, None, None]).transpose(2, 3)
    there = laid(columns, keys.documents[:, :, None, None]).transpose(2, 3)
    real = laid(columns, keys.keep[:, :, None, None]).transpose(2, 3)
    return (here == there.mT) & real.mT
