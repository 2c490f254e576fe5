"""Softmax averages with a position bias: dense, in a band, on a picture; fast and exact paths."""

import math

import pytest
import torch

from everyformer.engines.averages import dense
from everyformer.engines.averages.banded import banded_average
from everyformer.engines.averages.dense import dense_average
from everyformer.engines.averages.factors import band_product
from everyformer.engines.averages.planar import planar_average
from helpers import covering, with_gradients


def literal(k, v, w):
    """All (B, L, S, H, K) weights at once; w (H, L, S) with -inf where hidden."""
    scores = k[:, None] + w.permute(1, 2, 0)[None, ..., None]
    return (torch.softmax(scores, 2).nan_to_num(0.0) * v[:, None]).sum(2)


def draw(*shape, scale=1.0):
    return (torch.randn(*shape, dtype=torch.float64) * scale).requires_grad_()


def agree(got, expected, inputs):
    """Outputs and gradients to float64's precision, relative to the largest entry."""
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    for a, b in zip(*(with_gradients(y, inputs) for y in (got, expected)), strict=True):
        assert (a - b).abs().max() <= 1e-10 * (1 + b.abs().max())


def future(length, source, offset=0):
    return torch.arange(source) > torch.arange(length)[:, None] + offset


def band_bias(bias, length, lead, causal):
    """The dense w (H, L, lead + L) that a band stands for, the carried token without a bias."""
    count = bias.shape[-1]
    key = torch.arange(length + lead) - lead
    entry = key - torch.arange(length)[:, None] + (count - 1 if causal else count // 2)
    inside = (entry >= 0) & (entry < count)
    inside[:, : min(lead, 1)] = False
    full = bias.expand(-1, length, -1)
    w = full.gather(2, entry.clamp(0, count - 1).expand(bias.shape[0], -1, -1))
    w = w.masked_fill(~inside, 0.0)
    return w.masked_fill(future(length, length + lead, lead), -math.inf) if causal else w


# keys and biases within float64's range for one reference, and beyond it
SCALES = [(1.0, 1.0), (600.0, 1.0), (1.0, 300.0)]


BANDS = [
    # length, entries, causal, streamed
    (1, 1, True, False), (1, 5, False, False), (7, 1, False, False), (7, 3, True, True),
    (40, 35, True, False), (97, 7, True, True), (97, 33, False, False), (5, 9, True, True),
]  # fmt: skip


@covering(band=BANDS, tied=[False, True], scales=SCALES)
def test_a_band_is_its_dense_bias(band, tied, scales):
    length, count, causal, streamed = band
    torch.manual_seed(length + count)
    lead = count if streamed else 0
    k = draw(2, length + lead, 2, 1 if tied else 3, scale=scales[0])
    v, bias = draw(2, length + lead, 2, 3), draw(2, length, count, scale=scales[1])
    got = banded_average(k, v, bias, causal=causal, lead=lead)
    agree(got, literal(k, v, band_bias(bias, length, lead, causal)), (k, v, bias))


@covering(
    factored=[False, True], causal=[False, True], key_scale=[1.0, 900.0],
    bias_scale=[1.0, 60.0, 400.0], rows=[16, 512],
)  # fmt: skip
def test_rows_of_a_dense_bias(factored, causal, key_scale, bias_scale, rows, monkeypatch):
    monkeypatch.setattr(dense, "_ROWS", rows)
    monkeypatch.setattr(dense, "_TILE", 5000)
    torch.manual_seed(2)
    k, v = draw(2, 45, 2, 3, scale=key_scale), draw(2, 45, 2, 3)
    inputs = (k, v, draw(2, 45, 4, scale=bias_scale), draw(2, 45, 4))
    w = inputs[2] @ inputs[3].mT
    if not factored:
        inputs = (k, v, draw(2, 45, 45, scale=bias_scale))
        w = inputs[2]
    got = dense_average(k, v, inputs[2], inputs[3] if factored else None, causal=causal)
    hidden = w.masked_fill(future(45, 45), -math.inf) if causal else w
    agree(got, literal(k, v, hidden), inputs)


def test_each_head_of_a_dense_bias_may_stand_at_its_own_place():
    torch.manual_seed(3)
    k, v, w = draw(1, 20, 3, 2), draw(1, 20, 3, 2), draw(3, 6, 20)
    offset = torch.tensor([0, 13, 5])
    got = dense_average(k, v, w, None, causal=True, offset=offset)
    hidden = torch.stack([future(6, 20, int(o)) for o in offset])
    agree(got, literal(k, v, w.masked_fill(hidden, -math.inf)), (k, v, w))


@covering(
    sizes=[(1, 1, 3), (3, 5, 3), (1, 7, 5), (6, 4, 1), (4, 4, 7)], tied=[False, True], scales=SCALES
)
def test_a_kernel_on_a_picture_is_its_dense_bias(sizes, tied, scales):
    lines, columns, side = sizes
    torch.manual_seed(lines)
    size = lines * columns
    k = draw(2, size, 2, 1 if tied else 3, scale=scales[0])
    v, kernel = draw(2, size, 2, 3), draw(2, side, side, scale=scales[1])
    w = torch.zeros(2, size, size, dtype=k.dtype)
    for a in range(size):
        for b in range(size):
            down = b // columns - a // columns + side // 2
            right = b % columns - a % columns + side // 2
            if 0 <= down < side and 0 <= right < side:
                w[:, a, b] = kernel[:, down, right]
    agree(planar_average(k, v, kernel, lines=lines), literal(k, v, w), (k, v, kernel))


@pytest.mark.parametrize(("length", "count"), [(1, 1), (5, 3), (40, 7), (32, 33), (70, 45)])
def test_the_band_of_a_product(length, count):
    torch.manual_seed(length)
    u, v = draw(2, length, 3), draw(2, length + count - 1, 3)
    at = torch.arange(length)[:, None]
    expected = (u @ v.mT)[:, at, at + torch.arange(count)]
    agree(band_product(u, v, count), expected, (u, v))


CALLS = [
    lambda k, v, band, w, kernel: banded_average(k, v, band, causal=True),
    lambda k, v, band, w, kernel: banded_average(k, v, band, causal=False),
    lambda k, v, band, w, kernel: dense_average(k, v, w, None, causal=True),
    lambda k, v, band, w, kernel: dense_average(k, v, w, None, causal=False),
    lambda k, v, band, w, kernel: planar_average(k, v, kernel, lines=8),
]


def test_rows_without_tokens_are_zero_and_have_zero_gradients():
    k = torch.full((1, 80, 1, 2), -math.inf).requires_grad_()
    v, *biases = (
        draw(*size).float() for size in ((1, 80, 1, 2), (1, 80, 7), (1, 80, 80), (1, 3, 3))
    )
    for call in CALLS:
        assert not any(t.any() for t in with_gradients(call(k, v, *biases), (k, v)))


@pytest.mark.parametrize("scale", [1.0, 300.0, 1e4])
def test_float32_stays_near_float64_for_keys_of_any_range(scale):
    torch.manual_seed(7)
    given = draw(1, 80, 1, 4, scale=scale), draw(1, 80, 1, 4), draw(1, 80, 7), draw(1, 80, 80)
    # rounded inputs, so that only the arithmetic differs
    low = [t.detach().float() for t in (*given, draw(1, 3, 3))]
    for call in CALLS:
        got, expected = call(*low).double(), call(*(t.double() for t in low))
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-7 * scale + 1e-5)
