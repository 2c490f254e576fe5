"""The keys with the largest products, exactly, in memory that the number of keys does not change.

    top_k over j of   q_i . k_j + b_j,    low_i <= place_j < high_i

Keys come in blocks of which the best are merged with the best so far. Within a block, of g numbers
that lie n / g apart only the largest is looked at first: the k largest numbers lie in the k groups
with the largest maxima, so all others fall away, twice over; a maximum of strips costs a tenth of
a selection. Squared distances are asked as  -|k_j - q_i|^2 = 2 q_i . k_j - |k_j|^2 - |q_i|^2.

Cost: O(L S D) time, O(L k) memory and `BUDGET` numbers. No gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

BLOCK = 8192
"""keys at a time"""
BUDGET = 1 << 22
"""products, and numbers of keys in the dtype of the queries, that are written out at a time"""
GROUP = 8
"""numbers of which the largest is looked at first"""


class Nearest(NamedTuple):
    """The best keys of every query, best first."""

    scores: Tensor
    """(..., L, k); -inf where fewer keys were visible"""
    keys: Tensor
    """(..., L, k) int64 among the keys, anything where the score is -inf"""


def nearest(
    queries: Tensor,
    keys: Tensor,
    count: int,
    *,
    bias: Tensor | None = None,
    places: Tensor | None = None,
    within: tuple[Tensor, Tensor] | None = None,
) -> Nearest:
    """The ``count`` best of ``keys`` (..., S, D), of any dtype, for ``queries`` (..., L, D).

    Args:
        count: k; with fewer keys than that, the last scores are -inf.
        bias: (..., S) added to the products of each key.
        places: (..., S) int64 of each key. within: ``low`` and ``high``, (..., L) int64: a query
            sees the keys with low <= place < high alone.

    Leading dimensions are equal; those of ``bias``, ``places`` and ``within`` may be 1.
    """
    lead, length, size = queries.shape[:-2], queries.shape[-2], keys.shape[-2]
    q, k = (t.reshape(-1, *t.shape[-2:]) for t in (queries.detach(), keys.detach()))
    low, high = within if within is not None else (None, None)
    rest = [
        None if t is None else t.detach().expand(*lead, t.shape[-1]).reshape(-1, t.shape[-1])
        for t in (bias, places, low, high)
    ]
    scores, index = _nearest(q, k, min(count, size), *rest)
    shape = (*lead, length, scores.shape[-1])
    scores, index = scores.view(shape), index.view(shape)
    missing = count - shape[-1]
    if missing:
        scores = torch.nn.functional.pad(scores, (0, missing), value=-math.inf)
        index = torch.nn.functional.pad(index, (0, missing))
    return Nearest(scores, index)


@torch.library.custom_op("everyformer::nearest", mutates_args=())
def _nearest(
    q: Tensor,
    k: Tensor,
    count: int,
    bias: Tensor | None,
    places: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Of queries (N, L, D) and keys (N, S, D): scores and indices (N, L, count)."""
    scores = q.new_full((*q.shape[:2], count), -math.inf)
    index = torch.zeros(scores.shape, dtype=torch.long, device=q.device)
    size = k.shape[1]
    for first in range(0, size, BLOCK):
        end = min(first + BLOCK, size)
        for n, rows in _pieces(q, end - first):
            block = k[n, first:end].to(q.dtype)
            for part in rows:
                s = q[n, part] @ block.mT
                if bias is not None:
                    s += bias[n, None, first:end]
                if places is not None and low is not None and high is not None:
                    _hide(s, places[n, None, first:end], low[n, part, None], high[n, part, None])
                best, at = largest(s, min(count, end - first))
                if first == 0 and best.shape[-1] == count:
                    scores[n, part], index[n, part] = best, at
                    continue
                both = torch.cat((scores[n, part], best), -1).topk(count)
                known = torch.cat((index[n, part], at + first), -1)
                scores[n, part], index[n, part] = both.values, known.gather(-1, both.indices)
    return scores, index


@_nearest.register_fake
def _(q: Tensor, k: Tensor, count: int, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:2], count)
    return q.new_empty(shape), q.new_empty(shape, dtype=torch.long)


@register_flop_formula(torch.ops.everyformer.nearest)
def _flops(q: torch.Size, k: torch.Size, *rest: object, **_: object) -> int:
    return 2 * q.numel() * k[1]


def _hide(s: Tensor, places: Tensor, low: Tensor, high: Tensor) -> None:
    """Put -inf into the products ``s`` (N, L, S) of keys outside of what their queries see.

    Most keys are seen by all: queries are asked about those before the first such one and behind
    the last alone.
    """
    sure = (places >= low.amax(-2, keepdim=True)) & (places < high.amin(-2, keepdim=True))
    known = sure.all(0).all(0)
    seen = known.nonzero()
    first, last = (0, 0) if seen.numel() == 0 else (int(seen[0]), int(seen[-1]) + 1)
    whole = first == last or not bool(known[first:last].all())
    for part in (slice(None),) if whole else (slice(first), slice(last, None)):
        at = places[..., part]
        if at.shape[-1]:
            s[..., part].masked_fill_((at < low) | (at >= high), -math.inf)


def _pieces(q: Tensor, keys: int) -> Iterator[tuple[slice, list[slice]]]:
    """Stretches of the N rows of ``q``, and for each those of its L queries, within the budget."""
    total, length, dim = q.shape
    queries = max(1, min(length, BUDGET // keys))
    rows = max(1, BUDGET // (keys * max(queries, dim)))
    parts = [slice(n, n + queries) for n in range(0, length, queries)]
    for n in range(0, total, rows):
        yield slice(n, n + rows), parts


def largest(scores: Tensor, count: int) -> Nearest:
    """The ``count`` largest of the last dimension of ``scores``, largest first."""
    candidates = _candidates(scores, count)
    if candidates is None:
        return Nearest(*scores.topk(count))
    values, at = scores.gather(-1, candidates).topk(count)
    return Nearest(values, candidates.gather(-1, at))


def _candidates(scores: Tensor, count: int) -> Tensor | None:
    """Indices among which the ``count`` largest lie; None where looking for them would not pay."""
    groups = scores.shape[-1] // GROUP
    if groups < 2 * count:
        return None
    whole = groups * GROUP
    most = scores[..., :whole].unflatten(-1, (GROUP, groups)).amax(-2)
    best = largest(most, count).keys
    steps = torch.arange(0, whole, groups, device=scores.device)
    found = (best[..., None, :] + steps[:, None]).flatten(-2)
    rest = torch.arange(whole, scores.shape[-1], device=scores.device)
    return torch.cat((found, rest.expand(*found.shape[:-1], -1)), -1)
