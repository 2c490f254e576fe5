"""Dropout by a wheel: shares, patterns, gradients, and where torch's own takes its place."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from everyformer.engines import dropout as module
from everyformer.engines.dropout import P, dropout, wheel
from sequence_laws.operations import Counter

RATES = (0.1, 0.25, 0.5, 0.9)


def stays(*shape, rate=0.1, seed=0):
    """Which elements of ones stay, and their common factor."""
    torch.manual_seed(seed)
    y = dropout(torch.ones(*shape), rate)
    assert y.shape == shape
    factors = y[y != 0].unique()
    assert len(factors) == 1
    return y != 0, float(factors)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_over_all_places_an_element_stays_in_the_share_that_is_asked_for(rate, dtype):
    turned = wheel(rate, dtype)
    assert torch.equal(turned[:P], turned[P:])
    once = turned[:P].double()
    assert float((once != 0).double().mean()) == pytest.approx(1 - rate, abs=1e-6)
    assert float(once.mean()) == pytest.approx(1, abs=1e-6)
    assert float(once.amax()) == pytest.approx(1 / (1 - rate), abs=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("lag", [1, 2, 7, 128, 512, 65536, 300_001])
def test_two_elements_of_a_call_stay_independently(rate, lag):
    """Over all places; of P drawn pairs the correlation would be 0 +- 1 / sqrt(P)."""
    kept = (wheel(rate, torch.float32)[:P] != 0).double()
    off = kept - kept.mean()
    correlation = float((off * off.roll(lag)).mean() / off.square().mean())
    assert abs(correlation) < 4 / P**0.5


def test_calls_are_one_after_the_other_and_follow_from_the_seed():
    torch.manual_seed(3)
    first, second = (dropout(torch.ones(50, 40), 0.3) for _ in range(2))
    torch.manual_seed(3)
    again = [dropout(torch.ones(50, 40), 0.3) for _ in range(2)]
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    agree = float(((first != 0) == (second != 0)).double().mean())
    assert agree == pytest.approx(0.7**2 + 0.3**2, abs=0.05)


def test_the_pattern_is_the_wheel_from_a_place_on(monkeypatch):
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor(P - 3))
    x = torch.randn(3, 5)
    expected = x * wheel(0.25, torch.float32)[P - 3 : P + 12].view(3, 5)
    assert torch.equal(dropout(x, 0.25), expected)


def test_parts_of_a_long_tensor_have_patterns_of_their_own():
    kept, _ = stays(2, P + 5, rate=0.5, seed=1)
    parts = kept.flatten().split(P)
    assert len(parts) == 3
    agree = float((parts[0] == parts[1]).double().mean())
    assert agree == pytest.approx(0.5, abs=0.01)
    assert float(kept.double().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4), (2, P // 2 + 3)])
def test_gradients_pass_where_elements_stay(shape):
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(2)
    y = dropout(x, 0.4)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    factor = torch.where(y == 0, 0.0, y / x).detach()
    torch.testing.assert_close(first, 2 * y * factor, rtol=0, atol=1e-12)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 2 * factor.square(), rtol=0, atol=1e-12)


def test_nothing_is_kept_for_the_backward_pass_but_views_of_the_wheel():
    x, kept = torch.randn(64, 32, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        dropout(x, 0.1)
    whole = wheel(0.1, torch.float32).untyped_storage().data_ptr()
    assert kept
    assert {t.untyped_storage().data_ptr() for t in kept} == {whole}


def test_a_long_tensor_is_written_once():
    x = torch.randn(3 * P + 5)
    with Counter() as counter:
        dropout(x, 0.1)
    assert counter.written <= 4 * len(x) + 100


def test_channels_may_lie_apart():
    x = torch.randn(6, 4).T
    torch.manual_seed(5)
    y = dropout(x, 0.5)
    torch.manual_seed(5)
    assert torch.equal(y, dropout(x.contiguous(), 0.5))


def test_none_and_all_are_dropped_as_torch_does():
    for rate in (0.0, 1.0):
        assert torch.equal(dropout(torch.ones(9), rate), F.dropout(torch.ones(9), rate))


def test_other_devices_draw_where_they_are(monkeypatch):
    asked, real = [], F.dropout
    monkeypatch.setattr(F, "dropout", lambda x, rate: asked.append(x.device) or real(x, rate))
    assert dropout(torch.ones(3, device="meta"), 0.5).is_meta
    assert asked == [torch.device("meta")]


@pytest.mark.parametrize("shape", [(33, 20), (2, P // 2 + 7)])
def test_a_graph_turns_the_wheel_to_places_of_its_own(shape):
    """Two calls in one graph differ; gradients pass where elements stay."""

    @partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=True)
    def twice(x):
        return dropout(x, 0.3), dropout(x, 0.3)

    torch._dynamo.reset()
    x = torch.rand(*shape, dtype=torch.float64).add_(1).requires_grad_()
    torch.manual_seed(4)
    first, second = twice(x)
    torch.manual_seed(4)
    again, _ = twice(x)
    assert torch.equal(first, again)
    agree = float(((first != 0) == (second != 0)).double().mean())
    assert agree == pytest.approx(0.7**2 + 0.3**2, abs=0.05)
    assert float((first != 0).double().mean()) == pytest.approx(0.7, abs=0.05)
    factors = (first / x).detach()
    assert set(factors[factors != 0].unique().tolist()) <= set(near(P / round(P * 0.7)))
    (grad,) = torch.autograd.grad(first.square().sum(), x)
    torch.testing.assert_close(grad, 2 * first * factors, rtol=0, atol=1e-12)


def near(number):
    """``number`` and its neighbours in float64, by which a quotient may be off."""
    return number, math.nextafter(number, 0), math.nextafter(number, 2 * number)


def test_a_graph_of_texts_of_any_length_is_one():
    frames = CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: dropout(x, 0.5), backend=frames, dynamic=True)
    for length in (5, 9, P // 4 + 3):
        assert compiled(torch.ones(4, length)).shape == (4, length)
    assert frames.frame_count == 1


def test_a_graph_keeps_the_place_alone_for_the_backward_pass():
    kept, x = [], torch.randn(64, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module._turned(x, torch.tensor([3, 0, 1]), 0.1)
    assert [t.numel() for t in kept] == [3]


def test_parts_of_a_long_tensor_begin_apart():
    assert math.gcd(module.STEP, P) == 1


def test_a_wheel_that_inference_made_serves_training():
    wheel.cache_clear()
    with torch.inference_mode():
        dropout(torch.ones(4), 0.15)
    x = torch.ones(4, requires_grad=True)
    dropout(x, 0.15).sum().backward()
    assert x.grad is not None
