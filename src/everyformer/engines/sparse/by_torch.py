"""The branches of a plan by torch's own operations: any device, dropout, scores by position.

The same merge of branches as in `everyformer.engines.sparse.branches`, differentiated by autograd.
For the backward pass the weights of the units are saved, never L x L.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.core.devices import Constant
from everyformer.engines.dropout import dropout
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import ScorePosition
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.sparse.layouts import KeyLayout, Layout
from everyformer.engines.sparse.plan import Branch, Group, SparsePlan

Added = Callable[[Tensor], Tensor | None] | None
"""what is added to the outputs of units (B, U, H, R, D) under their weights"""


class Heads(NamedTuple):
    """(B, L, H, D) each, values of any size."""

    q: Tensor
    k: Tensor
    v: Tensor


def by_parts(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, plan: SparsePlan, scores: Scores
) -> tuple[Tensor, Tensor]:
    """Outputs (B, L, H, D) of ``q``, ``k``, ``v`` (B, L, H, D), whose rows hold ``lengths`` tokens,
    and log-sums (B, L, H), float32 at least."""
    length, heads = q.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    groups = plan.groups(length, heads)
    outputs, sums = [], []
    for group in groups:
        of = Heads(*(of_heads(t, group, heads) for t in (q, k, v)))
        rule = rule_of(scores, group, heads)
        parts = [_branch(of, lengths, branch, rule, plan.causal) for branch in group.branches]
        if not parts:
            outputs.append(of.v.masked_fill(torch.ones((), dtype=torch.bool, device=v.device), 0))
            sums.append(q.new_full(of.q.shape[:3], -math.inf, dtype=wide))
            continue
        logsum = torch.stack([own for _, own in parts]).logsumexp(0)
        total = torch.zeros(of.v.shape, dtype=wide, device=q.device)
        for part, own in parts:
            alone = own == -math.inf
            apart = torch.where(alone, -math.inf, own - logsum.masked_fill(alone, 0.0))
            total = total + part * apart.exp()[..., None]
        outputs.append(total.to(v.dtype))
        sums.append(logsum)
    if len(outputs) == 1:
        return outputs[0], sums[0]
    order = tuple(head for group in groups for head in group.heads)
    back = _numbers(tuple(order.index(head) for head in range(heads))).on(q.device)
    return torch.cat(outputs, 2).index_select(2, back), torch.cat(sums, 2).index_select(2, back)


def of_heads(t: Tensor, group: Group, heads: int) -> Tensor:
    """A group's heads of ``t`` (B, L, H, ...)."""
    if len(group.heads) == heads:
        return t
    return t.index_select(2, _numbers(group.heads).on(t.device))


def rule_of(scores: Scores, group: Group, heads: int) -> Scores:
    """Scores of a group's heads."""
    if scores.position is None or len(group.heads) == heads:
        return scores
    return replace(scores, position=scores.position.of_heads(group.heads))


@lru_cache(maxsize=256)
def _numbers(numbers: tuple[int, ...]) -> Constant:
    return Constant(torch.tensor(numbers))


@lru_cache(maxsize=256)
def _places(layout: KeyLayout, length: int) -> Constant:
    """`KeyLayout.positions`."""
    return Constant(layout.positions(length))


def units_of(of: Heads, branch: Branch, factor: float) -> Heads:
    """A branch's queries, scaled by ``factor``, keys and values: (B, U, H, R or S, D) each, those
    that are compared in float32 or wider."""
    wide = torch.promote_types(of.q.dtype, torch.float32)
    q = in_units(branch.queries, of.q).transpose(2, 3).to(wide) * factor
    k = in_units(branch.keys, of.k).transpose(2, 3).to(wide)
    return Heads(q, k, in_units(branch.keys, of.v).transpose(2, 3))


def scores_of(
    units: Heads, lengths: Tensor | None, branch: Branch, length: int, rule: Scores, causal: bool
) -> tuple[Tensor, Added]:
    """Scores (B, U, H, R, S), -inf for pairs that do not see each other, and what a position adds
    to outputs."""
    q, k, added = units.q, units.k, None
    if rule.position is None:
        scores = q @ k.transpose(-1, -2)
    else:
        factor = rule.factor(q)
        scores, added = _scored(q, k, branch, length, rule.position, factor, causal)
    mask = _mask_of(branch, scores, lengths, length)
    return scores if mask is None else scores.masked_fill(~mask, -math.inf), added


def _branch(
    of: Heads, lengths: Tensor | None, branch: Branch, rule: Scores, causal: bool
) -> tuple[Tensor, Tensor]:
    """One branch's outputs (B, L, H, D) and log-sums (B, L, H), in float32 or wider."""
    length, wide = of.q.shape[1], torch.promote_types(of.q.dtype, torch.float32)
    units = units_of(of, branch, rule.factor(of.q))
    scores, added = scores_of(units, lengths, branch, length, rule, causal)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(empty, 0.0)
    logsum = scores.logsumexp(-1).masked_fill(empty.squeeze(-1), -math.inf)
    weights = dropout(scores.softmax(-1).masked_fill(empty, 0.0), rule.dropout).to(of.v.dtype)
    o = (weights @ units.v).to(wide)
    more = None if added is None else added(weights)
    o = o if more is None else o + more
    o, logsum = (_back(branch.queries, t.transpose(2, 3), length) for t in (o, logsum))
    return o, logsum


def _mask_of(branch: Branch, scores: Tensor, lengths: Tensor | None, length: int) -> Tensor | None:
    """bool (B or 1, U or 1, H or 1, R or 1, S)."""
    mask = None if branch.mask is None else branch.mask.on(scores.device)
    if branch.triangle:
        mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if lengths is None:
        return mask
    at = _places(branch.keys, length).on(scores.device)
    known = (at < lengths[:, None, None, None])[:, :, :, None]
    return known if mask is None else mask & known


def _scored(
    q: Tensor, k: Tensor, branch: Branch, length: int,
    position: ScorePosition | Table, scale: float, causal: bool,
) -> tuple[Tensor, Added]:  # fmt: skip
    """Scores (B, U, H, R, S) by a position, and what it adds to outputs under weights."""
    batch, units, heads = q.shape[:3]
    i, j = places_of(branch, length, q.device)
    if j.shape[1] > 1 or isinstance(position, Table):
        return q @ k.transpose(-1, -2) + _by_head(position, i, j, heads, q.dtype), None
    columns = length if causal else 2 * length - 1
    i, j = (t[:, 0].repeat(batch, 1) for t in (i, j))
    pairs = Pairs(i, j, length - 1, columns, i.shape[-1], regular=False, causal=causal)
    part = position.cut(position.prepare(pairs, scale, q.dtype), pairs)
    q, k = q.flatten(0, 1), k.flatten(0, 1)
    products = position.content(q, part) @ k.transpose(-1, -2)
    scores = position.score(products, q, k, part, pairs).unflatten(0, (batch, units))

    def added(weights: Tensor) -> Tensor | None:
        more = position.values(weights.flatten(0, 1), part, pairs)
        return None if more is None else more.unflatten(0, (batch, units))

    return scores, added


def places_of(branch: Branch, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions (U, H or 1, R or S) of a branch's queries and keys."""
    # padding has no position: any distance that is in range will do
    queries, keys = (
        _places(layout, length).on(device).clamp(0, length - 1)
        for layout in (branch.queries, branch.keys)
    )
    return queries, keys


def _by_head(
    position: ScorePosition | Table, i: Tensor, j: Tensor, heads: int, dtype: torch.dtype
) -> Tensor:
    """Addends (U, H, R, S) of an additive position, the keys of heads at different positions."""
    apart = i[..., None] - j[..., None, :]
    if apart.shape[1] == 1:
        return position.by_distance(apart[:, 0], dtype).transpose(0, 1)
    return torch.stack([position.by_distance(apart[:, h], dtype)[h] for h in range(heads)], 1)


@dataclass(frozen=True)
class Table:
    """A position that adds numbers by distance, (H, 2 L - 1) from 1 - L to L - 1."""

    numbers: Tensor

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """Those of pairs ``distance`` (...) apart: (H, ...)."""
        at = distance.flatten() + self.numbers.shape[1] // 2
        return self.numbers.to(dtype).index_select(1, at).unflatten(1, distance.shape)

    def of_heads(self, chosen: Sequence[int]) -> Table:
        """Those of some heads."""
        return Table(self.numbers[list(chosen)])


def in_units(layout: KeyLayout, t: Tensor) -> Tensor:
    """Tokens (B, L, H, ...) laid out in units, with a gradient."""
    units: Tensor = _Taken.apply(t, layout)
    return units


class _Taken(torch.autograd.Function):
    """`Layout.take`; its gradient is `Layout.add`."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, layout: KeyLayout) -> Tensor:
        ctx.layout, ctx.length = layout, t.shape[1]
        return layout.take(t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        t: Tensor = _Added.apply(grad, ctx.layout, ctx.length)
        return t, None


class _Added(torch.autograd.Function):
    """The adjoint of `_Taken`."""

    @staticmethod
    def forward(ctx: Any, units: Tensor, layout: KeyLayout, length: int) -> Tensor:
        ctx.layout = layout
        t = units.new_zeros(units.shape[0], length, *units.shape[3:])
        layout.add(units, t)
        return t

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return in_units(ctx.layout, grad), None, None


def _back(layout: Layout, units: Tensor, length: int) -> Tensor:
    """Units (B, U, R, H, ...) as rows (B, L, H, ...); queries of no unit get 0, log-sums -inf."""
    rows, ordered = layout.rows, layout.put(units, length)
    if rows is None:
        return ordered
    fill = -math.inf if units.dim() == 4 else 0.0
    empty = ordered.new_full((ordered.shape[0], length, *ordered.shape[2:]), fill)
    if isinstance(rows, slice):
        return torch.cat((empty[:, : rows.start], ordered), 1)
    return empty.index_copy(1, rows.on(units.device), ordered)
