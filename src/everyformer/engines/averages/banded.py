"""Softmax averages with a bias inside a band, nothing outside: O(L n d) for n biased offsets.

    o_t = sum_t' p V_t',   p = softmax over t' of K_t' + [t' in the band of t] b_{t,t'-t}

Blocks of C queries see the blocks that hold their bands through one small matrix, exp(b) inside the
band and 1 outside, and all others through sums over whole blocks. Every term is positive: nothing
is subtracted. Where the range of keys or biases forbids one reference (see ``ranges``), the same
is done exactly: the running average of all that is older than the band, the same from the other end
where the future is seen, and every offset of the band as an average of one token, merged by their
log-sums, with about n passes over the values.

Letters beside those of ``running``: n offsets, C queries a block, m blocks a window, q blocks of
queries, X the products [exp(K) V | exp(K)] as (H, blocks, C, B, V + K).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from everyformer.engines.averages.factors import diagonals
from everyformer.engines.averages.running import (
    backward_scan,
    fill_sums,
    forward_scan,
    inputs_gradient,
    reference_of,
    sums_gradient,
)
from everyformer.engines.cuda import on_cuda
from everyformer.engines.operators import applied, operator
from everyformer.engines.products import add_product, halves, plus_product, product
from everyformer.engines.ranges import fake, full_precision, per_key, returned, widened


def banded_average(k: Tensor, v: Tensor, bias: Tensor, *, causal: bool, lead: int = 0) -> Tensor:
    """Averages of ``v`` (B, S, H, V) for each of the last S - ``lead`` positions.

    Args:
        k: (B, S, H, K) keys, K = V or 1; -inf hides a token. The first token is a real one, or
            ``lead`` is given.
        v: (B, S, H, V) values.
        bias: (H, L, n) or, the same for all queries, (H, 1, n). Entry j belongs to the key
            j - n + 1 (causal) or j - n // 2 (n odd) positions after the query.
        causal: whether only earlier positions and the query's own are seen.
        lead: causal only: tokens in front that are read but give no output, 0 or n: first the
            average of all that is older (key: its log-sum), then the n - 1 tokens before this call.

    Returns:
        (B, S - lead, H, V) in v's dtype; zero where nothing is seen.
    """
    assert lead in (0, bias.shape[-1]), "lead is the carried average and n - 1 tokens"
    o, _ = applied(_banded_average, k, v, bias, causal, lead)
    return o


class _Call(NamedTuple):
    """The arguments in full precision."""

    k: Tensor
    v: Tensor
    bias: Tensor
    causal: bool
    lead: int
    half: bool
    """whether the matrices and X are multiplied in bfloat16"""

    @property
    def reference(self) -> Tensor | None:
        """The reference keys of the fast path, None where it would not be exact."""
        return reference_of(self.k, self.bias, self.causal, self.lead)

    @property
    def blocks(self) -> _Blocks:
        """Blocks of the queries, and of the keys after those that the ``lead`` begins with."""
        return _blocks(self.k.shape[1] - self.lead, self.bias.shape[-1], self.causal)

    def sums(self, reference: Tensor) -> Tensor:
        """X (H, blocks, C, B, V + K) of the tokens, zeros before and after them."""
        first, blocks = int(self.lead > 0), self.blocks
        k, v = self.k[:, first:], self.v[:, first:]
        batch, length, heads, values = v.shape
        x = k.new_empty(heads, blocks.keys * blocks.size, batch, values + k.shape[-1])
        before = 0 if self.lead else blocks.before
        x[:, :before].zero_()
        x[:, before + length :].zero_()
        fill_sums(x[:, before : before + length].permute(2, 1, 0, 3), k, v, reference)
        return x.unflatten(1, (blocks.keys, blocks.size))

    def leading(self, reference: Tensor) -> Tensor:
        """The sums (B, 1, H, V + K) of all that is older than the tokens in front."""
        weight = torch.exp(self.k[:, :1] - reference)
        return torch.cat([weight * self.v[:, :1], weight], -1)


class _Blocks(NamedTuple):
    """Blocks of queries and keys, with ``before`` keys of padding in front."""

    length: int
    before: int
    offsets: int
    size: int
    window: int
    queries: int

    @property
    def keys(self) -> int:
        """Blocks of keys: those of the last query block's window end the row."""
        return self.queries + self.window - 1


def _blocks(length: int, offsets: int, causal: bool) -> _Blocks:
    before = offsets - 1 if causal else offsets // 2
    # C near n wastes little of the matrices; below 32 rows they are too small to be fast
    size = min(max(32, 1 << (offsets - 1).bit_length()), 128, 1 << (length - 1).bit_length())
    window = 1 + -(-(offsets - 1) // size)
    return _Blocks(length, before, offsets, size, window, -(-length // size))


def _averages(k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int) -> tuple[Tensor, Tensor]:
    """o, and what the gradients need: denominators, or on the exact path log-sums."""
    with full_precision(k):
        call = _call(k, v, bias, causal, lead)
        reference = call.reference
        o, total = _exact_forward(*call[:-1]) if reference is None else _forward(call, reference)
    return returned(o, v), total.contiguous()


def _gradients(
    k: Tensor, v: Tensor, bias: Tensor, o: Tensor, total: Tensor, grad_o: Tensor,
    causal: bool, lead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    with full_precision(k):
        call = _call(k, v, bias, causal, lead)
        reference, of_sums = call.reference, sums_gradient(o, grad_o, k.shape[-1])
        if reference is None:
            dk, dv, db = _exact_backward(*call[:-1], total, *of_sums)
        else:
            dk, dv, db = _backward(call, reference, total, *of_sums)
    return returned(dk, k), returned(dv, v), returned(db, bias)


def _call(k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int) -> _Call:
    wide = widened(k)
    half = halves(v)
    return _Call(wide, widened(v), bias.to(wide.dtype), causal, lead, half)


def _matrices(bias: Tensor, blocks: _Blocks, causal: bool) -> Tensor:
    """Matrices (H q, C, m C) of a block of queries by the keys of its window."""
    heads, q, size = bias.shape[0], blocks.queries, blocks.size
    base = bias.new_ones(size, blocks.window * size)
    if causal:
        base = base.tril(blocks.offsets - 1)
    weight = bias.exp()
    if bias.shape[1] == 1:
        weight = weight[:, :, None].expand(-1, 1, size, -1)
    else:
        weight = pad(weight, (0, 0, 0, q * size - bias.shape[1])).unflatten(1, (q, size))
    matrices = base.repeat(heads, weight.shape[1], 1, 1)
    diagonals(matrices, blocks.offsets).copy_(weight)
    return matrices.expand(-1, q, -1, -1).flatten(0, 1)


def _windows(x: Tensor, blocks: _Blocks) -> Tensor:
    """Overlapping windows (H q, m C, B (V + K)) of X; without a copy for one head."""
    rows = x.flatten(3).flatten(1, 2)
    return rows.unfold(1, blocks.window * blocks.size, blocks.size).mT.flatten(0, 1)


def _outside(sums: Tensor, blocks: _Blocks, causal: bool) -> Tensor:
    """Sums (H, q, B, V + K) over the key blocks outside each query block's window."""
    q, m = blocks.queries, blocks.window
    far = torch.zeros_like(sums[:, :q])
    far[:, 1:] = sums[:, : q - 1].cumsum(1)
    if not causal:
        far[:, : q - 1] += sums[:, m:].flip(1).cumsum(1).flip(1)
    return far


def _forward(call: _Call, reference: Tensor) -> tuple[Tensor, Tensor]:
    values, blocks, x = call.v.shape[-1], call.blocks, call.sums(reference)
    far = _outside(x.sum(2), blocks, call.causal)
    if call.lead:
        far += call.leading(reference).permute(2, 1, 0, 3)
    far = far.view(-1, 1, far[0, 0].numel())
    matrices = _matrices(call.bias, blocks, call.causal)
    y = plus_product(far, matrices, _windows(x, blocks), call.half)
    y = y.view(x.shape[0], -1, *x.shape[3:])[:, : blocks.length].permute(2, 1, 0, 3)
    return y[..., :values] / y[..., values:], y[..., values:]


def _backward(
    call: _Call, reference: Tensor, total: Tensor, g: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: products with the transposed matrices, then dK = V dV + exp(K) dexp(K)."""
    v, bias, causal, values = call.v, call.bias, call.causal, call.v.shape[-1]
    blocks, x = call.blocks, call.sums(reference)
    q, m, size = blocks.queries, blocks.window, blocks.size
    y = torch.empty_like(x[:, :q])
    y.flatten(1, 2)[:, blocks.length :].zero_()
    rows = y.flatten(1, 2)[:, : blocks.length].permute(2, 1, 0, 3)
    torch.div(g, total, out=rows[..., :values])
    torch.div(c, total, out=rows[..., values:])
    row = y[0, 0, 0].numel()
    flat, matrices = y.view(-1, q, size, row), _matrices(bias, blocks, causal)
    dx, sums = torch.zeros_like(x), y.sum(2)
    for h, j in itertools.product(range(flat.shape[0]), range(m)):
        part = matrices[h * q : (h + 1) * q, :, j * size : (j + 1) * size]
        add_product(dx[h, j : j + q].view(q, size, row), part.mT, flat[h], call.half)
    dx[:, : q - 1] += sums[:, 1:].flip(1).cumsum(1).flip(1)[:, :, None]
    if not causal:
        dx[:, m:] += sums[:, : q - 1].cumsum(1)[:, :, None]
    dm = product(flat.flatten(0, 1), _windows(x, blocks).mT, call.half).unflatten(0, (-1, q))
    db = diagonals(dm, blocks.offsets)
    db = db.sum((1, 2))[:, None] if bias.shape[1] == 1 else db.flatten(1, 2)[:, : blocks.length]
    first, leads = 0 if call.lead else blocks.before, int(call.lead > 0)
    tokens = slice(first, first + v.shape[1] - leads)
    x, dx = (t.flatten(1, 2)[:, tokens].permute(2, 1, 0, 3) for t in (x, dx))
    if leads:
        x = torch.cat([call.leading(reference), x], 1)
        dx = torch.cat([sums.sum(1, keepdim=True).permute(2, 1, 0, 3), dx], 1)
    dk, dv = inputs_gradient(v, x[..., values:], dx)
    return dk, dv, db * bias.exp()


def _exact_forward(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int
) -> tuple[Tensor, Tensor]:
    """Averages (B, L, H, V) and log-sums (B, L, H, K)."""
    length, before = k.shape[1] - lead, _before(bias, causal)
    far = [_far(k, v, before + 1 - lead, length)]
    if not causal:
        lse, o = _far(k.flip(1), v.flip(1), before + 1, length)
        far.append((lse.flip(1), o.flip(1)))
    top = torch.stack([lse for lse, _ in far]).amax(0)
    for score, _, _ in _near(k, v, bias, causal, lead):
        torch.maximum(top, score, out=top)
    top.clamp_(min=torch.finfo(k.dtype).min)
    total, summed = torch.zeros_like(top), torch.zeros_like(far[0][1])
    near = ((score, value) for score, value, _ in _near(k, v, bias, causal, lead))
    for score, value in itertools.chain(far, near):
        weight = torch.exp(score - top)
        total += weight
        summed += weight * value
    # the largest score adds 1 to the total: only a row without tokens is below
    return summed / total.clamp(min=0.5), top + total.log()


def _exact_backward(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int, lse: Tensor, g: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of k, v and bias from those of o (g) and of the log-sum (c), pair by pair:

    dV_t' += p g_t,  dK_t' += p (g_t V_t' + c_t) = dbias, with p = exp(K_t' + bias - lse_t).
    """
    keys, before = k.shape[-1], _before(bias, causal)
    lse = lse.clamp(min=torch.finfo(lse.dtype).min)
    dk, dv = _far_backward(k, v, lse, g, c, before + 1 - lead)
    if not causal:
        k_late, v_late, lse_late, g_late, c_late = (t.flip(1) for t in (k, v, lse, g, c))
        late = _far_backward(k_late, v_late, lse_late, g_late, c_late, before + 1)
        dk, dv = dk + late[0].flip(1), dv + late[1].flip(1)
    db = torch.zeros_like(bias)
    around = _around(before, causal, lead)
    dk_near, dv_near = pad(torch.zeros_like(k), around), pad(torch.zeros_like(v), around)
    for j, (score, value, rows) in enumerate(_near(k, v, bias, causal, lead)):
        p = torch.exp(score - lse)
        dv_near[:, rows] += p * g
        pairs = p * (per_key(g * value, keys) + c)
        dk_near[:, rows] += pairs
        each = pairs.sum((0, 3)).t()
        db[..., j] = each if bias.shape[1] > 1 else each.sum(1, keepdim=True)
    inside = slice(around[-2], around[-2] + k.shape[1])
    return dk + dk_near[:, inside], dv + dv_near[:, inside], db


def _before(bias: Tensor, causal: bool) -> int:
    return bias.shape[-1] - 1 if causal else bias.shape[-1] // 2


def _around(before: int, causal: bool, lead: int) -> tuple[int, ...]:
    """Padding of a row so that the first query's band begins in it."""
    return 0, 0, 0, 0, 0 if lead else before, 0 if causal else before


def _near(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int
) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """For each offset of the band: scores, values, and the rows of the padded k and v read."""
    around = _around(_before(bias, causal), causal, lead)
    k, v = pad(k, around, value=-math.inf), pad(v, around)
    first = min(lead, 1)
    length = k.shape[1] - bias.shape[-1] + 1 - first
    for j in range(bias.shape[-1]):
        rows = slice(first + j, first + j + length)
        yield k[:, rows] + bias[:, :, j].t()[None, :, :, None], v[:, rows], rows


def _far(k: Tensor, v: Tensor, shift: int, length: int) -> tuple[Tensor, Tensor]:
    """For query t, the running average up to token t - ``shift``."""
    lse, o = forward_scan(k, v)
    late = (0, 0, 0, 0, shift, 0)
    return pad(lse, late, value=-math.inf)[:, :length], pad(o, late)[:, :length]


def _far_backward(
    k: Tensor, v: Tensor, lse: Tensor, g: Tensor, c: Tensor, shift: int
) -> tuple[Tensor, Tensor]:
    """Gradients of k and v from the part of each average that `_far` is."""
    running, _ = forward_scan(k, v)
    seen = pad(running, (0, 0, 0, 0, shift, 0), value=-math.inf)[:, : lse.shape[1]]
    p = torch.exp(seen - lse)

    def early(t: Tensor) -> Tensor:
        t = t[:, shift:]
        return pad(t, (0, 0, 0, 0, 0, k.shape[1] - t.shape[1]))

    return backward_scan(k, v, running, early(p * g), early(p * c))


def _operations(k: Any, v: Any, bias: Any, causal: bool, lead: int) -> int:
    """Operations of the matrices of biases and their products, from shapes."""
    blocks = _blocks(k[1] - lead, bias[-1], causal)
    pairs = blocks.queries * blocks.window * blocks.size**2
    return 2 * pairs * k[0] * k[2] * (v[-1] + k[-1])


_banded_average, _banded_average_backward = operator(
    "banded_average",
    _averages,
    _gradients,
    results=("o", "total"),
    inputs=("k", "v", "bias"),
    shapes=lambda k, v, lead: (fake(v[:, lead:]), fake(widened(k[:, lead:]))),
    flops=(_operations, lambda k, v, bias, causal, lead: 2 * _operations(k, v, bias, causal, lead)),
)
on_cuda(_banded_average, "banded.call.forward", _averages)
on_cuda(_banded_average_backward, "banded.call.backward", _gradients)
