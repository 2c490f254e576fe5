"""Units for a compiler, which cannot follow them: `by_parts` as one operator, gradients by hand.

With l the log-sums of all branches together, f the factors of dropout and g the gradient of o,

    P_ij = f_ij e^(s_ij - l_i),   dv_j = sum_i P_ij g_i,
    ds_ij = e^(s_ij - l_i) (f_ij g_i . v_j - g_i . o_i),

and what a position adds to s is a table by distance, made outside, so that whatever it has learned
gets its gradient there. Scores are made again for the gradients, and the factors of dropout drawn
again by their seed: nothing of the size of the pairs is kept.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from everyformer.core.devices import forked_random
from everyformer.engines.dropout import dropout
from everyformer.engines.operators import operator
from everyformer.engines.ranges import fake, full_precision, returned, widened
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.sparse.by_torch import (
    Heads,
    Table,
    by_parts,
    in_units,
    of_heads,
    places_of,
    rule_of,
    scores_of,
    units_of,
)
from everyformer.engines.sparse.plan import Branch, SparsePlan


def opaque_parts(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, plan: SparsePlan, scores: Scores
) -> Tensor:
    """`by_parts`; a position must be additive."""
    table, length = None, q.shape[1]
    if scores.position is not None:
        apart = torch.arange(1 - length, length, device=q.device)
        table = scores.position.by_distance(apart, widened(q[:0]).dtype)
    seed = torch.randint(2**62, (1,)) if scores.dropout else None
    scale = scores.factor(q)
    o, _ = _sparse_parts(q, k, v, table, lengths, seed, plan.text, scale, scores.dropout)
    return o


def _rule(table: Tensor | None, scale: float, rate: float) -> Scores:
    position: Any = None if table is None else Table(table)
    return Scores(scale=scale, position=position, dropout=rate)


@contextmanager
def _drawn(seed: Tensor | None, like: Tensor) -> Iterator[None]:
    """A block whose random numbers are those of ``seed``."""
    if seed is None:
        yield
        return
    with forked_random(like.device):
        torch.manual_seed(int(seed))
        yield


def _attend(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, lengths: Tensor | None,
    seed: Tensor | None, plan: str, scale: float, rate: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, L, H, D) and log-sums (B, L, H)."""
    with _drawn(seed, q), full_precision(q):
        rule = _rule(table, scale, rate)
        o, logsum = by_parts(q, k, v, lengths, SparsePlan.from_text(plan), rule)
    return returned(o, v), logsum.contiguous()


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor | None, lengths: Tensor | None,
    seed: Tensor | None, o: Tensor, logsum: Tensor, grad_o: Tensor, plan: str, scale: float,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sparse, (length, heads) = SparsePlan.from_text(plan), q.shape[1:3]
    g = widened(grad_o)
    of_rows = g, logsum.masked_fill(logsum == -math.inf, 0.0)[..., None], (g * o).sum(-1)[..., None]
    grads = [torch.zeros_like(widened(t)) for t in (q, k, v)]
    dtable = q.new_empty(0) if table is None else torch.zeros_like(table)
    with _drawn(seed, q), full_precision(q):
        for group in sparse.groups(length, heads):
            of = Heads(*(of_heads(t, group, heads) for t in (q, k, v)))
            rows = [of_heads(t, group, heads) for t in of_rows]
            rule = rule_of(_rule(table, scale, rate), group, heads)
            chosen = torch.tensor(group.heads, device=q.device)
            for branch in group.branches:
                units = units_of(of, branch, scale)
                above, sums, level = (in_units(branch.queries, t).transpose(2, 3) for t in rows)
                scores, _ = scores_of(units, lengths, branch, length, rule, sparse.causal)
                share = scores.sub_(sums).exp_()
                factors = dropout(torch.ones_like(share), rate) if rate else None
                weights = share if factors is None else share * factors
                ds = above @ widened(units.v).mT
                ds = (ds if factors is None else ds.mul_(factors)).sub_(level).mul_(share)
                sides = (branch.queries, ds @ units.k), (branch.keys, ds.mT @ units.q)
                for total, (layout, part) in zip(
                    grads, (*sides, (branch.keys, weights.mT @ above)), strict=True
                ):
                    of_group = part.new_zeros(*total.shape[:2], len(chosen), total.shape[3])
                    layout.add(part.transpose(2, 3), of_group)
                    total.index_add_(2, chosen, of_group)
                if table is not None:
                    _add_by_distance(dtable, chosen, branch, ds, length)
        grads[0] *= scale
    dq, dk, dv = (returned(t, like) for t, like in zip(grads, (q, k, v), strict=True))
    return dq, dk, dv, dtable


def _add_by_distance(into: Tensor, heads: Tensor, branch: Branch, ds: Tensor, length: int) -> None:
    """Add gradients of scores (B, U, H, R, S) to those of the table (H, 2 L - 1)."""
    i, j = places_of(branch, length, ds.device)
    at = (i[..., None] - j[..., None, :] + length - 1).expand(-1, len(heads), -1, -1)
    part = into.new_zeros(len(heads), into.shape[1])
    part.scatter_add_(1, at.transpose(0, 1).flatten(1), ds.sum(0).transpose(0, 1).flatten(1))
    into.index_add_(0, heads, part)


def _operations(q: Any, v: Any, plan: str) -> int:
    return 2 * q[0] * SparsePlan.from_text(plan).pairs(q[1], q[2]) * (q[3] + v[3])


_sparse_parts, _ = operator(
    "sparse_parts",
    _attend,
    _gradients,
    results=("o", "logsum"),
    inputs=("q", "k", "v", "table"),
    shapes=lambda q, v: (fake(v), widened(q).new_empty(q.shape[:3])),
    # products again, and two for each of them
    flops=(_operations, lambda q, v, plan: 5 * _operations(q, v, plan) // 2),
)
