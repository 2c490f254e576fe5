"""Softmax averages with a bias inside a band, nothing outside: O(L n d) for n biased offsets.

    o_t = sum_t' p V_t',   p = softmax over t' of K_t' + [t' in the band of t] b_{t,t'-t}

Blocks of C queries see the blocks that hold their bands through one small matrix, exp(b) inside the
band and 1 outside, and all others through sums over whole blocks. Every term is positive: nothing
is subtracted. Where the range of keys or biases forbids one reference (see ``ranges``), the same
is done exactly: running averages up to the band's edge, then the offsets of the band one by one.

Letters beside those of ``running``: n offsets, C queries a block, m blocks a window, q blocks of
queries, X the products [exp(K) V | exp(K)] as (H, blocks, C, B, V + K).
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from everyformer.engines.averages.offsets import exact_backward, exact_forward
from everyformer.engines.operators import operator
from everyformer.engines.ranges import (
    bias_limit,
    fake,
    full_precision,
    key_gradient,
    one_reference,
    per_key,
    returned,
    widened,
)


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
    o, _ = _banded_average(k, v, bias, causal, lead)
    return o


class _Blocks(NamedTuple):
    """How queries and keys fall into blocks; ``before`` keys of padding stand in front."""

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
        wide = widened(k), widened(v), bias.to(widened(k).dtype)
        reference = _reference(wide[0], wide[2], causal, lead)
        if reference is None:
            o, total = exact_forward(*wide, causal, lead)
        else:
            o, total = _forward(*wide, reference, causal, lead)
    return returned(o, v), total.contiguous()


def _gradients(
    k: Tensor, v: Tensor, bias: Tensor, o: Tensor, total: Tensor, grad_o: Tensor,
    causal: bool, lead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    with full_precision(k):
        wide = widened(k), widened(v), bias.to(widened(k).dtype)
        reference = _reference(wide[0], wide[2], causal, lead)
        g = widened(grad_o)
        c = per_key(g * widened(o), k.shape[-1]).neg_()
        if reference is None:
            grads = exact_backward(*wide, total, g, c, causal, lead)
        else:
            grads = _backward(*wide, total, g, c, reference, causal, lead)
    return returned(grads[0], k), returned(grads[1], v), returned(grads[2], bias)


def _reference(k: Tensor, bias: Tensor, causal: bool, lead: int) -> Tensor | None:
    """The reference keys of the fast path, None where it would not be exact."""
    reference, fits = one_reference(k, causal, lead)
    return reference if fits and bool(bias.abs().amax() <= bias_limit(bias.dtype)) else None


def _products(k: Tensor, v: Tensor, reference: Tensor, blocks: _Blocks, first: int) -> Tensor:
    """X (H, blocks, C, B, V + K) of the tokens, from row ``first`` on; zero elsewhere."""
    batch, length, heads, values = v.shape
    x = k.new_empty(heads, blocks.keys * blocks.size, batch, values + k.shape[-1])
    x[:, :first].zero_()
    x[:, first + length :].zero_()
    rows = x[:, first : first + length].permute(2, 1, 0, 3)
    # exp of a contiguous tensor is four times as fast as of a slice
    weight = torch.sub(k, reference).exp_()
    rows[..., values:] = weight
    torch.mul(weight, v, out=rows[..., :values])
    return x.unflatten(1, (blocks.keys, blocks.size))


def _matrices(bias: Tensor, blocks: _Blocks, causal: bool) -> Tensor:
    """What a block of queries takes of its window: (H q, C, m C)."""
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
    _band(matrices, blocks.offsets).copy_(weight)
    return matrices.expand(-1, q, -1, -1).flatten(0, 1)


def _band(matrices: Tensor, offsets: int) -> Tensor:
    """View (H, q, C, n) of the diagonals of (H, q, C, m C): row i, columns i .. i + n - 1."""
    heads, each, size, width = matrices.shape
    strides = (each * size * width, size * width, width + 1, 1)
    return matrices.as_strided((heads, each, size, offsets), strides)


def _windows(x: Tensor, blocks: _Blocks) -> Tensor:
    """Overlapping windows (H q, m C, B (V + K)) of X; without a copy for one head."""
    heads, _, size, batch, columns = x.shape
    row = batch * columns
    shape = (heads, blocks.queries, blocks.window * size, row)
    strides = (blocks.keys * size * row, size * row, row, 1)
    return x.as_strided(shape, strides).flatten(0, 1)


def _outside(sums: Tensor, blocks: _Blocks, causal: bool) -> Tensor:
    """Sums (H, q, B, V + K) over the key blocks outside each query block's window."""
    q, m = blocks.queries, blocks.window
    far = torch.zeros_like(sums[:, :q])
    far[:, 1:] = sums[:, : q - 1].cumsum(1)
    if not causal:
        far[:, : q - 1] += sums[:, m:].flip(1).cumsum(1).flip(1)
    return far


def _forward(
    k: Tensor, v: Tensor, bias: Tensor, reference: Tensor, causal: bool, lead: int
) -> tuple[Tensor, Tensor]:
    values = v.shape[-1]
    blocks = _blocks(k.shape[1] - lead, bias.shape[-1], causal)
    tokens = slice(int(lead > 0), None)
    x = _products(k[:, tokens], v[:, tokens], reference, blocks, 0 if lead else blocks.before)
    far = _outside(x.sum(2), blocks, causal)
    if lead:
        weight = torch.exp(k[:, :1] - reference)
        far += torch.cat([weight * v[:, :1], weight], -1).permute(2, 1, 0, 3)
    far = far.view(-1, 1, far[0, 0].numel())
    y = torch.baddbmm(far, _matrices(bias, blocks, causal), _windows(x, blocks))
    y = y.view(x.shape[0], -1, *x.shape[3:])[:, : blocks.length].permute(2, 1, 0, 3)
    return y[..., :values] / y[..., values:], y[..., values:]


def _backward(
    k: Tensor, v: Tensor, bias: Tensor, total: Tensor, g: Tensor, c: Tensor, reference: Tensor,
    causal: bool, lead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients: products with the transposed matrices, then dK = V dV + exp(K) dexp(K)."""
    values = v.shape[-1]
    blocks = _blocks(k.shape[1] - lead, bias.shape[-1], causal)
    q, m, size = blocks.queries, blocks.window, blocks.size
    tokens, first = slice(int(lead > 0), None), 0 if lead else blocks.before
    x = _products(k[:, tokens], v[:, tokens], reference, blocks, first)
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
        dx[h, j : j + q].view(q, size, row).baddbmm_(part.transpose(1, 2), flat[h])
    dx[:, : q - 1] += sums[:, 1:].flip(1).cumsum(1).flip(1)[:, :, None]
    if not causal:
        dx[:, m:] += sums[:, : q - 1].cumsum(1)[:, :, None]
    dm = torch.bmm(flat.flatten(0, 1), _windows(x, blocks).transpose(1, 2)).unflatten(0, (-1, q))
    db = _band(dm, blocks.offsets)
    db = db.sum((1, 2))[:, None] if bias.shape[1] == 1 else db.flatten(1, 2)[:, : blocks.length]

    def ended(t: Tensor) -> Tensor:
        return t.flatten(1, 2)[:, first : first + k.shape[1] - tokens.start].permute(2, 1, 0, 3)

    x, dx = ended(x), ended(dx)
    if lead:
        weight = torch.exp(k[:, :1] - reference)
        before = torch.cat([weight * v[:, :1], weight], -1)
        x = torch.cat([before, x], 1)
        dx = torch.cat([sums.sum(1, keepdim=True).permute(2, 1, 0, 3), dx], 1)
    weight = x[..., values:]
    dv = weight * dx[..., :values]
    return key_gradient(v, weight, dv, dx[..., values:]), dv, db * bias.exp()


def _operations(k: Any, v: Any, bias: Any, causal: bool, lead: int) -> int:
    """Of the matrices of biases and their products, from shapes."""
    blocks = _blocks(k[1] - lead, bias[-1], causal)
    pairs = blocks.queries * blocks.window * blocks.size**2
    return 2 * pairs * k[0] * k[2] * (v[-1] + k[-1])


_banded_average, _ = operator(
    "banded_average",
    _averages,
    _gradients,
    results=("o", "total"),
    inputs=("k", "v", "bias"),
    shapes=lambda k, v, lead: (fake(v[:, lead:]), fake(widened(k[:, lead:]))),
    flops=(
        _operations,
        lambda k, v, bias, causal, lead: 2 * _operations(k, v, bias, causal, lead),
    ),
)
