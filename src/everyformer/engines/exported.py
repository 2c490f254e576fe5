"""Operators of this library in the operators of torch, for graphs that leave it, such as ONNX's.

`everyformer.engines.operators.applied` takes these forms where torch writes a module as ONNX, and
`export_onnx` where it writes a model. Each gives an operator's results (not those that only
gradients read) for lengths that the graph leaves open. Where the operator is linear in the length
its form is too: chunks of tokens, one after the other, by the higher-order operator `scan`, which
ONNX has; within `one_node` linear recurrences are one operator of its own each. Softmax averages
keep a largest key for every query and channel, so that no range of keys is beyond them. Forms of
the operators whose cost is quadratic follow their equations.

Letters as in the operators' own files; C tokens a chunk, n chunks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.scan import scan_op
from torch.onnx.ops import symbolic_multi_out

from everyformer.engines.averages.banded import _banded_average
from everyformer.engines.averages.dense import _dense_average
from everyformer.engines.averages.factors import _band_product
from everyformer.engines.averages.planar import _pairs, _planar_average
from everyformer.engines.averages.running import _running_average
from everyformer.engines.kernel.attention import _kernel_attention
from everyformer.engines.kernel.denominators import Denominator, divided
from everyformer.engines.operators import exported_as
from everyformer.engines.ranges import widened
from everyformer.engines.softmax.spans import _soft_band

CHUNK = 64
RUNTIME = "com.microsoft"
"""domain of onnxruntime's operators"""
Sums = tuple[Tensor, ...]
"""Averages on the way: the largest key, and relative to it the sums of weights and of values"""
_one_node: ContextVar[bool] = ContextVar("one_node", default=False)


@contextmanager
def one_node() -> Iterator[None]:
    """Within it a linear recurrence in float32 leaves as one node, ``LinearAttention`` of
    onnxruntime's domain, whose inputs are those of the operator in opset 27."""
    token = _one_node.set(True)
    try:
        yield
    finally:
        _one_node.reset(token)


@exported_as(_band_product)
def band_product(u: Tensor, v: Tensor, count: int) -> Tensor:
    """Each row's window looked up."""
    window = torch.arange(u.shape[1], device=u.device)[:, None]
    window = window + torch.arange(count, device=u.device)
    return (widened(u)[:, :, None] * widened(v)[:, window]).sum(-1)


@exported_as(_running_average)
def running_average(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    sums = _prefixes(_sums(k, v)) if not _in_one_node(v) else _recurrent_average(k, v)
    top, total, _ = sums
    return torch.where(total > 0, top + total.log(), -math.inf), _ratio(sums).to(v.dtype)


@exported_as(_banded_average)
def banded_average(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int
) -> tuple[Tensor, Tensor]:
    """Keys outside the band by running sums from both ends, those inside one offset at a time."""
    tokens, offsets = _sums(k, v), bias.shape[-1]
    before = offsets - 1 if causal else offsets // 2
    length = k.shape[1] - lead
    sums = _shifted(_prefixes(tokens), before + 1, lead, length)
    if not causal:
        later = _prefixes(tuple(t.flip(1) for t in tokens))
        later = _shifted(later, offsets - before, 0, length)
        sums = _merged(sums, tuple(t.flip(1) for t in later))
    around = tuple(
        F.pad(t, (0, 0, 0, 0, before, offsets), value=fill)
        for t, fill in zip(tokens, _NOTHING, strict=True)
    )
    at = lead + torch.arange(length, device=k.device)

    def one(*given: Tensor) -> Sums:
        (biases, offset, at), sums, around = given[3:6], given[:3], given[6:]
        top, weight, values = (t.index_select(1, at + offset) for t in around)
        return _merged(sums, (top + biases.mT[None, :, :, None], weight, values))

    columns = widened(bias).movedim(2, 0), torch.arange(offsets, device=k.device)
    top, total, values = _carried(one, sums, columns, (at, *around))
    return _ratio((top, total, values)).to(v.dtype), total


@exported_as(_dense_average)
def dense_average(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None,
    causal: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One query after the other."""
    keys, values = widened(k), widened(v)
    w = widened(rows) if columns is None else widened(rows) @ widened(columns).mT
    if causal:
        at = torch.arange(w.shape[1], device=w.device)
        last = at if offset is None else at + offset[:, None]
        future = torch.arange(w.shape[2], device=w.device) > last[..., None]
        w = w.masked_fill(future, -math.inf)

    def one(count: Tensor, w: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        logs = keys + w.mT[None, :, :, None]
        top = logs.amax(1, keepdim=True).clamp(min=torch.finfo(logs.dtype).min)
        weights = (logs - top).exp()
        total = weights.sum(1)
        return count + 1, (weights * values).sum(1) / total.clamp(min=0.5), total

    start = torch.zeros((), dtype=torch.long, device=w.device)
    _, o, total = _carried(one, [start], [w.movedim(1, 0)], (keys, values))
    return o.movedim(0, 1).to(v.dtype), total.movedim(0, 1), keys.new_empty(0)


@exported_as(_planar_average)
def planar_average(k: Tensor, v: Tensor, kernel: Tensor, lines: int) -> tuple[Tensor, Tensor]:
    w = _pairs(widened(kernel), lines, k.shape[1])
    return dense_average(k, v, w, None, None, False, False)[:2]


@exported_as(_soft_band)
def soft_band(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, ends: Tensor, first: Tensor | None,
    last: Tensor | None, seed: Tensor | None, ramp: float, before: int, near: int, scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All pairs, as the equation has them."""
    q, k, table, ends = (widened(t) for t in (q, k, table, ends))
    length, source = q.shape[2], k.shape[2]
    keys = torch.arange(source, device=q.device)
    column = keys - torch.arange(source - length, source, device=q.device)[:, None] + before
    inside = (column >= 0) & (column < len(table))
    slope = (ends[..., None] - ((before - column).abs() - near)) / ramp
    mask = inside & (slope > 0)
    if first is not None:
        mask = mask & (keys >= first[:, None, None, None])
    if last is not None:
        mask = mask & (keys < last[:, None, None, None])
    places = column.clamp(0, len(table) - 1).expand(*q.shape[:2], -1, -1)
    scores = (q @ k.mT + (q @ table.T).gather(3, places)) * scale
    scores = scores.masked_fill(~mask, -math.inf)
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - top).exp() * slope.clamp(0, 1)
    total = weights.sum(-1, keepdim=True)
    o = weights @ widened(v) / torch.where(total > 0, total, 1)
    return o.to(v.dtype), (top + total.log()).squeeze(-1)


@exported_as(_kernel_attention)
def kernel_attention(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, level: Tensor | None,
    gate: Tensor | None, sums: Tensor, top: Tensor | None, kind: str, eps: float,
    _rows: Tensor | None, _map_kind: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A state from chunk to chunk, products of pairs inside of one; features were made."""
    guard, length = Denominator(kind, eps), v.shape[2]  # type: ignore[arg-type]
    values = F.pad(widened(v), (0, 1), value=1.0)
    if padding_mask is not None:
        values = values.masked_fill(~padding_mask[:, None, :, None], 0)
    none = sums.new_empty(0)
    if top is not None:
        logs = torch.zeros_like(values[..., 0]) if level is None else widened(level)
        logs = logs if padding_mask is None else logs.masked_fill(~padding_mask[:, None], -math.inf)
        gates = torch.zeros_like(logs) if gate is None else widened(gate)
    if _in_one_node(v):
        k, decay, last = widened(k), None, none
        if top is not None:
            tops, weights, decay = _relative(top, logs, gates)
            k, last = k * weights[..., None], tops[..., -1]
        y, after = _recurrent(widened(q), k, values, sums, decay)
        y, totals = divided(y, guard)
        return y.to(v.dtype), totals, after, last, none, none.clone()
    parts = [_chunks(widened(t)) for t in (q, k, values)]
    if top is None:

        def plain(state: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return state + k.mT @ v, q @ state + (q @ k.mT).tril() @ v

        after, y = _carried(plain, [sums], parts)
        last = none
    else:
        parts += [_chunks(logs, -math.inf), _chunks(gates)]
        lowest = torch.finfo(logs.dtype).min

        def levelled(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            sums, top, q, k, v, level, gate = given
            # all levels as they were before the chunk's gates
            faded = gate.cumsum(2)
            level = level - faded
            earlier = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
            pairs = torch.where(earlier, level[..., None, :], -math.inf)
            reached = torch.maximum(top[..., None], pairs.amax(-1)).clamp(min=lowest)
            weights = q @ k.mT * (pairs - reached[..., None]).exp()
            y = (top[..., None] - reached).exp()[..., None] * (q @ sums) + weights @ v
            end = reached[..., -1]
            own = (level - end[..., None]).exp()[..., None]
            sums = (top - end).exp()[..., None, None] * sums + k.mT @ (own * v)
            return sums, torch.maximum(top, level.amax(2)) + faded[..., -1], y

        after, last, y = _carried(levelled, (sums, top), parts)
    y = y.movedim(0, 2).flatten(2, 3)[:, :, :length].transpose(1, 2)
    y, totals = divided(y, guard)
    return y.to(v.dtype), totals, after, last, none.clone(), none.clone()


def _in_one_node(v: Tensor) -> bool:
    return _one_node.get() and widened(v).dtype == torch.float32


def _recurrent(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Read-outs y (B, L, H, V) and the state (B, H, M, V) behind them, by one node.

        S_t = e^{g_t} S_{t-1} + k_t v_t^T,    y_t = S_t^T q_t

    of q, k (B, H, L, M), v (B, H, L, V), and g ``decay`` (B, H, L), at most 0 (None: 0).
    """
    inputs = [t.transpose(1, 2).flatten(2) for t in (q, k, v)]
    inputs += [state] if decay is None else [state, decay.transpose(1, 2)]
    heads, rule = v.shape[1], "linear" if decay is None else "gated"
    y, after = symbolic_multi_out(
        f"{RUNTIME}::LinearAttention",
        inputs,
        {"q_num_heads": heads, "kv_num_heads": heads, "scale": 1.0, "update_rule": rule},
        dtypes=[v.dtype, v.dtype],
        shapes=[inputs[2].shape, state.shape],
        version=1,
    )
    return y.unflatten(2, (heads, v.shape[3])), after


def _relative(top: Tensor, logs: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For weights whose ``logs`` (B, H, L) fade by ``gates`` (B, H, L), at most 0: the log of the
    largest so far, begun as ``top`` (B, H), each weight relative to it, and the log of how much
    what came before then fades."""

    def larger(top: Tensor, log: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        top = torch.maximum(top + gate, log)
        return top, top.clone()

    tops = _carried(larger, [top], [logs.movedim(2, 0), gates.movedim(2, 0)])[1].movedim(0, 2)
    reached = tops.clamp(min=torch.finfo(tops.dtype).min)
    before = torch.cat([top[..., None], tops[..., :-1]], 2)
    return tops, (logs - reached).exp(), before + gates - reached


def _recurrent_average(k: Tensor, v: Tensor) -> Sums:
    """Sums over all tokens up to each: a head of `_recurrent` for each key."""
    (batch, length, heads, keys), size = k.shape, v.shape[3] // k.shape[3]
    logs = widened(k).flatten(2).transpose(1, 2)
    values = widened(v).reshape(batch, length, heads * keys, size).transpose(1, 2)
    values = F.pad(values, (0, 1), value=1.0)
    none = torch.full_like(logs[..., 0], -math.inf)
    tops, weights, decay = _relative(none, logs, torch.zeros_like(logs))
    first = values.new_zeros(batch, heads * keys, 1, size + 1)
    one = torch.ones_like(weights)[..., None]
    y, _ = _recurrent(one, weights[..., None], values, first, decay)
    y = y.unflatten(2, (heads, keys))
    return tops.transpose(1, 2).unflatten(2, (heads, keys)), y[..., -1], y[..., :-1].flatten(3)


_NOTHING = -math.inf, 0.0, 0.0


def _carried(
    step: Callable[..., Sequence[Tensor]],
    first: Sequence[Tensor],
    inputs: Sequence[Tensor],
    others: Sequence[Tensor] = (),
) -> list[Tensor]:
    """The last state, and the outputs of all steps stacked.

    A step maps a state (begun as ``first``), each input's slice and the ``others`` to the next
    state and outputs. (`scan` itself would compile the step, which lengths left open forbid.)
    """
    # no gradients go through graphs that leave; states keep one layout in memory
    over, given = ([t.detach() for t in part] for part in (inputs, others))
    start = [t.detach().clone(memory_format=torch.contiguous_format) for t in first]
    return list(scan_op(step, start, over, tuple(given)))


def _count(length: int) -> int:
    """Chunks of ``length`` tokens and one of nothing: a number that is 1 where a graph is traced
    would be taken for 1 everywhere."""
    return (length + CHUNK - 1) // CHUNK + 1


def _chunks(t: Tensor, fill: float = 0.0) -> Tensor:
    """``t`` (B, H, L, ...) as (n, B, H, C, ...), filled up."""
    count = _count(t.shape[2])
    rest = (0, 0) * (t.dim() - 3) + (0, count * CHUNK - t.shape[2])
    return F.pad(t, rest, value=fill).unflatten(2, (count, CHUNK)).movedim(2, 0)


def _sums(k: Tensor, v: Tensor) -> Sums:
    """Tokens of k (B, S, H, K) and v (B, S, H, V), each alone; no weight where a key is -inf."""
    k, v = widened(k), widened(v)
    seen = (k > -math.inf).to(k.dtype)
    return k, seen, seen * v


def _merged(a: Sums, b: Sums) -> Sums:
    top = torch.maximum(a[0], b[0])
    reached = top.clamp(min=torch.finfo(top.dtype).min)
    first, second = (a[0] - reached).exp(), (b[0] - reached).exp()
    return top, a[1] * first + b[1] * second, a[2] * first + b[2] * second


def _ratio(sums: Sums) -> Tensor:
    """Averages; 0 of nothing (the largest key of any weighs 1)."""
    return sums[2] / sums[1].clamp(min=0.5)


def _shifted(sums: Sums, by: int, start: int, length: int) -> Sums:
    """For token t of those from ``start`` on, what stands ``by`` places before it."""
    return tuple(
        F.pad(t, (0, 0, 0, 0, by, 0), value=fill)[:, start : start + length]
        for t, fill in zip(sums, _NOTHING, strict=True)
    )


def _prefixes(tokens: Sums) -> Sums:
    """Sums over all tokens up to each: by doubling inside chunks, then from chunk to chunk."""
    length = tokens[0].shape[1]
    count = _count(length)
    rest = (0, 0, 0, 0, 0, count * CHUNK - length)
    # n chunks of C tokens
    inside = tuple(
        F.pad(t, rest, value=fill).unflatten(1, (count, CHUNK))
        for t, fill in zip(tokens, _NOTHING, strict=True)
    )
    step = 1
    while step < CHUNK:
        before = tuple(
            F.pad(t, (0, 0, 0, 0, step, 0), value=fill)[:, :, :CHUNK]
            for t, fill in zip(inside, _NOTHING, strict=True)
        )
        inside = _merged(before, inside)
        step *= 2

    def carry(*given: Tensor) -> tuple[Tensor, ...]:
        return *_merged(given[:3], given[3:]), *(t.clone() for t in given[:3])

    ends = tuple(t[:, :, -1].movedim(1, 0) for t in inside)
    nothing = tuple(
        torch.full_like(t[:, 0, 0], fill) for t, fill in zip(inside, _NOTHING, strict=True)
    )
    carried = _carried(carry, nothing, ends)[3:]
    whole = _merged(tuple(t.movedim(0, 1)[:, :, None] for t in carried), inside)
    return tuple(t.flatten(1, 2)[:, :length] for t in whole)
