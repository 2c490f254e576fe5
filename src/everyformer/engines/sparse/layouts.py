"""Layouts of a row of tokens in units, so that one dense product serves each unit.

A layout takes tokens t (B, L, H, D) to units (B, U, R, H, D): the overlapping windows before every
block of queries, every r-th token, chosen tokens, a table of blocks. ``positions`` says where each
entry stands (entries before 0 or from L on are padding), ``take`` lays tokens out, mostly as views,
``add`` is its adjoint, in place, and ``put`` undoes ``take`` where every token stands once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import Constant


class KeyLayout(Hashable, Protocol):
    """Layout of L tokens in U units of R each, for all heads alike unless it says otherwise."""

    def positions(self, length: int) -> Tensor:
        """(U, H or 1, R) int64; negative or >= ``length``: padding."""

    def take(self, t: Tensor) -> Tensor:
        """(B, L, H, D) to (B, U, R, H, D); padding holds zeros."""

    def add(self, units: Tensor, into: Tensor) -> None:
        """The adjoint of ``take``: each token's entries of (B, U, R, H, D) are added to it in
        ``into`` (B, L, H, D)."""


class Layout(KeyLayout, Protocol):
    """Layout of queries too, in which every token stands once."""

    def put(self, units: Tensor, length: int) -> Tensor:
        """Units of queries (B, U, R, H, ...) in order: (B, L, H, ...), or ``rows`` of it."""

    @property
    def rows(self) -> Constant | slice | None:
        """The queries that it lays out, in the order in which ``put`` gives them; None: all."""


@dataclass(frozen=True)
class Windows:
    """Blocks of ``size`` tokens, each with the ``before`` and ``after`` next to it.

    They begin after the first ``skip`` tokens, which lie in none. A negative number of those after
    leaves out tokens of the block, so that an earlier block can stand for it.
    """

    size: int
    before: int = 0
    after: int = 0
    skip: int = 0
    count: int | None = None
    """blocks; None: as many as the tokens fill"""

    def units(self, length: int) -> int:
        return -(-(length - self.skip) // self.size) if self.count is None else self.count

    def part(self, first: int, stop: int) -> Windows:
        """The blocks from ``first`` up to ``stop`` alone, which reach no further than theirs."""
        passed = min(first * self.size, self.before)
        return Windows(
            self.size,
            self.before - passed,
            self.after + passed,
            self.skip + first * self.size - passed,
            stop - first,
        )

    def positions(self, length: int) -> Tensor:
        first = torch.arange(self.units(length)) * self.size - self.before
        at = first[:, None] + torch.arange(self.wide)
        return torch.where(at < 0, -1, at + self.skip)[:, None]

    def take(self, t: Tensor) -> Tensor:
        # the last of all windows may end before the text begins
        rows = self.units(t.shape[1]) * self.size + self.after
        own, past = max(rows, 0), self.before + min(rows, 0)
        t = t[:, self.skip : self.skip + own]
        if own != t.shape[1] or past:
            t = F.pad(t, (0, 0, 0, 0, past, own - t.shape[1]))
        return t.unfold(1, self.wide, self.size).movedim(-1, 2)

    def add(self, units: Tensor, into: Tensor) -> None:
        batch, count, wide, *rest = units.shape
        steps = -(-wide // self.size)
        start, rows = self.skip - self.before, (count + steps - 1) * self.size
        inside = self.before == 0 and start + rows <= into.shape[1]
        summed = into[:, start : start + rows] if inside else units.new_zeros(batch, rows, *rest)
        for step in range(steps):
            first = step * self.size
            part = units[:, :, first : first + self.size]
            under = summed[:, first : first + count * self.size].unflatten(1, (count, self.size))
            under[:, :, : part.shape[2]] += part
        if not inside:
            real = into[:, self.skip : max(start + rows, self.skip)]
            real += summed[:, self.before : self.before + real.shape[1]]

    def put(self, units: Tensor, length: int) -> Tensor:
        return units.flatten(1, 2)[:, : length - self.skip]

    @property
    def rows(self) -> slice | None:
        if self.count is not None:
            return slice(self.skip, self.skip + self.count * self.size)
        return slice(self.skip, None) if self.skip else None

    @property
    def wide(self) -> int:
        """Tokens of a window."""
        return self.before + self.size + self.after


def whole(length: int) -> Windows:
    """Layout of all tokens as one unit."""
    return Windows(length)


@dataclass(frozen=True)
class Folds:
    """Every ``stride``-th token, one residue after the other, each laid out by ``inner``.

    Without ``inner`` a residue is one unit.
    """

    stride: int
    inner: Windows | None = None

    def positions(self, length: int) -> Tensor:
        within = self._inner(length).positions(self._each(length))
        residue = torch.arange(self.stride)[:, None, None, None]
        return (residue + self.stride * within).flatten(0, 1)

    def take(self, t: Tensor) -> Tensor:
        length, each = t.shape[1], self._each(t.shape[1])
        if each * self.stride != length:
            t = F.pad(t, (0, 0, 0, 0, 0, each * self.stride - length))
        folded = t.unflatten(1, (each, self.stride)).transpose(1, 2)
        if self.inner is None:
            return folded
        units = self.inner.take(folded.flatten(0, 1))
        return units.unflatten(0, (-1, self.stride)).flatten(1, 2)

    def add(self, units: Tensor, into: Tensor) -> None:
        length = into.shape[1]
        if self.inner is None:
            into += self.put(units, length)
            return
        rows = units.unflatten(1, (self.stride, -1)).flatten(0, 1)
        summed = rows.new_zeros(rows.shape[0], self._each(length), *rows.shape[3:])
        self.inner.add(rows, summed)
        into += self._unfolded(summed, length)

    def put(self, units: Tensor, length: int) -> Tensor:
        if self.inner is not None:
            rows = units.unflatten(1, (self.stride, -1)).flatten(0, 1)
            return self._unfolded(self.inner.put(rows, self._each(length)), length)
        return units.transpose(1, 2).flatten(1, 2)[:, :length]

    @property
    def rows(self) -> None:
        return None

    def _unfolded(self, rows: Tensor, length: int) -> Tensor:
        folded = rows.unflatten(0, (-1, self.stride))
        return folded.transpose(1, 2).flatten(1, 2)[:, :length]

    def _inner(self, length: int) -> Windows:
        return self.inner or whole(self._each(length))

    def _each(self, length: int) -> int:
        return -(-length // self.stride)


@dataclass(frozen=True, eq=False)
class Indexed:
    """Units of tokens chosen one by one: ``index`` (U, R), -1 for padding."""

    index: Tensor

    def positions(self, length: int) -> Tensor:
        return self.index[:, None]

    def take(self, t: Tensor) -> Tensor:
        taken = t.index_select(1, self._at.on(t.device)).unflatten(1, self.index.shape)
        if self._real is not None:
            taken = taken * self._real.on(t.device).to(t.dtype)[:, :, None, None]
        return taken

    def add(self, units: Tensor, into: Tensor) -> None:
        if self._real is not None:
            units = units * self._real.on(units.device).to(units.dtype)[:, :, None, None]
        into.index_add_(1, self._at.on(units.device), units.flatten(1, 2))

    def put(self, units: Tensor, length: int) -> Tensor:
        rows = units.flatten(1, 2)
        return rows if self._real is None else rows.index_select(1, self._places.on(rows.device))

    @cached_property
    def rows(self) -> Constant:
        return Constant(self.index[self.index >= 0])

    @cached_property
    def _at(self) -> Constant:
        return Constant(self.index.clamp(min=0).flatten())

    @cached_property
    def _real(self) -> Constant | None:
        """Flags of what is no padding; None: nothing is."""
        real = self.index >= 0
        return None if bool(real.all()) else Constant(real)

    @cached_property
    def _places(self) -> Constant:
        """Of what is no padding, among all."""
        return Constant((self.index >= 0).flatten().nonzero()[:, 0])


@dataclass(frozen=True, eq=False)
class Tables:
    """Key blocks of a table for every block of queries and head; a layout of keys alone."""

    size: int
    table: Tensor
    """(H or 1, blocks, M) int64, -1: none"""
    skip: int = 0
    """tokens in front that lie in no block"""

    @property
    def entries(self) -> int:
        """Keys of a head, however often they are there."""
        return self.table[0].numel() * self.size

    def of_head(self, head: int) -> Tables:
        """The table of one head."""
        return self._by_head[head % len(self._by_head)]

    def positions(self, length: int) -> Tensor:
        within = torch.arange(self.size)
        real = (self.table >= 0)[..., None]
        at = torch.where(real, self.table[..., None] * self.size + within + self.skip, -1)
        return at.flatten(2).transpose(0, 1)

    def take(self, t: Tensor) -> Tensor:
        batch, length, heads, channels = t.shape
        each, rest = divmod(t.stride(1), channels)
        whole = length - self.skip == self.table.shape[1] * self.size
        if t.is_cpu and batch == 1 and whole and not rest and t.stride()[2:] == (channels, 1):
            vectors = t.as_strided(((length - 1) * each + heads, channels), (channels, 1))
            at = self._vectors(heads, each)
            taken = vectors.index_select(0, at.flatten()).view(1, *at.shape, channels)
            return taken.transpose(2, 3)
        taken = self._blocks(t[:, self.skip :]).index_select(1, self._rows(heads).on(t.device))
        taken = taken.view(batch, heads, *self.table.shape[1:], self.size, channels)
        return taken.flatten(3, 4).permute(0, 2, 3, 1, 4)

    def add(self, units: Tensor, into: Tensor) -> None:
        batch, count, _, heads, channels = units.shape
        rows = units.permute(0, 3, 1, 2, 4).reshape(batch, -1, self.size * channels)
        summed = rows.new_zeros(batch, heads * count, self.size * channels)
        # entries that are none were masked, so that their gradient is zero
        summed = summed.index_add(1, self._rows(heads).on(rows.device), rows)
        tokens = summed.view(batch, heads, count * self.size, channels).transpose(1, 2)
        real = into[:, self.skip :]
        real += tokens[:, : real.shape[1]]

    def _blocks(self, t: Tensor) -> Tensor:
        """(B, H blocks, size D), head by head."""
        batch, length, heads, channels = t.shape
        count = self.table.shape[1]
        t = F.pad(t, (0, 0, 0, 0, 0, count * self.size - length)).transpose(1, 2)
        return t.reshape(batch, heads * count, self.size * channels)

    def _rows(self, heads: int) -> Constant:
        """The blocks of all heads as numbers among (H blocks)."""
        if heads not in self._known:
            head = torch.arange(heads)[:, None, None] * self.table.shape[1]
            self._known[heads] = Constant((self.table.clamp(min=0) + head).flatten())
        return self._known[heads]

    def _vectors(self, heads: int, each: int) -> Tensor:
        """Of every block of queries and head (blocks, H, M size): keys among vectors of D channels,
        of which there are ``each`` from one token to the next."""
        known = self._known_vectors.get((heads, each))
        if known is None:
            at = self.positions(0).clamp(min=0) * each
            known = at.expand(-1, heads, -1) + torch.arange(heads)[:, None]
            self._known_vectors[heads, each] = known
        return known

    @cached_property
    def _by_head(self) -> tuple[Tables, ...]:
        return tuple(Tables(self.size, one[None], self.skip) for one in self.table)

    @cached_property
    def _known_vectors(self) -> dict[tuple[int, int], Tensor]:
        return {}

    @cached_property
    def _known(self) -> dict[int, Constant]:
        return {}
