"""The keys with the largest products, exactly, in memory that the number of keys does not change.

    top_k over j of   q_i . k_j,    low_i <= place_j < high_i

Keys come in blocks. Within the first, of g numbers that lie n / g apart only the largest is looked
at first: the k largest numbers lie in the k groups with the largest maxima, so all others fall
away, twice over; a maximum of strips costs a tenth of a selection. In the next blocks only what
exceeds the k-th best so far is collected, and the best of it are selected as often as there are k
more. Few products are written out and sorted through at once.

Cost: O(L S D) time, O(L k) memory and `BUDGET` numbers. No gradient.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from everyformer.core.devices import readable
from everyformer.engines.content.best import Best, Nearest

BLOCK = 8192
"""keys at a time, and more where queries are few"""
BUDGET = 1 << 22
"""products, and numbers of keys in the dtype of the queries, that are written out at a time; what
fits into caches is fastest"""
SMALL = 1 << 19
"""products of all queries and keys up to which they are written out at once and sorted through"""
FEW = 16
"""queries that meet long blocks of keys"""


def nearest(
    queries: Tensor,
    keys: Tensor,
    count: int,
    *,
    places: Tensor | None = None,
    within: tuple[Tensor, Tensor] | None = None,
) -> Nearest:
    """The ``count`` best of ``keys`` (..., S, D), of any dtype, for ``queries`` (..., L, D).

    Args:
        count: k; with fewer keys than that, the last scores are -inf.
        places: (..., S) int64 of each key. within: ``low`` and ``high``, (..., L) int64: a query
            sees the keys with low <= place < high alone.

    Leading dimensions are equal; those of ``places`` and ``within`` may be 1.
    """
    lead, length, size = queries.shape[:-2], queries.shape[-2], keys.shape[-2]
    q, k = (t.reshape(-1, *t.shape[-2:]) for t in (queries.detach(), keys.detach()))
    low, high = within if within is not None else (None, None)
    bounds = [
        None if t is None else t.detach().expand(*lead, t.shape[-1]).reshape(-1, t.shape[-1])
        for t in (places, low, high)
    ]
    small = len(q) * length * size <= SMALL and k.dtype == q.dtype
    # not through the operator, whose calls cost as much as a few products
    search = _at_once if small and readable(q) else _nearest
    scores, index = search(q, k, min(count, size), *bounds)
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
    places: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Scores and indices (N, L, count) of queries (N, L, D) and keys (N, S, D)."""
    scores = q.new_empty((*q.shape[:2], count))
    index = torch.empty(scores.shape, dtype=torch.long, device=q.device)
    size, same = k.shape[1], k.dtype == q.dtype
    step = BLOCK
    if same and q.shape[1] <= FEW:
        # half of them: products may be written twice
        step = max(step, BUDGET // (2 * max(1, len(q) * q.shape[1])))
    step = max(1, min(size, step))
    # written again and again: fresh pages of large tensors cost as much as selecting
    space, room = q.new_empty(0), q.new_empty(0)
    for rows, part in pieces(q.shape[:2], step, 1 if same else q.shape[-1]) if size else ():
        queries = q[rows, part]
        best = Best(queries, size, count)
        for first in range(0, size, step):
            keys = slice(first, min(first + step, size))
            block = k[rows, keys]
            if not same:
                room, converted = _room(room, block.shape)
                block = converted.copy_(block)
            space, s = _room(space, (*queries.shape[:2], block.shape[1]))
            torch.bmm(queries, block.mT, out=s)
            if places is not None and low is not None and high is not None:
                _hide(s, places[rows, None, keys], low[rows, part, None], high[rows, part, None])
            best.meet(s, first)
        best.finalise(scores[rows, part], index[rows, part])
    return scores, index


@_nearest.register_fake
def _(q: Tensor, k: Tensor, count: int, *bounds: Tensor | None) -> tuple[Tensor, Tensor]:
    shape = (*q.shape[:2], count)
    return q.new_empty(shape), q.new_empty(shape, dtype=torch.long)


@register_flop_formula(torch.ops.everyformer.nearest)
def _flops(q: torch.Size, k: torch.Size, *rest: object, **_: object) -> int:
    return 2 * q.numel() * k[1]


def _at_once(
    q: Tensor,
    k: Tensor,
    count: int,
    places: Tensor | None,
    low: Tensor | None,
    high: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`_nearest` of few products, of which not even blocks would pay."""
    if q.shape[1] == 1 and len(q) > 1 and k.shape[1] > BLOCK:
        # by rows of keys as they lie; a single one is left to one core that way
        s = torch.bmm(k, q.mT).mT
    else:
        s = torch.bmm(q, k.mT)
    if places is not None and low is not None and high is not None:
        first, last = places.aminmax()
        if first < low.amax() or last >= high.amin():
            at = places[:, None]
            s.masked_fill_((at < low[..., None]) | (at >= high[..., None]), -math.inf)
    values, index = s.topk(count)
    return values, index


def _room(space: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """``space``, or more of it, and as much of that as ``shape`` asks for."""
    if space.numel() < math.prod(shape):
        space = space.new_empty(math.prod(shape))
    return space, space[: math.prod(shape)].view(shape)


def _hide(s: Tensor, places: Tensor, low: Tensor, high: Tensor) -> None:
    """Put -inf into the products ``s`` (N, L, S) of keys outside of what their queries see.

    Most keys are seen by all: bounds are compared for those before the first such one and after
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


def pieces(sizes: Sequence[int], keys: int, written: int = 1) -> Iterator[tuple[slice, slice]]:
    """Stretches of N rows and of L queries, of the ``sizes`` (N, L), within the budget.

    Args:
        keys: keys of each query, or numbers of these.
        written: numbers of each key that are written out.
    """
    total, length = sizes
    queries = max(1, min(length, BUDGET // keys))
    rows = max(1, BUDGET // (keys * max(queries, written)))
    for n in range(0, total, rows):
        for part in range(0, length, queries):
            yield slice(n, n + rows), slice(part, part + queries)
