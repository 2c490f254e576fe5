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
from everyformer.engines.averages.sums import (
    fill_sums,
    inputs_gradient,
    reference_of,
    sums_gradient,
)
from everyformer.engines.operators import operator
from everyformer.engines.ranges import fake, full_precision, returned, widened


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


class _Call(NamedTuple):
    """The arguments in full precision."""

    k: Tensor
    v: Tensor
    bias: Tensor
    causal: bool
    lead: int

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
        call = _Call(widened(k), widened(v), bias.to(widened(k).dtype), causal, lead)
        reference = call.reference
        o, total = exact_forward(*call) if reference is None else _forward(call, reference)
    return returned(o, v), total.contiguous()


def _gradients(
    k: Tensor, v: Tensor, bias: Tensor, o: Tensor, total: Tensor, grad_o: Tensor,
    causal: bool, lead: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    with full_precision(k):
        call = _Call(widened(k), widened(v), bias.to(widened(k).dtype), causal, lead)
        reference, of_sums = call.reference, sums_gradient(o, grad_o, k.shape[-1])
        if reference is None:
            dk, dv, db = exact_backward(*call, total, *of_sums)
        else:
            dk, dv, db = _backward(call, reference, total, *of_sums)
    return returned(dk, k), returned(dv, v), returned(db, bias)


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


def _forward(call: _Call, reference: Tensor) -> tuple[Tensor, Tensor]:
    values, blocks, x = call.v.shape[-1], call.blocks, call.sums(reference)
    far = _outside(x.sum(2), blocks, call.causal)
    if call.lead:
        far += call.leading(reference).permute(2, 1, 0, 3)
    far = far.view(-1, 1, far[0, 0].numel())
    y = torch.baddbmm(far, _matrices(call.bias, blocks, call.causal), _windows(x, blocks))
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
        dx[h, j : j + q].view(q, size, row).baddbmm_(part.transpose(1, 2), flat[h])
    dx[:, : q - 1] += sums[:, 1:].flip(1).cumsum(1).flip(1)[:, :, None]
    if not causal:
        dx[:, m:] += sums[:, : q - 1].cumsum(1)[:, :, None]
    dm = torch.bmm(flat.flatten(0, 1), _windows(x, blocks).transpose(1, 2)).unflatten(0, (-1, q))
    db = _band(dm, blocks.offsets)
    db = db.sum((1, 2))[:, None] if bias.shape[1] == 1 else db.flatten(1, 2)[:, : blocks.length]
    first, leads = 0 if call.lead else blocks.before, int(call.lead > 0)
    tokens = slice(first, first + v.shape[1] - leads)
    x, dx = (t.flatten(1, 2)[:, tokens].permute(2, 1, 0, 3) for t in (x, dx))
    if leads:
        x = torch.cat([call.leading(reference), x], 1)
        dx = torch.cat([sums.sum(1, keepdim=True).permute(2, 1, 0, 3), dx], 1)
    dk, dv = inputs_gradient(v, x[..., values:], dx)
    return dk, dv, db * bias.exp()


def _operations(k: Any, v: Any, bias: Any, causal: bool, lead: int) -> int:
    """Operations of the matrices of biases and their products, from shapes."""
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
    flops=(_operations, lambda k, v, bias, causal, lead: 2 * _operations(k, v, bias, causal, lead)),
)
