"""Kernel attention: averages of values weighted by products of features, in linear time.

    y_t = sum_s A_ts v_s / sum_s A_ts,    A_ts = fq_t . fk_s  e^{c_s}  prod_{s < u <= t} g_u

over s <= t when causal, over all s when not (then without gates). fq, fk are features (M), c_s the
level of a key and g_t in (0, 1] a gate (0 and 1 where there is none). Sums and states are float32
at least, whatever autocast says.

Levels and gates only ever enter as differences from the largest weight seen so far, whose log the
state carries: no weight overflows, and denominators need no epsilon where features are positive.
Cost: O(L (C (M + D_v) + M D_v)), C tokens a chunk (`kernel_chunks`); state M (D_v + 1) + 1 a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, ShapeError
from everyformer.core.leaving import leaves_torch
from everyformer.core.shared import advanced
from everyformer.engines.cuda import on_cuda
from everyformer.engines.kernel.chunks import (
    CPU,
    Carried,
    Inputs,
    backward,
    before_map,
    chunk_length,
    chunk_segment,
    forward,
    segment_count,
    segment_length,
)
from everyformer.engines.kernel.denominators import POSITIVE, Denominator, divided, fixed
from everyformer.engines.kernel.features import made
from everyformer.engines.kernel.maps import Kind, SegmentMap
from everyformer.engines.kernel.sums import KernelState
from everyformer.engines.operators import applied, operator
from everyformer.engines.ranges import fake, full_precision, returned, widened


def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    padding_mask: Tensor | None = None,
    level: Tensor | None = None,
    gate: Tensor | None = None,
    state: KernelState | None = None,
    guard: Denominator = POSITIVE,
    feature_map: SegmentMap | None = None,
) -> tuple[Tensor, KernelState]:
    """Causal averages (B, H, L, D_v) in v's dtype, and the state after them.

    Args:
        q, k: (B, H, L, M) features, or (B, H, L, D) what ``feature_map`` maps. v: (B, H, L, D_v).
        keep: (B, L) bool, which tokens are real; the others are not read.
        level: (B, H, L) log of a factor of each key's features.
        gate: (B, H, L) log g <= 0. The factor 1 - g_s is not applied: it belongs to ``level``.
        state: what was read before; it must have a level if and only if levels or gates are given.
        guard: of the denominators.
        feature_map: of queries and keys, which is made segment by segment; None: they are features.
    """
    rows = None if feature_map is None else feature_map.rows
    learned = rows is not None and rows.requires_grad
    if feature_map is not None and (k.is_cuda or q.shape[2] == 1 or learned):
        # kernels read features, and rows get no gradient inside
        q, (k, level) = made(feature_map, q)[0], _with_levels(feature_map, k, level)
        feature_map = None
    count = k.shape[3] if feature_map is None else feature_map.features(k.shape[3])
    levels = level is not None or gate is not None or rows is not None
    if levels and not (guard.kind == "signed" or guard == POSITIVE):
        raise ConfigError(
            f"the denominators of keys with levels or gates are known up to a factor, so {guard} "
            "has no meaning for them: use the guard 'signed', or 'positive' with `eps=0`"
        )
    if state is None:
        like = {"device": v.device, "dtype": v.dtype}
        state = KernelState.empty((k.shape[0], k.shape[1]), count, v.shape[3], levels, **like)
    elif (state.level is not None) != levels:
        raise ShapeError(
            "a state with a level goes with keys that have levels or gates, one without it with "
            "others: continue a state with the features that it was made with"
        )
    if 0 in v.shape[:3]:
        return v, state  # the chunks of no rows or no tokens have no size
    if padding_mask is not None and gate is not None:
        gate = gate.masked_fill(~padding_mask[:, None], 0)
    if not leaves_torch() and q.shape[2] == 1:
        y, sums, top = _one_token(Inputs(q, k, v, padding_mask, level, gate), state, guard)
    else:
        of_map = feature_map or (None, "")
        y, _, sums, top, _, _ = applied(
            _kernel_attention,
            q,
            k,
            v,
            padding_mask,
            level,
            gate,
            state.sums,
            state.level,
            guard.kind,
            guard.eps,
            *of_map,
        )
        y = y.transpose(1, 2)
    return y, KernelState(
        advanced(state.num_tokens, q.shape[2], padding_mask), sums, top if levels else None
    )


def _with_levels(by: SegmentMap, k: Tensor, level: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Features of all keys, and their levels added to those given."""
    features, own = made(by, k)
    return features, level if own is None else own if level is None else level + own


def read_all(
    k: Tensor, v: Tensor, padding_mask: Tensor | None = None, level: Tensor | None = None
) -> Tensor:
    """Sums (B, H, M, D_v + 1) over all keys, relative to the largest level of each head."""
    with full_precision(k):
        if level is not None:
            level = widened(level)
            level = (
                level
                if padding_mask is None
                else level.masked_fill(~padding_mask[:, None], -math.inf)
            )
            reached = level.detach().amax(2).clamp(min=torch.finfo(level.dtype).min)[..., None]
            k = widened(k) * torch.exp(level - reached)[..., None]
        return widened(k).mT @ _valued(v, padding_mask)


def ask(q: Tensor, sums: Tensor, guard: Denominator, dtype: torch.dtype) -> Tensor:
    """Averages (B, H, L, D_v) that the features ``q`` take of ``sums``."""
    with full_precision(q):
        return divided(widened(q) @ sums, guard)[0].to(dtype)


def _valued(v: Tensor, padding_mask: Tensor | None) -> Tensor:
    """v' (B, H, L, D_v + 1): the values and a one, zero at padding."""
    valued = torch.nn.functional.pad(widened(v), (0, 1), value=1.0)
    return (
        valued if padding_mask is None else valued.masked_fill(~padding_mask[:, None, :, None], 0)
    )


def _one_token(
    inputs: Inputs, state: KernelState, guard: Denominator
) -> tuple[Tensor, Tensor, Tensor | None]:
    """`kernel_attention` for L = 1, without chunks: two small products."""
    with full_precision(inputs.q):
        k, sums, top = widened(inputs.k), state.sums, state.level
        if top is not None:
            before = top if inputs.gate is None else top + widened(inputs.gate).squeeze(2)
            level = (
                torch.zeros_like(top) if inputs.level is None else widened(inputs.level)[:, :, 0]
            )
            if inputs.padding_mask is not None:
                level = level.masked_fill(~inputs.padding_mask, -math.inf)
            top = torch.maximum(before, level).detach()
            # before the first real token there is no weight at all
            empty = inputs.padding_mask is not None
            reached = top.clamp(min=torch.finfo(top.dtype).min) if empty else top
            sums = sums * torch.exp(before - reached)[..., None, None]
            k = k * torch.exp(level - reached)[..., None, None]
        heads = k.shape[:2]
        parts = (sums, k.mT, _valued(inputs.v, inputs.padding_mask))
        sums = torch.baddbmm(*(t.flatten(0, 1) for t in parts)).unflatten(0, heads)
        y = divided(widened(inputs.q) @ sums, guard)[0]
    return y.to(inputs.v.dtype), sums, top


def _segments(
    length: int, features: int, values: int, device: torch.device = CPU
) -> list[tuple[int, int]]:
    size = segment_length(features, values, device)
    return [(a, min(a + size, length)) for a in range(0, length, size)]


def _rows(part: Tensor, like: Tensor, start: int, stop: int) -> Tensor:
    """(X n, C, c) of a segment as (B, l, H, c)."""
    batch, heads = like.shape[:2]
    return part.view(batch, heads, -1, part.shape[2])[:, :, : stop - start].transpose(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor | None,
    gate: Tensor | None, sums: Tensor, top: Tensor | None, kind: str, eps: float,
    rows: Tensor | None, map_kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y (B, L, H, D_v), its denominators, the state after, and the states where segments meet.

    The last of those is the state after once more: a number that is never 1 leaves graphs open.
    """
    (batch, heads, length, values), guard = v.shape, Denominator(kind, eps)  # type: ignore[arg-type]
    inputs = Inputs(q, k, v, padding_mask, level, gate, _map(rows, map_kind))
    carried = Carried(sums.flatten(0, 1), None if top is None else top.flatten())
    y = v.new_empty(batch, length, heads, values)
    totals = sums.new_empty(batch, length, heads, 1)
    starts = [carried]
    with full_precision(q):
        for start, stop in _segments(length, sums.shape[2], values, k.device):
            part = chunk_segment(inputs.segment(start, stop), carried)
            average, total = divided(forward(part), guard)
            y[:, start:stop] = _rows(average, v, start, stop)
            totals[:, start:stop] = _rows(total, v, start, stop)
            carried = part.after
            starts.append(carried)
    tops = [c.level for c in starts if c.level is not None]
    return (
        y,
        totals,
        carried.sums.view_as(sums),
        sums.new_empty(0) if carried.level is None else carried.level.view(batch, heads).clone(),
        torch.stack([c.sums for c in starts]),
        torch.stack(tops) if tops else sums.new_empty(0),
    )


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor | None,
    gate: Tensor | None, y: Tensor, totals: Tensor, after: Tensor, starts: Tensor, tops: Tensor,
    grad_y: Tensor, grad_after: Tensor | None, kind: str, eps: float, rows: Tensor | None,
    map_kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, levels, gates and of the sums before.

    A level is the log of a factor of fk, so its gradient is fk . dfk; a log gate takes away from
    the levels of its own and all later keys, and adds to that of the state at the end.
    """
    inputs = Inputs(q, k, v, padding_mask, level, gate, _map(rows, map_kind))
    batch, heads, length, values = v.shape
    wide, guard = starts.dtype, Denominator(kind, eps)  # type: ignore[arg-type]
    dq, dk, dv = (starts.new_empty(t.shape) for t in (q, k, v))
    moved = starts.new_empty(batch, heads, length) if tops.numel() else None
    with full_precision(q):
        dsums = torch.zeros_like(after) if grad_after is None else grad_after.to(wide)
        dsums = dsums.flatten(0, 1)
        parts = list(enumerate(_segments(length, after.shape[2], values, k.device)))
        for n, (start, stop) in reversed(parts):
            before = Carried(starts[n], tops[n] if tops.numel() else None)
            part = chunk_segment(inputs.segment(start, stop), before)
            g = torch.zeros_like(part.v)
            _fill(_rows(g, v, start, stop), slice(start, stop), (y, totals, grad_y), guard)
            to_q, to_k, to_v, dsums = backward(part, g, dsums)
            of_level = None
            if moved is not None:
                of_level = (to_k * part.k).sum(2, keepdim=True)
                moved[:, :, start:stop] = _rows(of_level, v, start, stop)[..., 0].mT
            to_q, to_k = before_map(part, to_q, to_k, of_level)
            for into, part_of in zip((dq, dk, dv), (to_q, to_k, to_v), strict=True):
                found = _rows(part_of[..., : into.shape[3]], v, start, stop)
                into[:, :, start:stop] = found.transpose(1, 2)
        if padding_mask is not None:
            hidden = ~padding_mask[:, None, :, None]
            dk.masked_fill_(hidden, 0)
            dv.masked_fill_(hidden, 0)
            moved = None if moved is None else moved.masked_fill_(hidden[..., 0], 0)
        dgate = None
        if gate is not None and moved is not None:
            dgate = -moved.flip(2).cumsum(2).flip(2)
            if grad_after is not None:
                dgate += (grad_after * after).sum((2, 3))[..., None]
    none = starts.new_empty(0)
    return (
        returned(dq, q),
        returned(dk, k),
        returned(dv, v),
        none if level is None or moved is None else returned(moved, level),
        none.clone() if gate is None or dgate is None else returned(dgate, gate),
        dsums.view_as(after).contiguous(),
    )


def _map(rows: Tensor | None, kind: str) -> SegmentMap | None:
    return SegmentMap(rows, cast(Kind, kind)) if kind else None


def _fill(g: Tensor, span: slice, saved: tuple[Tensor, ...], guard: Denominator) -> None:
    """The gradient (B, l, H, D_v + 1) of Y' from that of y = Y'_values / total."""
    y, total, grad = (t[:, span] for t in saved)
    scaled = widened(grad) / total
    g[..., :-1] = scaled
    down = (scaled * widened(y)).sum(3, keepdim=True).neg_()
    still = fixed(total, guard)
    g[..., -1:] = down if still is None else down.masked_fill_(still, 0)


def _shapes(
    v: Tensor, sums: Tensor, top: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length, values = v.shape
    count = 1 + segment_count(length, sums.shape[2], values, v.device)
    none = sums.new_empty(0)
    return (
        v.new_empty(batch, length, heads, values),
        sums.new_empty(batch, length, heads, 1),
        fake(sums),
        none if top is None else fake(top),
        sums.new_empty(count, batch * heads, *sums.shape[2:]),
        none.clone() if top is None else top.new_empty(count, batch * heads),
    )


def _gradient_shapes(
    q: Tensor, k: Tensor, v: Tensor, level: Tensor | None, gate: Tensor | None, after: Tensor
) -> tuple[Tensor, ...]:
    logs = (after.new_empty(0) if t is None else fake(t) for t in (level, gate))
    return fake(q), fake(k), fake(v), *logs, fake(after)


def _counted(v: Any, features: int, within: int, states: int, fades: int) -> int:
    """Operations of a pass over v (B, H, L, D_v), whose last chunk counts whole.

    Multiplications: ``within`` for each pair of tokens of a chunk; ``states`` times M (D_v + 1) for
    each token; ``fades`` times as many for each pair of chunks of a segment.
    """
    state, products = features * (v[3] + 1), 0
    for chunks, size in _chunks(v, features):
        products += chunks * size * (size * within + states * state)
        products += chunks * (chunks + 1) * fades * state
    return int(2 * v[0] * v[1] * products)


def _operations(v: Any, sums: Any, rows: Any) -> int:
    """Products within chunks, the chunks' sums, what queries read of them, and those of the map."""
    counted = _counted(v, sums[2], within=sums[2] + v[3] + 1, states=2, fades=1)
    return counted + 2 * _mapping(v, sums[2], rows)


def _operations_back(v: Any, after: Any, rows: Any) -> int:
    """The weights and the states again, and two products for each of the forward pass."""
    within = 3 * after[2] + 2 * (v[3] + 1)
    return _counted(v, after[2], within=within, states=5, fades=2) + 4 * _mapping(v, after[2], rows)


def _mapping(v: Any, features: int, rows: Any) -> int:
    """Operations of W x for all queries or keys, whose last chunk counts whole."""
    tokens = sum(chunks * size for chunks, size in _chunks(v, features))
    return 0 if rows is None else int(2 * v[0] * v[1] * tokens * rows[1] * rows[2])


def _chunks(v: Any, features: int) -> Iterator[tuple[int, int]]:
    """Chunks of each segment, and their tokens."""
    for start, stop in _segments(v[2], features, v[3]):
        size = chunk_length(stop - start)
        yield -(-(stop - start) // size), size


_kernel_attention, _kernel_attention_backward = operator(
    "kernel_attention",
    _attend,
    _gradients,
    results=("y", "totals", "after", "last", "starts", "tops"),
    inputs=("q", "k", "v", "level", "gate", "sums"),
    shapes=_shapes,
    gradient_shapes=_gradient_shapes,
    flops=(_operations, _operations_back),
)
on_cuda(_kernel_attention, "kernel.call.forward", _attend)
on_cuda(_kernel_attention_backward, "kernel.call.backward", _gradients)
