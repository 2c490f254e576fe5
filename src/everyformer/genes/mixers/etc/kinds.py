"""Parts of ETC: tokens of one kind, projections and labels of one kind of queries."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyformer.blocks.parts import start
from everyformer.core.subset import gather_rows, order_of_real
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.visibility import surely
from everyformer.engines.sparse.by_torch import in_units as tokens_in_units
from everyformer.engines.sparse.layouts import Windows
from everyformer.genes.mixers.base import Rows


class Kind(NamedTuple):
    """Tokens of one kind, real ones first, and what is known of them (None: nothing)."""

    x: Tensor
    """(B, N, width), zeros where no token is real"""
    order: Tensor | None
    """(B, N) index of each among all tokens; None: all global ones, then all long ones"""
    padding_mask: Tensor | None
    """(B, N) bool; None: all are real"""
    sentences: Tensor | None
    """(B, N), -1 unknown"""


def kinds_of(rows: Rows) -> tuple[Kind, Kind]:
    """Long and global tokens, each kind by itself."""
    x, padding_mask, flags, sentences = rows[:4]
    padding_mask = None if padding_mask is None or surely(padding_mask) else padding_mask
    prefix = 0 if flags is None else rows.prefix
    if prefix is not None:
        summary, long = (
            Kind(
                x[:, at],
                None,
                *(None if t is None else t[:, at] for t in (padding_mask, sentences)),
            )
            for at in (slice(prefix), slice(prefix, None))
        )
        return long, summary
    assert flags is not None
    kinds = []
    for chosen in (~flags, flags):
        chosen = chosen if padding_mask is None else chosen & padding_mask
        order = order_of_real(chosen)[:, : int(chosen.sum(1).max())]
        real = chosen.gather(1, order)
        own = gather_rows(x, order).masked_fill(~real[..., None], 0.0)
        own_sentences = None if sentences is None else sentences.gather(1, order)
        kinds.append(Kind(own, order, real, own_sentences))
    return kinds[0], kinds[1]


def merged(x: Tensor, *kinds: tuple[Kind, Tensor | None]) -> Tensor:
    """Outputs (B, N, width), if any, of global and of long tokens in the order of ``x``."""
    total, in_order = torch.zeros_like(x), []
    for row, y in kinds:
        if y is None:
            continue
        y = (y if row.padding_mask is None else y * row.padding_mask[..., None].to(y)).to(x.dtype)
        if row.order is None:
            in_order.append(y)
        else:
            total = total.scatter_add(1, row.order[..., None].expand_as(y), y)
    return torch.cat(in_order, 1) if in_order else total


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
                start(linear)

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

    def forward(self, q: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """(q . a_t + b_t) / sqrt(D) for ``chosen`` t: q / sqrt(D) (..., H, D) to (..., H, V)."""
        vectors, numbers = self.vectors[chosen].to(q), self.numbers[chosen].to(q)
        return torch.einsum("...hd,vhd->...hv", q, vectors) + numbers.T / math.sqrt(q.shape[-1])


def labelled(by_label: Tensor, label: Tensor) -> Tensor:
    """Numbers of pairs: (..., H, R, V) at labels that broadcast to (..., H, R, S)."""
    shape = (*by_label.shape[:-1], label.shape[-1])
    return by_label.gather(-1, label.expand(shape))


def own_of(queries: Kind, keys: Kind) -> Tensor | None:
    """(B, 1, L, S) bool: of the same sentence, and known to be; None: no sentence is known."""
    if queries.sentences is None or keys.sentences is None:
        return None
    of_queries, of_keys = queries.sentences[:, None, :, None], keys.sentences[:, None, None]
    return (of_queries == of_keys) & (of_queries >= 0)


def seen_of(keys: Kind) -> Tensor | None:
    """(B, 1, 1, S) bool: real keys; None: all."""
    return None if keys.padding_mask is None else keys.padding_mask[:, None, None]


def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The pairs that are visible in both masks; None: all."""
    if a is None or b is None:
        return b if a is None else a
    return a & b


def pairs_of(size: int, around: int, device: torch.device) -> Pairs:
    """Pairs of a unit of ``size`` queries with the keys among them and ``around`` them.

    A compiler looks numbers up: there views of skewed memory are quotients and remainders of
    places, and an exported graph serves lengths for which such a view would be wrong.
    """
    keys = torch.arange(size + 2 * around, device=device)[None]
    queries, far = keys[:, :size] + around, size + around - 1
    regular = not torch.compiler.is_compiling()
    return Pairs(queries, keys, far, 2 * far + 1, size, regular)


def in_units(layout: Windows, t: Tensor) -> Tensor:
    """Tokens (B, L, H, ...) to (B, H, U, R, ...)."""
    return tokens_in_units(layout, t).movedim(3, 1)


def pairs_in_units(layout: Windows, pairs: Tensor | None) -> Tensor | None:
    """Pairs (B, 1, L or 1, S) with keys that are in no unit, as (B, 1, U or 1, R or 1, S)."""
    if pairs is None or pairs.shape[2] == 1:
        return None if pairs is None else pairs[:, :, None]
    return in_units(layout, pairs.transpose(1, 2))


def seen_in_units(row: Kind, keys: Windows) -> Tensor:
    """Flags (B or 1, 1, U, 1, S) of real keys; those before or after all tokens are not real."""
    padding_mask = row.padding_mask
    if padding_mask is None:
        padding_mask = torch.ones(1, row.x.shape[1], dtype=torch.bool, device=row.x.device)
    return in_units(keys, padding_mask[..., None, None]).mT
