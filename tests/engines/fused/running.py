"""The kernels of running averages; `test_fused` runs this file."""

import math

import pytest
import torch
from agreed import agree

from everyformer.engines.averages import running
from everyformer.engines.fused import running as fused
from everyformer.engines.fused.running import backward, forward

SHAPES = [
    # batch, length, heads, keys and values of a head
    (2, 1, 1, 4, 4),
    (1, 2, 3, 1, 5),
    (2, 17, 1, 5, 5),
    (1, 50, 3, 1, 5),
    (1, 37, 2, 3, 3),
    (1, 40, 2, 1, 1),
    (1, 20, 1, 130, 130),
]
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 2**-6, torch.float16: 2**-9}


def literal(k, v):
    """Log-sums and averages of every prefix, in float64."""
    later = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).triu(1)[None, :, :, None, None]
    scores = k.double()[:, None].expand(-1, k.shape[1], -1, -1, -1).masked_fill(later, -math.inf)
    weights = torch.softmax(scores, 2).nan_to_num(0.0)
    return torch.logsumexp(scores, 2), (weights * v.double()[:, None]).sum(2)


def draw(shape, scale=1.0, dtype=torch.float32):
    batch, length, heads, keys, values = shape
    generator = torch.Generator().manual_seed(length)
    k = torch.randn(batch, length, heads, keys, generator=generator) * scale
    return k.to(dtype), torch.randn(batch, length, heads, values, generator=generator).to(dtype)


def check(k, v, tolerance, logs=True):
    """Results and gradients against the equation and against torch's operator."""
    exact = [t.double().requires_grad_() for t in (k, v)]
    expected, found = literal(*exact), forward(k, v)
    beside = running._averages(k, v)
    assert [t.dtype for t in found] == [t.dtype for t in beside]
    agree(found, expected, tolerance)
    agree(found, beside, tolerance)
    above = [torch.randn(t.shape, generator=torch.Generator().manual_seed(1)) for t in expected]
    above = [above[0] if logs else None, above[1].to(v.dtype)]
    finite = [t.masked_fill(~t.isfinite(), 0) for t in expected]
    loss = sum((t * g).sum() for t, g in zip(finite, above, strict=True) if g is not None)
    found = backward(k, v, *found, *above)
    assert [t.dtype for t in found] == [k.dtype, v.dtype]
    agree(found, [g.nan_to_num(0.0) for g in torch.autograd.grad(loss, exact)], 4 * tolerance)
    agree(found, running._gradients(k, v, *beside, *above), 4 * tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_averages_of_prefixes_and_their_gradients(shape, scale):
    # at a distance of hundreds the log-sum itself has an error of 1e-5, and weights with it
    check(*draw(shape, scale), 3e-6 if scale == 1 else 5e-5)


@pytest.mark.parametrize("shape", [(1, 45, 2, 1, 3), (1, 40, 1, 2, 2)])
def test_more_chunks_than_are_read_at_once(shape, monkeypatch):
    monkeypatch.setattr(fused, "_chunk_length", lambda length: 2)
    check(*draw(shape), 3e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES[2:4])
def test_half_numbers_are_summed_in_float32(shape, dtype):
    check(*draw(shape, dtype=dtype), TOLERANCES[dtype])


@pytest.mark.parametrize("shape", SHAPES[2:5])
def test_hidden_tokens_count_for_nothing(shape):
    k, v = draw(shape)
    k[:, :2] = k[:, 9] = -math.inf
    v[:, :2] = v[:, 9] = 1e9
    lse, o = forward(k, v)
    assert (lse[:, :2] == -math.inf).all()
    assert (o[:, :2] == 0).all()
    kept = [n for n in range(2, shape[1]) if n != 9]
    found = [t[:, kept].contiguous() for t in (lse, o)]
    agree(found, literal(k[:, kept], v[:, kept]), 3e-6)
    dk, dv = backward(k, v, lse, o, None, torch.ones_like(o))
    assert (dk[:, [0, 1, 9]] == 0).all()
    assert (dv[:, [0, 1, 9]] == 0).all()
    assert dk.isfinite().all()


def test_gradients_of_averages_alone():
    check(*draw(SHAPES[3]), 3e-6, logs=False)


def test_another_future_changes_no_bit_of_the_past():
    k, v = draw((1, 50, 1, 4, 4))
    changed = k.clone()
    changed[:, 30:] += 100
    for a, b in zip(forward(k, v), forward(changed, v), strict=True):
        assert torch.equal(a[:, :30], b[:, :30])


def test_tokens_with_gaps_between_them():
    k, v = draw((2, 17, 3, 8, 8))
    parts = [t[..., 2:6] for t in (k, v)]
    agree(forward(*parts), forward(*(t.contiguous() for t in parts)), 0)
    across = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (k, v)]
    agree(forward(*across), forward(k, v), 0)
    g = torch.randn(2, 17, 3, 8)
    lse, o = forward(k, v)
    spread = g[:, :1].expand(-1, 17, -1, -1)
    plain = backward(k, v, lse, o, None, spread.contiguous())
    agree(backward(*across, lse, o, None, spread), plain, 0)
