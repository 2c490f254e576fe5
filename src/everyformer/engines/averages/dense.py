"""Softmax averages with a bias for every pair of positions, shared by channels and by the batch.

    o_t = sum_t' p V_t',   p = softmax over t' of K_t' + w_{t,t'}

exp(K + w) factorises, so numerator and denominator are one product exp(w) [exp(K) V | exp(K)]. It
is taken a block of rows at a time: w may come as two factors and need not be held whole, but up to
64 MB of exp(w) are saved for the gradients. Rows whose range forbids one reference (see ``ranges``)
are averaged exactly, tile by tile, with the maximum of every row and channel. Nothing of size
L x S x channels is ever built.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.core.devices import at_once
from everyformer.engines.averages.running import fill_sums, inputs_gradient, sums_gradient
from everyformer.engines.cuda import fused, on_cuda
from everyformer.engines.operators import applied, operator
from everyformer.engines.products import add_product, halves, product
from everyformer.engines.ranges import (
    bias_limit,
    full_precision,
    one_reference,
    per_key,
    returned,
    widened,
)

_ROWS = 1024
"""rows of w made at a time: enough for the products' full rate, few enough for the cache"""
_SAVED = 1 << 24
"""entries of exp(w) saved for the gradients (64 MB); more are made again, 7% of the time"""
_TILE = 1 << 21
"""entries of a tile of the exact path"""
_RANK, _PAIRS = 128, 1 << 21
"""of the factors of w, up to which Triton's kernels hold a block of their gradients; and of
queries and keys, up to which they are faster than products of whole matrices"""


def dense_average(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, *, causal: bool,
    offset: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Averages of ``v`` (B, S, H, V) for L queries.

    Args:
        k: (B, S, H, K) keys, K = V or 1; -inf hides a token.
        v: (B, S, H, V) values.
        rows: w itself (H, L, S), or its factor (H, L, r).
        columns: None, or the other factor (H, S, r): w = rows columns^T.
        causal: query t sees keys up to t (and the first key is a real one).
        offset: (H,) int64, causal only: query t sees keys up to t + offset instead.

    Returns:
        (B, L, H, V) in v's dtype; zero where nothing is seen.
    """
    inputs = [t for t in (k, v, rows, columns) if t is not None]
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    o, _, _ = applied(_dense_average, k, v, rows, columns, offset, causal, keep)
    return o


class _Call(NamedTuple):
    """The arguments in full precision, with what all row blocks share."""

    k: Tensor
    v: Tensor
    rows: Tensor
    columns: Tensor | None
    offset: Tensor | None
    causal: bool
    small: bool
    """whether exp(w) may be taken as it is"""
    reference: Tensor | None
    """(B, 1, H, K), None where the keys need the exact path"""
    products: Tensor
    """X = [exp(K) V | exp(K)] relative to the reference: (H, S, B (V + K))"""
    half: bool
    """whether exp(w) and X are multiplied in bfloat16"""


class _Block(NamedTuple):
    """Some rows of w, up to the last key that one of them sees."""

    span: slice
    w: Tensor
    """(H, R, keys): exp(w), each row to a scale of its own; on the exact path w itself"""
    exact: bool


def _prepare(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None, causal: bool
) -> _Call:
    half = halves(v, large=True)
    k, v = widened(k), widened(v)
    rows = rows.to(k.dtype)
    bound = rows.abs().amax()
    if columns is not None:
        columns = columns.to(k.dtype)
        # Cauchy-Schwarz spares a pass over w
        bound = rows.norm(dim=-1).amax() * columns.norm(dim=-1).amax()
    reference, fits = one_reference(k, causal)
    batch, length, heads, values = v.shape
    products = k.new_empty(heads, length, batch, values + k.shape[-1])
    if fits:
        fill_sums(products.permute(2, 1, 0, 3), k, v, reference)
    return _Call(
        k, v, rows, columns, offset, causal, bool(bound <= bias_limit(k.dtype)),
        reference if fits else None, products.flatten(2), half,
    )  # fmt: skip


def _blocks(call: _Call, saved: Tensor, filled: bool = False) -> Iterator[_Block]:
    """Blocks of w from the first row to the last.

    ``saved`` is room for all of them, or nothing; ``filled``: it holds them already.
    """
    (heads, length), source = call.rows.shape[:2], call.k.shape[1]
    size = _height(call)
    offset = call.offset if call.offset is not None else call.rows.new_zeros(heads).long()
    latest, earliest = (int(offset.max()), int(offset.min())) if call.causal else (source, source)
    room, used = (saved if saved.numel() else _room(call)), 0
    for first in range(0, length, size):
        last = min(first + size, length)
        span, keys = slice(first, last), min(source, last + latest)
        w = _shaped(room[used:], heads, last - first, keys)
        used += w.numel() if saved.numel() else 0
        if filled:
            yield _Block(span, w, False)
            continue
        if call.columns is None:
            w.copy_(call.rows[:, span, :keys])
        else:
            torch.bmm(call.rows[:, span], call.columns[:, :keys].transpose(1, 2), out=w)
        low = None if call.small else w.amin()
        if call.causal:
            edge = min(keys, first + earliest + 1)
            query = torch.arange(first, last, device=w.device) + offset[:, None]
            hidden = torch.arange(edge, keys, device=w.device) > query[..., None]
            w[..., edge:].masked_fill_(hidden, -math.inf)
        exact = call.reference is None
        if low is not None and not exact:
            top = w.amax(2, keepdim=True)
            exact = not bool((top - low).amax() <= bias_limit(w.dtype))
            w = w if exact else w.sub_(top)
        yield _Block(span, w if exact else w.exp_(), exact)


def _height(call: _Call) -> int:
    """Rows of a block, of all heads together about `_ROWS`."""
    heads, length = call.rows.shape[:2]
    return min(length, max(16, at_once(_ROWS, call.rows.device) // heads))


def _room(call: _Call) -> Tensor:
    """Memory for one block: fresh memory for each would cost a fifth of the products' time."""
    return call.k.new_empty(call.rows.shape[0] * _height(call) * call.k.shape[1])


def _shaped(room: Tensor, *shape: int) -> Tensor:
    return room[: math.prod(shape)].view(shape)


def _room_to_save(k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, keep: bool) -> Tensor:
    """Room for exp(w) of all pairs if it is to be saved, else nothing."""
    pairs = rows.shape[0] * rows.shape[1] * k.shape[1]
    most = 0 if _fused(k, v, rows, columns) else at_once(_SAVED, k.device)
    return widened(k).new_empty(pairs if keep and pairs <= most else 0)


def _fused(k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, *_: Any) -> bool:
    """Whether Triton's kernels take a call, which make exp(w) again and save nothing."""
    few = rows.shape[1] * k.shape[1] <= _PAIRS
    return few and fused(k, v, rows, columns) and (columns is None or rows.shape[2] <= _RANK)


def _averages(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None,
    causal: bool, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o, and for the gradients denominators (log-sums of exact rows) and, if saved, exp(w)."""
    with full_precision(k):
        call, values = _prepare(k, v, rows, columns, offset, causal), v.shape[-1]
        saved = _room_to_save(k, v, rows, columns, keep)
        o = call.v.new_empty(v.shape[0], rows.shape[1], *v.shape[2:])
        total = call.k.new_empty(*o.shape[:3], k.shape[-1])
        for span, w, exact in _blocks(call, saved):
            if exact:
                o[:, span], total[:, span] = _exact_forward(call, w)
                continue
            y = product(w, call.products[:, : w.shape[2]], call.half)
            y = y.unflatten(2, (v.shape[0], -1)).permute(2, 1, 0, 3)
            total[:, span] = y[..., values:]
            torch.div(y[..., :values], y[..., values:], out=o[:, span])
    return returned(o, v), total, saved


def _gradients(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, offset: Tensor | None,
    o: Tensor, total: Tensor, saved: Tensor, grad_o: Tensor, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Per block dX = exp(w)^T Y and dw = exp(w) * (Y X^T); then dK = V dV + exp(K) dexp(K)."""
    with full_precision(k):
        call = _prepare(k, v, rows, columns, offset, causal)
        g, c = sums_gradient(o, grad_o, k.shape[-1])
        dx, own = torch.zeros_like(call.products), None
        drows, room = torch.zeros_like(call.rows), _room(call)
        dcolumns = k.new_empty(0) if call.columns is None else torch.zeros_like(call.columns)
        filled = saved.numel() > 0 and call.small and call.reference is not None
        for span, w, exact in _blocks(call, saved if filled else saved[:0], filled):
            seen = w.shape[2]
            if exact:
                own = own or (torch.zeros_like(call.k), torch.zeros_like(call.v))
                dw = _exact_backward(call, w, total[:, span], g[:, span], c[:, span], own)
            else:
                y = torch.cat([g[:, span] / total[:, span], c[:, span] / total[:, span]], -1)
                y = y.permute(2, 1, 0, 3).flatten(2)
                add_product(dx[:, :seen], w.transpose(1, 2), y, call.half)
                dw = _weight_gradient(call, y, w, _shaped(room, *w.shape))
            if call.columns is None:
                drows[:, span, :seen] = dw
            else:
                drows[:, span] = torch.bmm(dw, call.columns[:, :seen])
                dcolumns[:, :seen].baddbmm_(dw.transpose(1, 2), call.rows[:, span])
        dk, dv = _from_products(call, dx) if own is None else own
        if own is not None and call.reference is not None:
            dk, dv = (a + b for a, b in zip(own, _from_products(call, dx), strict=True))
    return returned(dk, k), returned(dv, v), returned(drows, rows), returned(dcolumns, rows)


def _weight_gradient(call: _Call, y: Tensor, w: Tensor, room: Tensor) -> Tensor:
    """exp(w) * (Y X^T), in ``room`` where that spares memory of its own."""
    x = call.products[:, : w.shape[2]].transpose(1, 2)
    dw = product(y, x, True) if call.half else torch.bmm(y, x, out=room)
    return dw.mul_(w)


def _from_products(call: _Call, dx: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of k and v from that of X."""
    values = call.v.shape[-1]
    x, dx = (t.unflatten(2, (call.v.shape[0], -1)).permute(2, 1, 0, 3) for t in (call.products, dx))
    return inputs_gradient(call.v, x[..., values:], dx)


def _tiles(call: _Call, bias: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and keys of one tile after the other: all keys of some rows, then the next rows."""
    batch, _, heads, values = call.v.shape
    tall = min(bias.shape[1], 32)
    wide = max(1, at_once(_TILE, bias.device) // (batch * tall * heads * values))
    for i in range(0, bias.shape[1], tall):
        for j in range(0, bias.shape[2], wide):
            yield slice(i, i + tall), slice(j, min(j + wide, bias.shape[2]))


def _scores(call: _Call, bias: Tensor, i: slice, j: slice) -> Tensor:
    """K + w of a tile: (B, R, S, H, K)."""
    return call.k[:, None, j] + bias[:, i, j].permute(1, 2, 0)[None, ..., None]


def _exact_forward(call: _Call, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Averages and log-sums of some rows, with the maximum of each row and channel."""
    batch, _, heads, values = call.v.shape
    shape = (batch, bias.shape[1], heads)
    top = call.k.new_full((*shape, call.k.shape[-1]), torch.finfo(call.k.dtype).min)
    total, summed = torch.zeros_like(top), call.v.new_zeros(*shape, values)
    for i, j in _tiles(call, bias):
        scores = _scores(call, bias, i, j)
        higher = torch.maximum(top[:, i], scores.amax(2))
        fade, weight = torch.exp(top[:, i] - higher), torch.exp(scores - higher[:, :, None])
        total[:, i] = total[:, i] * fade + weight.sum(2)
        summed[:, i] = summed[:, i] * fade + (weight * call.v[:, None, j]).sum(2)
        top[:, i] = higher
    # the largest score adds 1 to the total: only a row without tokens is below
    return summed / total.clamp(min=0.5), top + total.log()


def _exact_backward(
    call: _Call, bias: Tensor, lse: Tensor, g: Tensor, c: Tensor, own: tuple[Tensor, Tensor]
) -> Tensor:
    """Adds to the gradients ``own`` of k and v; gives that of some rows of w."""
    dw, (dk, dv) = torch.zeros_like(bias), own
    lse = lse.clamp(min=torch.finfo(lse.dtype).min)
    for i, j in _tiles(call, bias):
        p = torch.exp(_scores(call, bias, i, j) - lse[:, i, None])
        dv[:, j] += (p * g[:, i, None]).sum(1)
        pairs = p * (per_key(g[:, i, None] * call.v[:, None, j], p.shape[-1]) + c[:, i, None])
        dk[:, j] += pairs.sum(1)
        dw[:, i, j] = pairs.sum((0, 4)).permute(2, 0, 1)
    return dw


def _shapes(
    k: Tensor, v: Tensor, rows: Tensor, columns: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    o = v.new_empty(v.shape[0], rows.shape[1], *v.shape[2:])
    total = widened(k).new_empty(*o.shape[:3], k.shape[-1])
    return o, total, _room_to_save(k, v, rows, columns, keep)


def _products_of(k: Any, v: Any, rows: Any, columns: Any, causal: bool) -> tuple[int, int]:
    """Multiplications and additions for w and for its product with X."""
    pairs = rows[0] * rows[1] * k[1] // (2 if causal else 1)
    bias = 0 if columns is None else 2 * pairs * rows[2]
    return bias, 2 * pairs * k[0] * (k[3] + v[3])


def _operations(k: Any, v: Any, rows: Any, columns: Any, causal: bool) -> int:
    return sum(_products_of(k, v, rows, columns, causal))


def _operations_back(k: Any, v: Any, rows: Any, columns: Any, saved: Any, causal: bool) -> int:
    bias, products = _products_of(k, v, rows, columns, causal)
    return (2 if saved[0] else 3) * bias + 2 * products


_dense_average, _dense_average_backward = operator(
    "dense_average",
    _averages,
    _gradients,
    results=("o", "total", "saved"),
    inputs=("k", "v", "rows", "columns"),
    shapes=_shapes,
    flops=(_operations, _operations_back),
)
on_cuda(_dense_average, "dense.call.forward", _averages, _fused)
on_cuda(_dense_average_backward, "dense.call.backward", _gradients, _fused)
