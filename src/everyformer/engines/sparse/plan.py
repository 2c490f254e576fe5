"""`SparsePlan`: one description of a sparse pattern, that every executor reads.

A plan is a union of patterns, the same for all heads or one a head. A pair that several patterns of
a union show counts once. From it come the mask of a dense computation, the units of a blocked one
(`engines.sparse.attention`), how much of the square is visible, how far several layers reach, and
which keys a stream must keep.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.core.devices import Constant
from everyformer.core.errors import ShapeError
from everyformer.engines.sparse import patterns
from everyformer.engines.sparse.layouts import KeyLayout, Layout
from everyformer.engines.sparse.patterns import Pattern
from everyformer.engines.sparse.patterns_grid import Rectangles
from everyformer.system.plain import from_json, to_json

Union = tuple[Pattern, ...]

KINDS: dict[str, Any] = {
    cls.kind: cls
    for cls in (
        *(patterns.Near, patterns.Blocks, patterns.PastBlocks, patterns.Columns),
        *(patterns.GlobalKeys, patterns.GlobalQueries, patterns.BlockTable),
        Rectangles,
    )
}


class Branch(NamedTuple):
    """Units that one dense product each computes: a pair stands in one branch alone."""

    queries: Layout
    keys: KeyLayout
    mask: Constant | None
    """(U or 1, H or 1, R or 1, S) bool; None: all pairs, or row >= column if ``triangle``"""
    triangle: bool


class Group(NamedTuple):
    """Heads that see alike."""

    heads: tuple[int, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class SparsePlan:
    """Plan of the keys j that each query i may see, head by head."""

    heads: tuple[Union, ...]
    """one union of patterns for all heads, or one a head"""
    text: str = field(init=False, repr=False, compare=False)
    """the plan as JSON, which `from_text` reads"""
    causal: bool = field(init=False, repr=False, compare=False)
    """whether no head sees a later key"""
    span: int | None = field(init=False, repr=False, compare=False)
    """how far back a visible key may lie at most, in any head; None: without a limit"""

    def __post_init__(self) -> None:
        unions = [[_values(pattern) for pattern in union] for union in self.heads]
        every = [pattern for union in self.heads for pattern in union]
        spans = [pattern.span for pattern in every]
        known = [span for span in spans if span is not None]
        object.__setattr__(self, "text", to_json(unions, separators=(",", ":")))
        object.__setattr__(self, "causal", all(pattern.causal for pattern in every))
        span = max(known, default=0) if len(known) == len(spans) else None
        object.__setattr__(self, "span", span)

    @property
    def complete(self) -> bool:
        """True where every pair is visible, but for later keys if causal."""
        # beside patterns that are not causal, one that is leaves later keys hidden
        return all(
            any(_sees_all(pattern) and pattern.causal == self.causal for pattern in union)
            for union in self.heads
        )

    @classmethod
    def of(cls, *union: Pattern) -> SparsePlan:
        """Plan of one union for all heads."""
        return cls((union,))

    @staticmethod
    @lru_cache(maxsize=256)
    def from_text(text: str) -> SparsePlan:
        """The plan that a `text` describes."""

        def pattern(fields: dict[str, Any]) -> Pattern:
            kind: type[Pattern] = KINDS[fields.pop("kind")]
            return kind(**{name: _tuples(value) for name, value in fields.items()})

        return SparsePlan(tuple(tuple(map(pattern, union)) for union in from_json(text)))

    def visible(self, i: Tensor, j: Tensor, heads: int) -> Tensor:
        """bool of queries and keys at positions i (..., L) and j (..., S): (..., H or 1, L, S)."""
        i, j = i[..., None, :, None], j[..., None, None, :]
        head = torch.arange(heads, device=i.device)[:, None, None]
        if len(self.heads) == 1:
            return _visible_in(self.heads[0], i, j, head)
        self.check_heads(heads)
        rows = [_visible_in(u, i, j, head[h : h + 1]) for h, u in enumerate(self.heads)]
        return torch.cat(torch.broadcast_tensors(*rows), -3)

    def mask(self, length: int, heads: int = 1) -> Tensor:
        """(H or 1, L, L) bool: the definition."""
        at = torch.arange(length)
        return self.visible(at, at, max(heads, len(self.heads)))

    def density(self, length: int, heads: int = 1) -> float:
        """Share of all pairs (i, j), j <= i if causal, that are visible."""
        mask = self.mask(length, heads)
        pairs = length * (length + 1) // 2 if self.causal else length * length
        return int(mask.sum()) / (len(mask) * pairs)

    def draw(self, length: int = 32, head: int = 0) -> str:
        """The mask of one head in characters: a line a query, # what it sees."""
        mask = self.mask(length, head + 1)
        rows = mask[head % len(mask)].tolist()
        return "\n".join("".join("#" if seen else "." for seen in row) for row in rows)

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        """Flags of the keys j < ``now`` that some query from ``now`` on may see in some head."""
        flags = torch.zeros_like(j, dtype=torch.bool)
        for union in set(self.heads):
            for pattern in union:
                flags = flags | pattern.needed(j, now)
        return flags

    def check_heads(self, heads: int) -> None:
        """Refuse another number of heads than the plan or one of its tables has."""
        if len(self.heads) not in (1, heads):
            raise ShapeError(f"the plan is for {len(self.heads)} heads, but there are {heads}")
        for pattern in {pattern for union in self.heads for pattern in union}:
            if pattern.heads not in (1, heads if len(self.heads) == 1 else 1):
                raise ShapeError(
                    f"a table of the plan is for {pattern.heads} heads, but the plan uses it for "
                    f"{heads if len(self.heads) == 1 else 1}"
                )

    def groups(self, length: int, heads: int) -> tuple[Group, ...]:
        """The units of a row of ``length`` tokens, heads that see alike together."""
        return _groups(self.text, length, heads)

    def pairs(self, length: int, heads: int) -> int:
        """Number of scores that a blocked computation makes, over all heads."""
        return _pairs(self.text, length, heads)


def distances(seen: Sequence[Tensor]) -> Tensor:
    """(L, L): after how many layers something of token j can be in token i; inf: never.

    The layers' tokens see in turn what is ``seen`` (L, L) bool, the first one first. A token is in
    itself from the start.
    """
    steps = [step.float() for step in seen]
    reach = torch.eye(len(steps[0]))
    far = torch.where(reach > 0, 0.0, math.inf)
    layers = before = 0
    while before < (before := int(reach.sum())):
        for step in steps:
            layers += 1
            reach = ((step @ reach + reach) > 0).float()
            far = torch.where((reach > 0) & far.isinf(), layers, far)
    return far


def _values(pattern: Pattern) -> dict[str, Any]:
    names = [f.name for f in dataclasses.fields(pattern) if f.init]
    return {"kind": pattern.kind, **{name: getattr(pattern, name) for name in names}}


def _sees_all(pattern: Pattern) -> bool:
    if not isinstance(pattern, patterns.Near) or pattern.dilation > 1:
        return False
    return pattern.before is None and (pattern.causal or pattern.after is None)


def _visible_in(union: Union, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
    mask = reduce(torch.bitwise_or, (pattern.visible(i, j, head) for pattern in union))
    return mask.expand(torch.broadcast_shapes(mask.shape, i.shape, j.shape))


@lru_cache(maxsize=64)
def _groups(text: str, length: int, heads: int) -> tuple[Group, ...]:
    plan = SparsePlan.from_text(text)
    plan.check_heads(heads)
    if len(plan.heads) == 1:
        return (Group(tuple(range(heads)), _branches(plan.heads[0], range(heads), length)),)
    alike: dict[Union, list[int]] = {}
    for head, union in enumerate(plan.heads):
        alike.setdefault(union, []).append(head)
    return tuple(
        Group(tuple(chosen), _branches(union, chosen, length)) for union, chosen in alike.items()
    )


@lru_cache(maxsize=256)
def _pairs(text: str, length: int, heads: int) -> int:
    count = 0
    for group in _groups(text, length, heads):
        for branch in group.branches:
            rows, columns = (e.positions(length) for e in (branch.queries, branch.keys))
            count += len(group.heads) * len(rows) * rows.shape[-1] * columns.shape[-1]
    return count


def _branches(union: Union, heads: Sequence[int], length: int) -> tuple[Branch, ...]:
    """All parts of all patterns, each without the pairs of the patterns before it."""
    parts = (_of_last(union[: n + 1], tuple(heads), length) for n in range(len(union)))
    return tuple(branch for branches in parts for branch in branches)


@lru_cache(maxsize=256)
def _of_last(union: Union, heads: tuple[int, ...], length: int) -> tuple[Branch, ...]:
    """The parts of a union's last pattern; unions that begin alike make the first ones once."""
    branches = []
    head, pattern = torch.tensor(heads)[:, None, None], union[-1]
    for queries, keys in pattern.parts(length):
        i = queries.positions(length)[..., None]
        j = keys.positions(length)[..., None, :]
        mask = pattern.visible(i, j, head) & (j >= 0)
        if not pattern.causal:
            mask = mask & (j < length)
        for earlier in union[:-1]:
            mask = mask & ~earlier.visible(i, j, head)
        if bool(mask.any()):
            branches.append(_branch(queries, keys, mask))
    return tuple(branches)


def _branch(queries: Layout, keys: KeyLayout, mask: Tensor) -> Branch:
    """The mask as small as it can be."""
    for dim in (0, 1):
        mask = _once(mask, dim)
    if bool(mask.all()):
        return Branch(queries, keys, None, False)
    rows, columns = mask.shape[-2:]
    if rows == columns and bool((mask == torch.ones(rows, rows, dtype=torch.bool).tril()).all()):
        return Branch(queries, keys, None, True)
    return Branch(queries, keys, Constant(_once(mask, 2).contiguous()), False)


def _once(mask: Tensor, dim: int) -> Tensor:
    """One along ``dim`` where all are the same."""
    first = mask.narrow(dim, 0, 1)
    return first if bool((mask == first).all()) else mask


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
