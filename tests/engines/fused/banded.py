"""The kernels of averages with a bias inside a band; `test_fused` runs this file."""

import math
from inspect import signature

import pytest
import torch
from agreed import agree

from everyformer.engines.averages import banded
from everyformer.engines.fused.banded import call
from everyformer.engines.fused.banded.call import backward, forward
from everyformer.engines.fused.dense.call import TILES

CASES = {
    # rows, queries, heads, offsets, keys and values of a head, a bias for every query, causal, lead
    "causal": (2, 7, 1, 4, 3, 3, True, True, False),
    "both sides": (1, 13, 1, 3, 3, 3, True, False, False),
    "a band of three blocks": (1, 11, 1, 7, 2, 2, True, False, False),
    "one key a head, one bias for all": (1, 6, 1, 3, 1, 5, False, False, False),
    "the same, causal": (1, 8, 1, 3, 1, 3, False, True, False),
    "after a carried average": (1, 5, 2, 3, 2, 2, True, True, True),
    "the same, one offset": (1, 5, 1, 1, 1, 3, False, True, True),
    "one offset": (1, 8, 1, 1, 2, 2, True, False, False),
    "a band wider than the row": (1, 3, 1, 11, 3, 3, True, False, False),
    "the same, carried and causal": (1, 3, 1, 6, 1, 2, True, True, True),
    "one token": (1, 1, 1, 1, 1, 1, True, True, False),
}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Several blocks in a short row."""
    for exact in TILES:
        monkeypatch.setitem(TILES, exact, 4)


def draw(case, scales=(1.0, 1.0), dtype=torch.float32):
    batch, length, heads, offsets, keys, values, own, causal, streamed = CASES[case]
    lead = offsets if streamed else 0
    generator = torch.Generator().manual_seed(length + offsets)

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).to(dtype)

    # heads before tokens in memory, which kernels are to take as they are
    k = normal(batch, heads, length + lead, keys, scale=scales[0]).transpose(1, 2)
    v = normal(batch, heads, length + lead, values).transpose(1, 2)
    return k, v, normal(heads, length if own else 1, offsets, scale=scales[1]), causal, lead


def literal(k, v, bias, causal, lead):
    """Averages and log-sums with all pairs at once, in float64."""
    k, v, bias = k.double(), v.double(), bias.double()
    query, key, offsets = torch.arange(lead, k.shape[1]), torch.arange(k.shape[1]), bias.shape[2]
    entry = key - query[:, None] + (offsets - 1 if causal else offsets // 2)
    inside = (entry >= 0) & (entry < offsets)
    rows = torch.arange(len(query))[:, None] if bias.shape[1] > 1 else 0
    w = torch.where(inside, bias[:, rows, entry.clamp(0, offsets - 1)], 0.0)
    if causal:
        w = w.masked_fill(key > query[:, None], -math.inf)
    scores = k[:, None] + w.permute(1, 2, 0)[None, ..., None]
    average = (torch.softmax(scores, 2).nan_to_num(0.0) * v[:, None]).sum(2)
    return average, torch.logsumexp(scores, 2)


def check(given, tolerance):
    """Averages and gradients against the equation; their dtypes against torch's operator."""
    *inputs, causal, lead = given
    exact = [t.double().requires_grad_() for t in inputs]
    expected, found = literal(*exact, causal, lead), forward(*given)
    beside = banded._averages(*given)
    assert [t.dtype for t in found] == [t.dtype for t in beside]
    assert [t.shape for t in found] == [t.shape for t in beside]
    agree(found, expected, tolerance)
    g = torch.randn(found[0].shape, generator=torch.Generator().manual_seed(1)).to(found[0].dtype)
    g = g.transpose(1, 2).contiguous().transpose(1, 2)
    wanted = torch.autograd.grad((expected[0] * g.double()).sum(), exact)
    gradients = backward(*inputs, *found, g, causal, lead)
    assert [t.dtype for t in gradients] == [t.dtype for t in inputs]
    agree(gradients, [t.nan_to_num(0.0) for t in wanted], 4 * tolerance)


def test_kernels_take_the_arguments_of_the_operators():
    for kernels, operator in ((forward, banded._averages), (backward, banded._gradients)):
        assert list(signature(kernels).parameters) == list(signature(operator).parameters)


@pytest.mark.parametrize("case", CASES)
def test_averages_and_gradients(case):
    check(draw(case), 3e-6)


@pytest.mark.parametrize(
    ("case", "scales"),
    [("after a carried average", (300.0, 1.0)), ("the same, causal", (1.0, 300.0))],
)
def test_keys_and_biases_of_any_range(case, scales):
    # at a distance of hundreds the log-sum itself has an error of 1e-5, and weights with it
    check(draw(case, scales), 5e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "case"),
    [
        (torch.bfloat16, 2**-6, "a band wider than the row"),
        (torch.float16, 2**-9, "the same, carried and causal"),
    ],
)
def test_half_numbers_are_summed_in_float32(dtype, tolerance, case):
    check(draw(case, dtype=dtype), tolerance)


def test_a_part_of_the_batch_may_be_smaller_than_the_others(monkeypatch):
    # two tiles, hence two parts of at most two rows; a fourth row would be seen
    monkeypatch.setattr(call, "PROGRAMS", 4)
    k, v, *rest = draw("the same, one offset")
    nothing = torch.full_like(v, math.nan)
    check((torch.cat([k, k + 1, -k]), torch.cat([v, 2 * v, v - 1, nothing])[:3], *rest), 3e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_hidden_tokens_count_for_nothing(causal):
    k, v, bias, *_ = draw("one offset")
    # what query 5 sees in its tile is hidden, and what comes later is far above what came before
    k[:, 4:6], k[:, 6:] = -math.inf, k[:, 6:] + 150
    check((k, v, bias, causal, 0), 2e-5)
    k[:, :2] = k[0, 7] = -math.inf
    v[:, :2] = v[0, 7] = 1e9
    more = torch.cat([k, torch.full_like(k, -math.inf)]), torch.cat([v, v])
    o, lse = forward(*more, bias, causal, 0)
    dk, dv, db = backward(*more, bias, o, lse, torch.ones_like(o), causal, 0)
    assert all(t.isfinite().all() for t in (dk, dv, db))
    for place in (0, slice(2 if causal else 0)), (1, slice(None)):
        assert (o[place] == 0).all()
        assert (lse[place] == -math.inf).all()
    for t in dk, dv:
        assert (t[0, [0, 1, 4, 5, 7]] == 0).all()
        assert (t[1] == 0).all()


def test_another_future_leaves_the_past():
    k, v, *rest = draw("the same, causal")
    changed = k.clone()
    # query 6 has these keys in the tile of its own
    changed[:, 7:] += 500
    a, b = (forward(t, v, *rest)[0] for t in (k, changed))
    agree([a[:, :7].contiguous()], [b[:, :7]], 1e-6)
    check((changed, v, *rest), 5e-5)


def test_keys_and_biases_that_only_together_are_small():
    """Of each pair one factor of exp(K) exp(b) is below what float32 holds."""
    k, v, bias, *rest = draw("a band wider than the row")
    query, entry = (torch.arange(n) for n in bias.shape[1:])
    even = (query[:, None] + entry - bias.shape[2] // 2) % 2 == 0
    k[:, ::2] += 150
    check((k, v, bias - 150 * even, *rest), 1e-4)


def test_numbers_with_gaps_between_them():
    k, v, bias, *rest = draw("a band wider than the row")
    k, v, bias = (torch.stack([t, t], -1)[..., 0] for t in (k, v, bias))
    o, lse = forward(k, v, bias, *rest)
    agree((o, lse), literal(k, v, bias, *rest), 3e-6)
    g = torch.ones(()).expand_as(o)
    found = (backward(k, v, bias, o, lse, each, *rest) for each in (g, g.contiguous()))
    agree(*found, 0)
