"""The kernels of averages with a bias for every pair; `test_fused` runs this file."""

import math

import pytest
import torch
from agreed import agree

from everyformer.engines.averages import dense
from everyformer.engines.fused.dense import call
from everyformer.engines.fused.dense.call import backward, forward

B, H = 2, 2
CASES = {
    # queries, keys, keys and values of a head, rank (None: w itself), causal
    "causal factors": (35, 35, 5, 5, 3, True),
    "w itself": (35, 35, 3, 3, None, True),
    "one key a head, values in two blocks": (5, 40, 1, 37, 3, False),
    "one token": (1, 1, 2, 2, 2, True),
}
HALF = {torch.bfloat16: 2**-6, torch.float16: 2**-9}


def draw(case, scale=1.0, dtype=torch.float32):
    length, source, keys, values, rank, causal = case
    generator = torch.Generator().manual_seed(length + source)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    k, v = (scale * normal(B, source, H, keys)).to(dtype), normal(B, source, H, values).to(dtype)
    rows = normal(H, length, source if rank is None else rank)
    columns = None if rank is None else normal(H, source, rank)
    return k, v, rows, columns, None, causal


def literal(k, v, rows, columns, offset, causal):
    """Averages and log-sums with all weights of all channels at once, in float64."""
    w = rows if columns is None else rows @ columns.mT
    if causal:
        query, key = torch.arange(w.shape[1])[:, None], torch.arange(w.shape[2])
        query = query + (0 if offset is None else offset[:, None, None])
        w = w.masked_fill(key > query, -math.inf)
    scores = k[:, None] + w.permute(1, 2, 0)[None, ..., None]
    average = (torch.softmax(scores, 2).nan_to_num(0.0) * v[:, None]).sum(2)
    return average, torch.logsumexp(scores, 2)


def check(given, tolerance):
    """Averages, log-sums and gradients by the equation; all but log-sums by torch's operator."""
    o, lse, saved = forward(*given, True)
    exact = [
        t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in given
    ]
    beside = dense._averages(*given, False)
    expected, logs = literal(*exact)
    assert (o.dtype, lse.dtype, saved.numel()) == (beside[0].dtype, torch.float32, 0)
    agree((o, o), (expected, beside[0]), tolerance)
    torch.testing.assert_close(lse.double(), logs, rtol=tolerance, atol=tolerance)
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    by = [t.requires_grad_() for t in exact[:4] if t is not None]
    wanted = torch.autograd.grad((literal(*exact)[0] * g.double()).sum(), by)
    found = backward(*given[:5], o, lse, saved, g, given[5])
    beside = dense._gradients(*given[:5], *beside, g, given[5])
    assert [t.dtype for t in found] == [t.dtype for t in beside]
    agree(found, beside, 2 * tolerance)
    agree([t for t in found if t.numel()], [t.nan_to_num(0.0) for t in wanted], 2 * tolerance)


@pytest.mark.parametrize("case", CASES)
def test_averages_and_gradients(case):
    check(draw(CASES[case]), 3e-6)


def test_keys_and_biases_that_only_together_are_small():
    """Of each pair one factor of exp(K) exp(w) is below what float32 holds."""
    k, v, rows, *rest = draw((3, 20, 2, 2, None, False))
    k[:, ::2] += 150
    rows[..., ::2] -= 150
    check((k, v, rows, *rest), 1e-4)


def test_biases_of_any_range():
    k, v, rows, *rest = draw((3, 20, 2, 2, None, False))
    check((k, v, 80 * rows, *rest), 2e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_half_numbers_are_summed_in_float32(dtype):
    check(draw((20, 20, 3, 3, 2, True), dtype=dtype), HALF[dtype])


def test_a_query_sees_keys_up_to_its_offset():
    given = list(draw((6, 50, 3, 3, 2, True)))
    given[4] = torch.tensor([44, 3])
    check(given, 3e-6)


def test_hidden_tokens_count_for_nothing():
    k, v, *rest = draw((4, 40, 3, 3, 2, False))
    k[:, 30:] = k[0, 3] = -math.inf
    check((k, v, *rest), 3e-6)
    k[1] = -math.inf
    o, lse, saved = forward(k, v, *rest, True)
    assert (o[1] == 0).all()
    assert (lse[1] == -math.inf).all()
    found = backward(k, v, *rest[:3], o, lse, saved, torch.ones_like(o), rest[3])
    assert all(t.isfinite().all() for t in found)
    assert (found[1][1] == 0).all()


@pytest.mark.parametrize(
    ("keys", "rank", "height"), [(1, None, 100), (3, None, 300), (3, 2, 100), (1, 2, 300)]
)
def test_who_sees_but_hidden_keys_of_a_tile_keeps_what_it_saw(keys, rank, height, monkeypatch):
    monkeypatch.setitem(call.TILES, True, 4)
    k, v, *rest = draw((8, 8, keys, 3, rank, True))
    k, v = k[:1], v[:1]
    # queries 4 and 5 have in the tile of their own later keys far above all that they see
    k[:, 4:6], k[:, 6:] = -math.inf, k[:, 6:] + height
    # at such a height the log-sum itself has an error of 1e-5, and weights with it
    check((k, v, *rest), 5e-5)
    k[:, :2] = -math.inf
    o, lse, saved = forward(k, v, *rest, True)
    found = backward(k, v, *rest[:3], o, lse, saved, torch.ones_like(o), rest[3])
    assert all(t.isfinite().all() for t in found)
    assert (o[:, :2] == 0).all()
    assert (lse[:, :2] == -math.inf).all()


def test_another_future_leaves_the_past():
    k, v, *rest = draw(CASES["causal factors"])
    changed = k.clone()
    changed[:, 20:] += 500
    a, b = (forward(t, v, *rest, False)[0] for t in (k, changed))
    agree([a[:, :20].contiguous()], [b[:, :20]], 1e-6)
