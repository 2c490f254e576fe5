"""Key-value caches of softmax attention: of a stream, which grows, and of a context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from everyformer.core.leaving import leaves_torch
from everyformer.core.mask import Mask, counted
from everyformer.core.shared import advanced, shared
from everyformer.core.state import S, State, state
from everyformer.core.subset import gather_rows, order_of_real
from everyformer.engines.growing import Growing
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.visibility import Visibility, counts_up, real_last, visibility


@state
class KeyValueState(Growing):
    """Key-value cache of the tokens seen. Padding keeps its slot, marked by ``padding_mask``."""

    grows = ("keys", "values")
    slot_dim = 2
    num_tokens: Tensor
    keys: Tensor
    """(B, H_kv, S, D), already rotated where RoPE is in use"""
    values: Tensor
    """(B, H_kv, S, D_v)"""
    padding_mask: Tensor | None = None
    """(B, S) bool, which slots hold a real token; None: all; the last is at ``num_tokens`` - 1"""
    positions: Tensor | None = None
    """(B, S) int64, absolute; None with ``padding_mask``"""

    @classmethod
    def empty(
        cls, rows: tuple[int, int], key_dim: int, value_dim: int, **like: Any
    ) -> KeyValueState:
        """Empty cache of ``rows`` = (batch, key-value heads); ``like``: device and dtype."""
        return cls(
            num_tokens=torch.zeros(rows[0], dtype=torch.long, device=like.get("device")),
            keys=torch.zeros(*rows, 0, key_dim, **like),
            values=torch.zeros(*rows, 0, value_dim, **like),
        )

    def append(
        self, k: Tensor, v: Tensor, positions: Tensor | None, padding_mask: Tensor | None
    ) -> KeyValueState:
        """The cache with the keys and values (B, H_kv, L, ...) of new tokens after the old ones.

        ``positions`` (B or 1, L) are needed where there is a ``padding_mask`` or was one before.
        """
        (keys, values), room = self.grown(k, v)
        if padding_mask is None and self.padding_mask is None:
            new = KeyValueState(advanced(self.num_tokens, k.shape[2]), keys, values)
        else:
            assert positions is not None
            old_keep, old_positions = self.slots()
            if padding_mask is None:
                padding_mask = shared(_real, k.shape[0], k.shape[2], k.device)
            new = KeyValueState(
                num_tokens=advanced(self.num_tokens, k.shape[2], padding_mask),
                keys=keys,
                values=values,
                padding_mask=shared(_joined, old_keep, padding_mask),
                positions=shared(_joined, old_positions, positions),
            )
        return new.in_room(room)

    def slots(self) -> tuple[Tensor, Tensor]:
        """``padding_mask`` and ``positions``, built where they are None."""
        if self.padding_mask is not None and self.positions is not None:
            return self.padding_mask, self.positions
        batch, _, size, _ = self.keys.shape
        return shared(_real, batch, size, self.keys.device), shared(_up_to, self.num_tokens, size)

    def last(self, count: int | None) -> KeyValueState:
        """Only the last ``count`` real tokens of each row (None, and in graphs that leave torch,
        which masks alone tell what is seen: all)."""
        size = self.keys.shape[2]
        if count is None or leaves_torch() or size <= count:
            return self
        if self.padding_mask is None or real_last(self.padding_mask):
            # as in a stream of steps, after any resets
            return self.part(size - count)
        return self._picked(order_of_real(self.padding_mask, last=True)[:, size - count :])

    def side_by_side(self) -> KeyValueState:
        """The cache with the real tokens of each row after all other slots, side by side."""
        if self.padding_mask is None:
            return self
        return self._picked(order_of_real(self.padding_mask, last=True))

    def _picked(self, order: Tensor) -> KeyValueState:
        """The slots at ``order`` (B, n) alone."""
        padding_mask, positions = self.slots()
        return KeyValueState(
            num_tokens=self.num_tokens,
            keys=gather_rows(self.keys.transpose(1, 2), order).transpose(1, 2),
            values=gather_rows(self.values.transpose(1, 2), order).transpose(1, 2),
            padding_mask=padding_mask.gather(1, order),
            positions=positions.gather(1, order),
        )

    def last_of_many(self, count: int, spare: int) -> KeyValueState:
        """`last`, but only where more than ``spare`` others are there, since it copies."""
        if leaves_torch() or self.keys.shape[2] <= count + spare:
            return self
        new = self.last(count)
        return new if self.room is None else new.reserve(spare + count // 8)

    def last_in_room(self, count: int) -> KeyValueState:
        """`last`; where room was reserved, others stay until they are as many."""
        return self.last(count) if self.room is None else self.last_of_many(count, count)

    def part(self, first: int) -> KeyValueState:
        """The slots from ``first`` on."""
        padding_mask = None if self.padding_mask is None else self.padding_mask[:, first:]
        positions = None if self.positions is None else self.positions[:, first:]
        keys, values = self.keys[:, :, first:], self.values[:, :, first:]
        return KeyValueState(self.num_tokens, keys, values, padding_mask, positions)

    def at(self, index: Tensor) -> KeyValueState:
        """The slots at ``index`` (N,) alone."""
        keys, values = (t.index_select(2, index) for t in (self.keys, self.values))
        padding_mask, positions = (shared(_columns, t, index) for t in self.slots())
        return KeyValueState(self.num_tokens, keys, values, padding_mask, positions)

    def only(self, visible: Tensor) -> KeyValueState:
        """The cache, in which slots that ``visible`` (B, S) leaves out are marked as empty."""
        padding_mask, positions = self.slots()
        return replace(self, padding_mask=padding_mask & visible, positions=positions)

    def reset(self, where: Tensor) -> KeyValueState:
        padding_mask, positions = self.slots()
        return State.reset(replace(self, padding_mask=padding_mask, positions=positions), where)


def has_holes(mask: Mask | None, cache: KeyValueState | None) -> bool:
    """True where positions do not simply count up: padding, packed documents, empty slots."""
    parts = mask is not None and (mask.padding_mask is not None or mask.documents is not None)
    return parts or (cache is not None and cache.padding_mask is not None)


def with_cache(
    k: Tensor,
    v: Tensor,
    mask: Mask | None,
    positions: Tensor | None,
    cache: KeyValueState | None,
    *,
    causal: bool,
    windows: tuple[int | None, ...],
    farthest: int | None = None,
) -> tuple[Tensor, Tensor, Visibility, Pairs, KeyValueState | None]:
    """Keys and values of cache and new tokens, the mask and distances of queries; the new cache.

    Args:
        k, v: keys (B, H_kv, L, D) and values (B, H_kv, L, Dv) of the new tokens, rotated.
        mask: of the new tokens, as `with_past` gives it beside a cache.
        positions: (B or 1, L) of the new tokens; None: they count up without holes.
        farthest: largest distance to a row of the cache (`Recalled.farthest`).
    """
    length, holes = k.shape[2], has_holes(mask, cache)
    padding_mask = None if mask is None else mask.padding_mask
    of_q = of_k = positions
    if cache is not None:
        cache = cache.append(k, v, positions, padding_mask)
        k, v = cache.keys, cache.values
        padding_mask, of_k = cache.slots() if holes else (None, None)
    if not holes:
        # from now on positions matter by their distances alone
        of_k = shared(counted, k.shape[2], k.device)
        of_q = of_k[:, k.shape[2] - length :]
    assert of_q is not None
    assert of_k is not None
    packed = mask is not None and mask.documents is not None
    regular = farthest is None and not packed and counts_up(padding_mask)
    visible = visibility(
        mask, of_q, of_k,
        causal=causal, windows=windows, padding_mask=padding_mask, regular=regular,
    )  # fmt: skip
    pairs = Pairs.of(of_q, of_k, regular=regular, causal=causal, farthest=farthest)
    return k, v, visible, pairs, cache


def _real(batch: int, size: int, device: torch.device) -> Tensor:
    return torch.ones(batch, size, dtype=torch.bool, device=device)


def _up_to(num_tokens: Tensor, size: int) -> Tensor:
    """Positions (B, ``size``) of the last of the ``num_tokens`` (B,) tokens."""
    return num_tokens[:, None] - size + torch.arange(size, device=num_tokens.device)


def _joined(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat((old, new.expand(old.shape[0], -1)), 1)


def _columns(slots: Tensor, index: Tensor) -> Tensor:
    return slots[:, index]


@state
class ContextState(State):
    """Key-value cache of a context, projected once and read by every step of cross-attention."""

    of_context = True
    num_tokens: Tensor
    keys: Tensor
    """(B, H_kv, S, D)"""
    values: Tensor
    """(B, H_kv, S, D_v)"""
    padding_mask: Tensor
    """(B, S) bool"""


def freed(carried: S) -> S:
    """A key-value cache without the slots that none of its rows holds any more.

    Rows that are reset leave theirs behind, so that one episode after the other would need room for
    all. Not for states that hold something else by slot (Reformer's buckets, memories).
    """
    if isinstance(carried, KeyValueState):
        return carried.last(int(carried.slots()[0].sum(1).max()))  # type: ignore[return-value]
    return carried.rebuilt(lambda t, _: t, freed)
