"""Attention with dropped weights, in tiles: definition, gradients, patterns, and who takes it."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from everyformer.engines.dropout import P, wheel
from everyformer.engines.softmax import dropped
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility
from helpers import with_gradients

RATE = 0.3


def heads(batch, many, few, length, source, size=6, values=None, dtype=torch.float64):
    torch.manual_seed(0)
    q = torch.randn(batch, length, many, size, dtype=dtype).transpose(1, 2)
    k = torch.randn(batch, few, source, size, dtype=dtype)
    v = torch.randn(batch, few, source, values or size, dtype=dtype)
    return [t.detach().requires_grad_() for t in (q, k, v)]


def factors(batch, many, length, source, place):
    """m (B, H, L, S): row r of all begins S entries, or the next odd number, after row r - 1."""
    row = torch.arange(batch * many * length)[:, None]
    entry = place + row * (source + (source + 1) % 2) + torch.arange(source)
    return wheel(RATE, torch.float64)[entry % P].view(batch, many, length, source)


def defined(q, k, v, hidden, scale, place):
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = scale * q @ k.mT + hidden
    top = scores.amax(-1, keepdim=True).clamp(min=-1e30)
    weights = (scores - top).exp()
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return (factors(*q.shape[:3], k.shape[2], place) * weights) @ v


def triangle(length, source):
    later = torch.ones(length, source, dtype=torch.bool).triu(source - length + 1)
    return torch.zeros(length, source, dtype=torch.float64).masked_fill(later, -math.inf)


def some_hidden(*shape):
    torch.manual_seed(7)
    mask = torch.rand(*shape) > 0.4
    mask[..., 0, :] = False  # a query that sees nothing
    return mask


def some_keys(batch, source):
    return (torch.arange(source) < torch.tensor([3, source])[:batch, None])[:, None, None]


CASES = {
    "all": ((2, 3, 3, 7, 7), False, None),
    "causal": ((2, 3, 3, 9, 9), True, None),
    "after a past": ((2, 2, 2, 5, 12), True, None),
    "fewer heads of keys": ((2, 4, 2, 8, 8), True, None),
    "one query": ((1, 2, 2, 1, 6), False, None),
    "more queries than keys": ((2, 2, 2, 9, 4), False, None),
    "bool": ((2, 3, 3, 7, 5), False, some_hidden(2, 3, 7, 5)),
    "bool, of keys": ((2, 3, 3, 7, 5), False, some_keys(2, 5)),
    "bool, of two axes": ((2, 3, 3, 7, 5), False, some_hidden(7, 5)),
    "a bias of heads": ((2, 3, 3, 7, 5), False, torch.randn(3, 7, 5, dtype=torch.float64)),
    "a bias of rows": ((2, 3, 3, 7, 5), False, torch.randn(2, 1, 1, 5, dtype=torch.float64)),
}


@pytest.mark.parametrize("room", [dropped.ROOM, 100, 30])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_definition(case, room, monkeypatch):
    """In one tile, in tiles of several heads, and of a few queries."""
    shape, causal, mask = CASES[case]
    monkeypatch.setattr(dropped, "ROOM", room)
    place = P - 20
    monkeypatch.setattr(dropped, "draw", lambda _: torch.tensor([place, 0, 1]))
    q, k, v = heads(*shape, values=4)
    hidden = triangle(*shape[3:]) if causal else torch.zeros((), dtype=torch.float64)
    if mask is not None:
        hidden = mask
    if hidden.dtype is torch.bool:
        hidden = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(~hidden, -math.inf)
    expected = defined(q, k, v, hidden, 0.7, place)
    found = dropped.dropped_attention(q, k, v, mask, causal, 0.7, RATE)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    pairs = (with_gradients(y, (q, k, v)) for y in (found, expected))
    torch.testing.assert_close(*pairs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_a_long_text_begin_where_they_should(causal, monkeypatch):
    """Rows go round the wheel: 800 x 801 entries a head are more than it has."""
    monkeypatch.setattr(dropped, "draw", lambda _: torch.tensor([5, 0, 1]))
    q, k, v = heads(1, 2, 2, 800, 800)
    hidden = triangle(800, 800) if causal else torch.zeros((), dtype=torch.float64)
    found = dropped.dropped_attention(q, k, v, None, causal, 0.4, RATE)
    expected = defined(q, k, v, hidden, 0.4, 5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_heads_queries_and_calls_drop_independently():
    """With equal weights and values of one-hot keys, outputs are what stays of each weight."""
    q, k = torch.zeros(2, 2, 64, 64), torch.zeros(2, 2, 64, 64)
    v = torch.eye(64).expand(2, 2, 64, 64)
    torch.manual_seed(1)
    stays = [dropped.dropped_attention(q, k, v, None, False, 1.0, RATE) != 0 for _ in range(2)]
    first = stays[0]
    pairs = {
        "calls": tuple(stays),
        "rows of the batch": tuple(first),
        "heads": tuple(first.transpose(0, 1)),
        "queries": (first[:, :, 1:], first[:, :, :-1]),
        "keys": (first[..., 1:], first[..., :-1]),
    }
    for one, other in pairs.values():
        agree = float((one == other).double().mean())
        assert agree == pytest.approx(0.7**2 + 0.3**2, abs=0.03)
    assert float(first.double().mean()) == pytest.approx(0.7, abs=0.02)


def test_what_is_computed_again_drops_the_same():
    given = heads(2, 2, 2, 9, 9)
    found = []
    for run in (_call, lambda *heads: checkpoint(_call, *heads, use_reentrant=False)):
        torch.manual_seed(4)
        found.append(torch.autograd.grad(run(*given).square().sum(), given))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_one_graph_serves_any_length_and_draws_anew():
    frames = CompileCounter()
    torch._dynamo.reset()
    graph = torch.compile(_call, backend=frames, fullgraph=True, dynamic=True)
    for length in (9, 14, 23):
        given = heads(2, 2, 2, length, length)
        torch.manual_seed(4)
        expected = _call(*given)
        torch.manual_seed(4)
        assert torch.equal(graph(*given), expected)
        assert not torch.equal(graph(*given), expected)
    assert frames.frame_count == 1


def _call(q, k, v):
    return softmax_attention(q, k, v, Visibility(causal=True), dropout=RATE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_computed_in_float32_and_rounded_once(dtype, monkeypatch):
    monkeypatch.setattr(dropped, "draw", lambda _: torch.tensor([11, 0, 1]))
    wide = heads(2, 2, 2, 9, 9, dtype=torch.float32)
    q, k, v = (t.detach().to(dtype).requires_grad_() for t in wide)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    found = dropped.dropped_attention(q, k, v, None, True, 0.5, RATE)
    expected = dropped.dropped_attention(*exact, None, True, 0.5, RATE)
    above = torch.randn_like(found)
    given = torch.autograd.grad(found, (q, k, v), above)
    wanted = torch.autograd.grad(expected, exact, above.double())
    for one, other in zip((found, *given), (expected, *wanted), strict=True):
        assert one.dtype is dtype
        torch.testing.assert_close(one, other.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_nothing_as_large_as_all_pairs_is_kept():
    q, k, v = heads(1, 2, 2, 50, 50, dtype=torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        softmax_attention(q, k, v, Visibility(causal=True), dropout=RATE)
    assert kept
    assert max(t.numel() for t in kept) == q.numel()


@pytest.mark.parametrize(
    "given", [{}, {"dropout": 1.0}, {"dropout": 0.0}, {"learned": True}, {"length": 7}], ids=str
)
def test_calls_that_it_cannot_compute_go_to_torch(given, monkeypatch):
    """All weights dropped, a bias with a gradient, and more causal queries than keys."""
    taken = []
    real = dropped.dropped_attention
    monkeypatch.setattr(dropped, "dropped_attention", lambda *call: taken.append(1) or real(*call))
    q, k, v = heads(1, 2, 2, given.get("length", 4), 4)
    bias = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    visible = Visibility(mask=bias) if "learned" in given else Visibility(causal=True)
    y = softmax_attention(q, k, v, visible, dropout=given.get("dropout", RATE))
    assert y.shape == q.shape
    assert bool(taken) is (not given)
