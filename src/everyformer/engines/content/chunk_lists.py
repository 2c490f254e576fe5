"""Lists of chunks of sorted tokens: who stands where, and who sees whom.

Every round sorts the tokens of a row anew; the sorted tokens of all rounds, one round behind the
other, are cut into chunks. The queries of a chunk see the keys of a window of chunks around it
(`Pattern`). `lay_out` says where everything stands, `hide_` what is not seen and what is seen more
than once; `everyformer.engines.content.sorted_chunks` computes with them.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

NEVER = torch.iinfo(torch.int32).max
"""place of a key that no query sees"""


@dataclass(frozen=True)
class Pattern:
    """Who meets whom in the list."""

    chunk: int
    """C, tokens"""
    before: int = 1
    """chunks seen in front of the own one"""
    after: int = 0
    """chunks seen behind it"""
    causal: bool = False
    """whether keys that stand later in the row are hidden"""
    circular: bool = False
    """whether the first chunk of the list is the last one's neighbour, and rounds are neighbours"""
    once: bool = False
    """whether keys count once however often they are shown"""
    within: bool = False
    """whether keys of other buckets are hidden"""

    @property
    def width(self) -> int:
        """Chunks in a window."""
        return 1 + self.before + self.after

    def code(self) -> list[int]:
        """As the operators take it."""
        return [int(value) for value in astuple(self)]

    @classmethod
    def of(cls, code: list[int]) -> Pattern:
        chunk, before, after, *flags = code
        return cls(chunk, before, after, *map(bool, flags))


class Layout(NamedTuple):
    """The list of chunks of all rows, its ends repeated where windows reach beyond: F chunks.

    Row x has E = rounds K + before + after of them. Window w shows the chunks w .. w + width - 1
    to the queries of chunk w + before; those of the last ``before + after`` of a row are hidden.
    """

    tokens: Tensor
    """(F, C) int64: the tokens, counted through all rows"""
    place: Tensor
    """(F, C) int32: their places in the row; `NEVER` if not real"""
    hidden: Tensor
    """(F, width) bool: chunks of a window that are not seen"""
    slots: Tensor
    """(X, rounds, L) int64: window and place in it (F C) where each token is a query"""
    total: Tensor
    """(F, 1) int64: chunks in the list of the row, repeated ones not counted"""
    copies: Tensor
    """(2, n) int64: chunks that repeat another, and which"""
    bucket: Tensor | None
    """(F, C) int64: buckets of the tokens, unlike those of other rounds; with ``within``"""
    chunk: Tensor | None
    """(X L, rounds): in which chunk of the list each token stands; with ``once``"""
    codes: Tensor | None
    """(X L, rounds): in which bucket; with ``once`` and ``within``"""


def lay_out(order: Tensor, real: Tensor | None, buckets: Tensor | None, pattern: Pattern) -> Layout:
    """Where everything stands; arguments as in `chunked_attention`."""
    (many, rounds, length), size, device = order.shape, pattern.chunk, order.device
    each = length // size
    places = rounds * each + pattern.width - 1
    rows = torch.arange(many, device=device)[:, None]
    held = torch.full((many, 1), each, device=device)
    if real is not None:
        held = ((real.sum(1, keepdim=True) + size - 1) // size).clamp(min=1)
    total = rounds * held
    nth = (torch.arange(places, device=device) - pattern.before) % total
    source = nth // held * each + nth % held
    own = order.reshape(many, rounds * each, size)
    own = own.gather(1, source[..., None].expand(-1, -1, size))
    place = own.to(torch.int32)
    if real is not None:
        place = place.masked_fill(~real.gather(1, own.flatten(1)).view_as(own), NEVER)
    query = torch.arange(places, device=device)[:, None]
    key = query + torch.arange(pattern.width, device=device) - pattern.before
    hidden = (query >= total[..., None]).expand(-1, -1, pattern.width)
    if not pattern.circular:
        outside = (key < 0) | (key >= total[..., None])
        hidden = hidden | outside | (key // held[..., None] != query // held[..., None])
    at = torch.empty_like(order)
    at.scatter_(2, order, torch.arange(length, device=device).expand_as(order))
    turn = torch.arange(rounds, device=device)[:, None] * held[:, :, None]
    window = turn + at // size
    # padding may stand beyond the list; what it gets is dropped
    window = window.clamp(max=places - pattern.width) + places * rows[..., None]
    copies = rows.new_empty(2, 0)
    if pattern.circular:
        repeated = (query[:, 0] < pattern.before) | (query[:, 0] >= total + pattern.before)
        into = nth + pattern.before + places * rows
        copies = torch.stack((repeated.flatten().nonzero().squeeze(1), into[repeated]))
    small = torch.int16 if places < 2**13 else torch.int32
    bucket = None
    if buckets is not None:
        apart = buckets.long() + torch.arange(rounds, device=device)[:, None] * 2**32
        bucket = apart.flatten(1).gather(1, (own + source[..., None] // each * length).flatten(1))
    return Layout(
        tokens=(own + rows[..., None] * length).flatten(0, 1),
        place=place.flatten(0, 1),
        hidden=hidden.flatten(0, 1),
        slots=window * size + at % size,
        total=total.expand(-1, places).reshape(-1, 1),
        copies=copies,
        bucket=None if bucket is None else bucket.view(-1, size),
        chunk=_by_token(turn + at // size).to(small) if pattern.once else None,
        codes=_by_token(buckets) if pattern.once and buckets is not None else None,
    )


def _by_token(held: Tensor) -> Tensor:
    return held.transpose(1, 2).flatten(0, 1)


class Side(NamedTuple):
    """What is known of the queries, or of the keys, of T groups that meet."""

    place: Tensor
    """(T, n) int32"""
    bucket: Tensor | None = None
    """(T, n)"""
    chunk: Tensor | None = None
    """(T, n, rounds)"""
    codes: Tensor | None = None
    """(T, n, rounds)"""


def hide_(scores: Tensor, ask: Side, seen: Side, total: Tensor, pattern: Pattern) -> Tensor:
    """``scores`` (T, queries, keys) with -inf where nothing is seen, repeated keys lowered.

    Scores are logarithms to the base 2, whose inverse costs a third of exp on CPUs.
    ``total`` (T, 1): chunks in the list of each group's row.
    """
    asks, keys = ask.place[:, :, None], seen.place[:, None]
    hidden = keys >= asks if pattern.causal else (keys == asks) | (keys == NEVER)
    if ask.bucket is not None and seen.bucket is not None:
        hidden |= ask.bucket[:, :, None] != seen.bucket[:, None]
    if ask.chunk is not None and seen.chunk is not None:
        scores -= _times(ask, seen, total[..., None], pattern).to(scores.dtype).log2_()
    return scores.masked_fill_(hidden, -math.inf)


def _times(ask: Side, seen: Side, total: Tensor, pattern: Pattern) -> Tensor:
    """How often the list shows each key to each query, at least 1: (T, queries, keys)."""
    assert ask.chunk is not None
    assert seen.chunk is not None
    total = total.to(ask.chunk.dtype)
    rounds = range(ask.chunk.shape[-1])
    across = pattern.circular and ask.codes is None
    times: Tensor | None = None
    for a in rounds:
        for b in rounds if across else (a,):
            apart = seen.chunk[:, None, :, b] - (ask.chunk[:, :, a, None] - pattern.before)
            if pattern.circular:
                apart = apart.remainder_(total)
                # a list shorter than a window shows its chunks again
                shown = (
                    (pattern.width - 1 - apart).clamp_(min=-1).div_(total, rounding_mode="floor")
                )
                shown += 1
            else:
                # 0 <= apart < width, as one comparison
                reach = pattern.width - 1
                shown = (apart.mul_(2).sub_(reach).abs_() <= reach).to(apart.dtype)
            if ask.codes is not None and seen.codes is not None:
                shown *= ask.codes[:, :, a, None] == seen.codes[:, None, :, a]
            times = shown if times is None else times.add_(shown)
    assert times is not None
    return times.clamp_(min=1)


def windows_of(chunks: Tensor, pattern: Pattern) -> Tensor:
    """View (T, width C, ...) of consecutive ``chunks`` (T + width - 1, C, ...)."""
    chunks = chunks.contiguous()
    count, size, *rest = chunks.shape
    shape = (count - pattern.width + 1, pattern.width * size, *rest)
    return chunks.as_strided(shape, (chunks.stride(0), *chunks.stride()[1:]))
