"""Causal attention with a bias linear in distance (ALiBi), exact at any length, on a CPU.

    A_ij ~ exp(scale q_i . k_j - m_h (i - j)),   j <= i

A row of softmax stays when one number is added to all its scores, so that a kernel could take
m_h j for the whole bias; but beside thousands a score has no digits left. Here pairs are cut into
triangles of `CHUNK` tokens on the diagonal, where the bias is written out, and squares of CHUNK,
2 CHUNK, 4 CHUNK ... tokens whose keys end where the queries begin, at r:

    -m (i - j) = -m (i - r) - m (r - j)

The second part is a bias of keys alone and small where weights are large; the first is a constant
of the row, which its log-sum takes when squares are merged:

    o_i = sum_b e^(l_ib - l_i) o_ib,   l_i = log sum_b e^(l_ib)

The backward pass asks the same kernels with the merged outputs and log-sums. Memory is linear in L.

No score of contents is beyond c = scale max|q| max|k|. So a key that lies d behind, m d > 2 c + e,
has less than exp(-e) of the weight that the query gives itself. With e = -2 log(eps) all such keys
together are far below the last digit: they are left out. Steep heads have no squares larger than
they reach, and all have only the keys that stretches of queries reach. What is left out would be
numbers below the normal ones, on which CPUs are slow.

In half precision m j is the product of more channels of q and k (`with_slopes_in`); elsewhere the
bias is written out (`with_bias`).

Sources: Press, Smith, Lewis 2022, arXiv 2108.12409, section 3 (the bias); Milakov & Gimelshein
2018, arXiv 1805.02867 (the merge).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.leaving import leaves_torch
from everyformer.engines.operators import operator
from everyformer.engines.ranges import HALF
from everyformer.engines.softmax import kernels
from everyformer.engines.softmax.visibility import Visibility

CHUNK = 256
"""tokens of a triangle"""
STRIPS = 4
"""stretches of a square's queries, each with fewer keys, where these do not reach all"""


def slopes_in(
    q: Tensor, k: Tensor, visible: Visibility, slopes: Tensor, dropout: float = 0.0
) -> Literal["squares", "channels", "written"]:
    """The way to add slopes to scores: `sloped_attention`, `with_slopes_in` or `with_bias`."""
    if q.shape[2] == 1 or (k.shape[2] <= CHUNK and q.dtype not in HALF):
        return "written"  # all rows at once, where each would be a call
    if q.dtype in HALF:
        return "channels"
    exact = q.dtype in (torch.float32, torch.float64) and q.shape[2] <= k.shape[2]
    plain = q.device.type == "cpu" and not leaves_torch()
    alone = visible.causal and not dropout and not slopes.requires_grad
    return "squares" if alone and exact and plain else "written"


def sloped_attention(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, scale: float) -> Tensor:
    """Outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...), S >= L.

    ``slopes`` (H,) are m_h. Queries are the last L of the S tokens.
    """
    o, _ = _sloped_softmax(*kernels.for_kernels(q, k, v), slopes.to(q.dtype), scale)
    return o[..., : v.shape[-1]]


def with_slopes_in(q: Tensor, k: Tensor, v: Tensor, rates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with channels more whose product is the bias -rate (S - 1 - j).

    For half precision: sums of thousands lose digits of float32 that these dtypes do not have.
    Distances are split into digits of base 256, integers that are exact in every dtype; the third
    is times 256 in keys and in queries, so that float16 holds it up to 2^24. Fused kernels want the
    same number of channels in all three, a multiple of 8: all are padded to it.
    """
    (batch, heads, queries, size), keys = q.shape, k.shape[2]
    width = -(-max(size + 3, v.shape[-1]) // 8) * 8
    ago = keys - 1 - torch.arange(keys, device=k.device)
    parts = torch.stack((ago // 65536 * 256, ago // 256 % 256 * 256, ago % 256), -1).to(k.dtype)
    falling = -rates.to(q.dtype).view(1, -1, 1, 1) * parts.new_tensor((256, 1, 1))
    q = torch.cat((q, falling.expand(batch, heads, queries, 3)), -1)
    k = torch.cat((k, parts.expand(*k.shape[:2], keys, 3)), -1)
    q, k = (F.pad(t, (0, width - size - 3)) for t in (q, k))
    return q, k, F.pad(v, (0, width - v.shape[-1]))


def with_bias(visible: Visibility, slopes: Tensor, queries: int, keys: int) -> Visibility:
    """The mask ``visible`` with the bias of ``slopes`` written out, (1, H, L, S)."""
    index = torch.arange(keys, device=slopes.device)
    distance = torch.arange(keys - queries, keys, device=slopes.device)[:, None] - index
    bias = -slopes.view(1, -1, 1, 1) * distance
    if visible.causal:
        bias = bias.masked_fill(distance < 0, -math.inf)
    if visible.mask is not None:
        bias = bias.masked_fill(~visible.mask, -math.inf)
    return Visibility(mask=bias)


@dataclass(frozen=True)
class _Part:
    """``count`` units of ``rows`` queries with ``keys`` keys each, ``step`` tokens apart."""

    query: int
    key: int
    """the first unit's first query and key"""
    count: int
    rows: int
    keys: int
    step: int = 1
    triangle: bool = False
    """whether keys are the queries, later ones hidden; else they end where the queries begin"""
    ahead: int = 0
    """queries between the last key and the first query"""

    def queries(self, t: Tensor) -> Tensor:
        """Views (count, H, rows, ...) of a row's (H, L, ...)."""
        return _units(t, self.query, self.count, self.rows, self.step)

    def read(self, t: Tensor) -> Tensor:
        """Views (count, H, keys, D) of a row's (H, S, D)."""
        return _units(t, self.key, self.count, self.keys, self.step)

    def strips(self, reach: int) -> Iterator[_Part]:
        """Stretches of a square's queries, with the keys that are no farther than ``reach``."""
        rows = self.rows if self.rows + self.keys <= reach else -(-self.rows // STRIPS)
        for ahead in range(0, min(self.rows, reach), rows):
            keys = min(self.keys, reach - ahead)
            yield replace(
                self, query=self.query + ahead, key=self.key + self.keys - keys,
                rows=min(rows, self.rows - ahead), keys=keys, ahead=ahead,
            )  # fmt: skip

    def fallen(self, slopes: Tensor, lowest: Tensor) -> tuple[Tensor, Tensor]:
        """The bias of scores (1, H, rows or 1, keys), and what rows (H, rows or 1) add to it.

        Keys whose bias is below ``lowest`` (H,) are left out, but for the nearest.
        """
        m, row, key = slopes[:, None], torch.arange(self.rows), torch.arange(self.keys)
        distance, shift = (self.keys - key)[None], -m * (self.ahead + row)
        if self.triangle:
            distance, shift = row[:, None] - key, torch.zeros_like(m)
        bias = -m[..., None] * distance
        out = (bias < lowest[:, None, None]) & (distance > 1)
        return bias.masked_fill_(out | (distance < 0), -math.inf)[None], shift


def _units(t: Tensor, first: int, count: int, size: int, step: int) -> Tensor:
    whole = t[:, first : first + step * (count - 1) + size]
    return whole.unfold(1, size, step).movedim(-1, 2).transpose(0, 1)


def _parts(length: int, past: int, reach: int) -> Iterator[_Part]:
    """Triangles, so that every query has a log-sum; squares by size; all keys that stood before.

    Squares of ``reach`` tokens stand side by side, and there are no larger ones.
    """
    count, rest = divmod(length, CHUNK)
    if count:
        yield _Part(0, past, count, CHUNK, CHUNK, CHUNK, triangle=True)
    if rest:
        yield _Part(length - rest, past + length - rest, 1, rest, rest, triangle=True)
    size = CHUNK
    while size < length:
        step = 2 * size if size < reach else size
        count = (length + step - 2 * size) // step
        if count:
            yield _Part(size, past, count, size, size, step)
        first = size + count * step
        if first < length:
            yield _Part(first, past + first - size, 1, length - first, size)
        size = 2 * size if size < reach else length
    if past:
        yield _Part(0, 0, 1, length, past)


def _lowest(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(H,) the bias below which a key has no weight, whatever it holds."""
    longest = [t.detach().norm(dim=-1).amax((0, 2)) for t in (q, k)]
    most = abs(scale) * longest[0] * longest[1]
    return 2 * math.log(torch.finfo(q.dtype).eps) - 2.01 * most


def _calls(
    q: Tensor, k: Tensor, slopes: Tensor, scale: float
) -> Iterator[tuple[int, slice, _Part, Tensor, Tensor]]:
    """Row, heads and pairs of every call of a kernel, with what `_Part.fallen` says.

    Neighbouring heads go together if they reach equally far, up to a factor of two.
    """
    length, source = q.shape[2], k.shape[2]
    lowest, most = _lowest(q, k, scale), 2 * source
    reach = (-lowest / slopes).nan_to_num(most).clamp(1, most).ceil().long().tolist()
    first = 0
    for blocks, group in groupby((n - 1).bit_length() for n in reach):
        last = first + len(list(group))
        heads, far = slice(first, last), max(reach[first:last])
        for whole in _parts(length, source - length, max(CHUNK, 1 << blocks)):
            for part in (whole,) if whole.triangle else whole.strips(far):
                bias, shift = part.fallen(slopes[heads], lowest[heads])
                yield from ((row, heads, part, bias, shift) for row in range(len(q)))
        first = last


def _attend(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """o (B, H, L, D) and log-sums (B, H, L)."""
    o, logsum = torch.empty_like(q), q.new_empty(q.shape[:3])
    for row, heads, part, bias, shift in _calls(q, k, slopes, scale):
        keys, values = (part.read(t[row, heads]) for t in (k, v))
        queries = part.queries(q[row, heads])
        own, total = kernels.forward(queries, keys, values, attn_mask=bias, scale=scale)
        total = total + shift
        merged, sums = part.queries(o[row, heads]), part.queries(logsum[row, heads])
        if part.triangle:
            merged.copy_(own)
            sums.copy_(total)
        else:
            merged.lerp_(own, (total - sums).sigmoid()[..., None])
            sums.copy_(torch.logaddexp(sums, total))
    return o, logsum


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, o: Tensor, logsum: Tensor, grad_o: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    for row, heads, part, bias, shift in _calls(q, k, slopes, scale):
        above, queries, out = (part.queries(t[row, heads]) for t in (grad_o, q, o))
        keys, values = (part.read(t[row, heads]) for t in (k, v))
        total = (part.queries(logsum[row, heads]) - shift).contiguous()
        grads = kernels.backward(
            above, queries, keys, values, out, total, triangle=False, mask=bias, scale=scale
        )
        part.queries(dq[row, heads]).add_(grads[0])
        part.read(dk[row, heads]).add_(grads[1])
        part.read(dv[row, heads]).add_(grads[2])
    return dq, dk, dv


def _pairs(q: Any, k: Any) -> int:
    """Scores computed, times channels of all heads; fewer where slopes are steep."""
    batch, heads, length, size = q
    parts = _parts(length, k[2] - length, 2 * k[2])
    return batch * heads * size * sum(part.count * part.rows * part.keys for part in parts)


_sloped_softmax, _ = operator(
    "sloped_softmax",
    _attend,
    _gradients,
    results=("o", "logsum"),
    inputs=("q", "k", "v"),
    shapes=lambda q: (torch.empty_like(q), q.new_empty(q.shape[:3])),
    flops=(lambda q, k: 4 * _pairs(q, k), lambda q, k: 10 * _pairs(q, k)),
)
