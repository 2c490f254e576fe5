"""Lists of chunks of sorted tokens: the place of each token, and the keys that a query sees.

Every round sorts the tokens of a row again; the sorted tokens of all rounds, one round after the
other, are cut into chunks. The queries of a chunk see the keys of a window of chunks around it
(`ChunkPattern`). `lay_out` says where everything stands, `hide_` what is not seen and what is seen
more than once; `everyformer.engines.content.sorted_chunks` computes with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

Pick = Callable[[Tensor], Tensor]
NEVER = torch.iinfo(torch.int32).max
"""position of a key that no query sees"""


@dataclass(frozen=True)
class ChunkPattern:
    """Rules of which chunks of the list the queries of a chunk see, and which keys in them."""

    chunk: int
    """C, tokens"""
    before: int = 1
    """chunks seen in front of the own one"""
    after: int = 0
    """chunks visible after it"""
    causal: bool = False
    """whether later keys of the row are hidden"""
    circular: bool = False
    """whether the first chunk of the list is the last one's neighbour, and rounds are neighbours"""
    once: bool = False
    """whether keys count once however often they are seen"""

    @property
    def width(self) -> int:
        """Chunks in a window."""
        return 1 + self.before + self.after

    def code(self) -> list[int]:
        """Numbers of this pattern, as the operators take it."""
        return [int(getattr(self, field.name)) for field in fields(self)]

    @classmethod
    def of(cls, code: list[int]) -> ChunkPattern:
        chunk, before, after, *flags = code
        return cls(chunk, before, after, *map(bool, flags))


class ChunkList(NamedTuple):
    """The list of chunks of all rows, its ends repeated where windows reach beyond: F chunks.

    Row x has E = rounds K + before + after of them. Window w shows the chunks w .. w + width - 1
    to the queries of chunk w + before; those of the last ``before + after`` of a row are hidden.
    """

    tokens: Tensor
    """(F, C) int64: the tokens, counted through all rows"""
    position: Tensor
    """(F, C) int32: their positions in the row; `NEVER` if not real"""
    hidden: Tensor
    """(F, width) bool: chunks of a window that are not seen"""
    slots: Tensor
    """(X, rounds, L) int64: window and entry in it (F C) where each token is a query"""
    total: Tensor
    """(F, 1) int64: chunks in the list of the row, repeated ones not counted"""
    copies: Tensor
    """(2, n) int64: chunks that repeat another, and which"""
    chunk: Tensor | None
    """(X L, rounds) chunk of the list that holds each token; with ``once``"""

    def side(self, of_chunks: Pick, of_tokens: Pick) -> Listed:
        """Part of the queries or keys, picked from the list (F, C) and tokens (X L, rounds)."""
        chunk = self.chunk
        return Listed(of_chunks(self.position), None if chunk is None else of_tokens(chunk))


def lay_out(order: Tensor, real: Tensor | None, pattern: ChunkPattern) -> ChunkList:
    """Places of all queries and keys in chunks; arguments as in `chunked_attention`."""
    (many, rounds, length), size, device = order.shape, pattern.chunk, order.device
    each = length // size
    chunks_each = rounds * each + pattern.width - 1
    rows = torch.arange(many, device=device)[:, None]
    filled = torch.full((many, 1), each, device=device)
    if real is not None:
        filled = ((real.sum(1, keepdim=True) + size - 1) // size).clamp(min=1)
    total = rounds * filled
    nth = (torch.arange(chunks_each, device=device) - pattern.before) % total
    source = nth // filled * each + nth % filled
    own = order.reshape(many, rounds * each, size)
    own = own.gather(1, source[..., None].expand(-1, -1, size))
    position = own.to(torch.int32)
    if real is not None:
        position = position.masked_fill(~real.gather(1, own.flatten(1)).view_as(own), NEVER)
    query = torch.arange(chunks_each, device=device)[:, None]
    key = query + torch.arange(pattern.width, device=device) - pattern.before
    hidden = (query >= total[..., None]).expand(-1, -1, pattern.width)
    if not pattern.circular:
        outside = (key < 0) | (key >= total[..., None])
        hidden = hidden | outside | (key // filled[..., None] != query // filled[..., None])
    at = torch.empty_like(order)
    at.scatter_(2, order, torch.arange(length, device=device).expand_as(order))
    offset = torch.arange(rounds, device=device)[:, None] * filled[:, :, None]
    window = offset + at // size
    # padding may be beyond the list; its outputs are dropped
    window = window.clamp(max=chunks_each - pattern.width) + chunks_each * rows[..., None]
    copies = rows.new_empty(2, 0)
    if pattern.circular:
        repeated = (query[:, 0] < pattern.before) | (query[:, 0] >= total + pattern.before)
        into = nth + pattern.before + chunks_each * rows
        copies = torch.stack((repeated.flatten().nonzero().squeeze(1), into[repeated]))
    small = torch.int16 if chunks_each < 2**13 else torch.int32
    return ChunkList(
        tokens=(own + rows[..., None] * length).flatten(0, 1),
        position=position.flatten(0, 1),
        hidden=hidden.flatten(0, 1),
        slots=window * size + at % size,
        total=total.expand(-1, chunks_each).reshape(-1, 1),
        copies=copies,
        chunk=(offset + at // size).mT.flatten(0, 1).to(small) if pattern.once else None,
    )


class Listed(NamedTuple):
    """Places in the list of the queries, or the keys, of T groups that meet."""

    position: Tensor
    """(T, n) int32"""
    chunk: Tensor | None = None
    """(T, n, rounds)"""


def hide_(
    scores: Tensor, asking: Listed, seen: Listed, total: Tensor, pattern: ChunkPattern
) -> Tensor:
    """``scores`` (T, queries, keys) with -inf where nothing is seen, repeated keys lowered.

    Scores are logarithms to the base 2, whose inverse costs a third of exp on CPUs.
    ``total`` (T, 1): chunks in the list of each group's row.
    """
    queries, keys = asking.position[:, :, None], seen.position[:, None]
    hidden = keys >= queries if pattern.causal else (keys == queries) | (keys == NEVER)
    if asking.chunk is not None and seen.chunk is not None:
        times = _times(asking.chunk, seen.chunk, total[..., None], pattern)
        scores -= times.to(scores.dtype).log2_()
    return scores.masked_fill_(hidden, -math.inf)


def _times(asking: Tensor, seen: Tensor, total: Tensor, pattern: ChunkPattern) -> Tensor:
    """Counts (T, queries, keys) of how often the list shows a key to a query, at least 1."""
    total = total.to(asking.dtype)
    rounds = range(asking.shape[-1])
    times: Tensor | None = None
    for a in rounds:
        for b in rounds if pattern.circular else (a,):
            apart = seen[:, None, :, b] - (asking[:, :, a, None] - pattern.before)
            if pattern.circular:
                apart = apart.remainder_(total)
                # a list shorter than a window shows its chunks again
                times_seen = (
                    (pattern.width - 1 - apart).clamp_(min=-1).div_(total, rounding_mode="floor")
                )
                times_seen += 1
            else:
                # 0 <= apart < width, as one comparison
                reach = pattern.width - 1
                times_seen = (apart.mul_(2).sub_(reach).abs_() <= reach).to(apart.dtype)
            times = times_seen if times is None else times.add_(times_seen)
    assert times is not None
    return times.clamp_(min=1)


def windows_of(chunks: Tensor, pattern: ChunkPattern) -> Tensor:
    """View (T, width C, ...) of consecutive ``chunks`` (T + width - 1, C, ...)."""
    rows = chunks.contiguous().flatten(0, 1)
    return rows.unfold(0, pattern.width * pattern.chunk, pattern.chunk).movedim(-1, 1)
