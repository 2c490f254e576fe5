"""Running softmax averages: exact for keys of any range, and continued by one more token."""

import math

import pytest
import torch

from everyformer.engines.averages.running import running_average, total_average
from helpers import covering, with_gradients


def literal(k, v):
    """All weights at once, in float64: the average of each prefix."""
    hidden = torch.ones(k.shape[1], k.shape[1], dtype=torch.bool).triu(1)[None, :, :, None, None]
    scores = k[:, None].expand(-1, k.shape[1], -1, -1, -1).masked_fill(hidden, -math.inf)
    return torch.logsumexp(scores, 2), (torch.softmax(scores, 2) * v[:, None]).sum(2)


def draw(length, *, tied=False, scale=1.0, batch=2, dtype=torch.float64):
    torch.manual_seed(length)
    k = torch.randn(batch, length, 3, 1 if tied else 4, dtype=dtype) * scale
    return k.requires_grad_(), torch.randn(batch, length, 3, 4, dtype=dtype, requires_grad=True)


@covering(length=[1, 2, 3, 16, 17, 50], tied=[False, True], scale=[1.0, 300.0])
def test_prefix_averages_and_their_gradients(length, tied, scale):
    k, v = draw(length, tied=tied, scale=scale)
    got, expected = running_average(k, v), literal(k, v)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    for pair in zip(got, expected, strict=True):
        found = (with_gradients(y, (k, v)) for y in pair)
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("average", [running_average, total_average])
def test_hidden_tokens_count_for_nothing(average):
    k, v = draw(9)
    hidden = torch.cat([torch.full_like(k[:, :2], -math.inf), k], 1).detach().requires_grad_()
    padded = torch.cat([torch.full_like(v[:, :2], 1e9), v], 1).detach().requires_grad_()
    lse, o = average(hidden, padded)
    expected = average(k, v)
    if average is running_average:
        assert torch.all(o[:, :2] == 0)
        assert torch.all(lse[:, :2] == -math.inf)
        o, lse = o[:, 2:], lse[:, 2:]
    torch.testing.assert_close(o, expected[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected[0], rtol=1e-12, atol=1e-12)
    for gradient in torch.autograd.grad(o.sum(), (hidden, padded)):
        assert torch.all(gradient[:, :2] == 0)
        assert torch.isfinite(gradient).all()


def test_the_last_prefix_is_the_whole_row():
    k, v = draw(21, tied=True)
    running = tuple(t[:, -1] for t in running_average(k, v))
    torch.testing.assert_close(running, total_average(k, v), rtol=1e-12, atol=1e-12)


def test_rows_without_tokens_are_zero_and_have_zero_gradients():
    k = torch.full((1, 4, 2, 3), -math.inf).requires_grad_()
    v = torch.randn(1, 4, 2, 3, requires_grad=True)
    for average in (running_average, total_average):
        o = average(k, v)[1]
        assert torch.all(o == 0)
        for gradient in torch.autograd.grad(o.sum(), (k, v)):
            assert torch.all(gradient == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_taken_in_float32(dtype):
    k, v = draw(500, dtype=dtype, batch=1)
    lse, o = running_average(k, v)
    assert (lse.dtype, o.dtype) == (torch.float32, dtype)
    exact = literal(k.double(), v.double())[1]
    torch.testing.assert_close(o.double(), exact, rtol=0, atol=torch.finfo(dtype).eps * 2 + 1e-6)
