"""Causal attention of tokens that go on from a past: its plain definition, and what it makes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility
from helpers import Largest, covering, with_gradients

CAUSAL = Visibility(causal=True)


def heads(queries, keys, dtype=torch.float64, shared=1, values=5):
    """Two rows of four heads, ``shared`` of which read one head of keys and values."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, queries, 5), (4 // shared, keys, 5), (4 // shared, keys, values))
    drawn = (torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes)
    return [t.to(dtype).requires_grad_() for t in drawn]


def by_pairs(q, k, v, scale=5**-0.5):
    """Query i stands at i + S - L and sees keys up to there."""
    shared, behind = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    rows = []
    for i in range(q.shape[2]):
        seen = [t[:, :, : i + behind + 1].repeat_interleave(shared, 1) for t in (k, v)]
        weights = (scale * torch.einsum("bhd,bhjd->bhj", q[:, :, i], seen[0])).exp()
        rows.append(torch.einsum("bhj,bhjd->bhd", weights / weights.sum(-1, True), seen[1]))
    return torch.stack(rows, 2)


@covering(
    sizes=[(1, 5), (2, 3), (6, 7), (3, 40), (33, 65)], few=[(1, 5), (2, 3), (4, 8)],
    scale=[5**-0.5, 2.0],
)  # fmt: skip
def test_outputs_and_gradients_are_those_of_the_definition(sizes, few, scale):
    given = heads(*sizes, shared=few[0], values=few[1])
    found, expected = softmax_attention(*given, CAUSAL, scale=scale), by_pairs(*given, scale)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    pairs = (with_gradients(y, given) for y in (found, expected))
    torch.testing.assert_close(*pairs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("offset", [-500.0, 500.0])
def test_pasts_that_weigh_nothing_or_all_lose_no_digit(offset):
    """Scores of the past are moved by so much, beyond what an exponential can hold."""
    q, k, v = (t.detach() for t in heads(4, 9))
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[:, :, :5, 0] = offset
    found = softmax_attention(q, k, v, CAUSAL, scale=1.0)
    alone = k[:, :, 5:], v[:, :, 5:]
    if offset < 0:
        expected = by_pairs(q, *alone, 1.0)
    else:
        weights = (q @ k[:, :, :5].mT - offset).softmax(-1)
        expected = weights @ v[:, :, :5]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_halves_are_merged_in_float32(dtype, bound):
    given = heads(20, 50, dtype)
    found = softmax_attention(*given, CAUSAL)
    assert found.dtype == dtype
    exact = by_pairs(*(t.double() for t in given))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_queries_of_autocast_go_on_from_a_past_in_float32(dtype):
    q, k, v = heads(6, 20, torch.float32)
    past_in_float32 = q.to(dtype), k, v
    with torch.autocast("cpu", dtype):
        y = softmax_attention(*past_in_float32, CAUSAL)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), by_pairs(q, k, v), rtol=0, atol=3e-2)
    torch.autograd.grad(y.float().sum(), [q, k, v])


def test_no_tensor_of_all_pairs_is_made():
    queries, keys = 1024, 3072
    given = heads(queries, keys, torch.float32)
    with Largest() as largest:
        softmax_attention(*given, CAUSAL).sum().backward()
    # a mask of one byte a pair would be more
    assert 0 < largest.found < queries * keys // 2


def test_operations_are_those_of_all_pairs():
    given = heads(6, 20)
    with FlopCounterMode(display=False) as forward:
        y = softmax_attention(*given, CAUSAL)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    one = 2 * 2 * 4 * 5 * 6 * 20
    assert (forward.get_total_flops(), backward.get_total_flops()) == (2 * one, 5 * one)


def test_dropout_on_weights_is_not_forgotten():
    q, k, _ = (t.detach() for t in heads(300, 400))
    ones = torch.ones(2, 4, 400, 5).double()
    torch.manual_seed(0)
    y = softmax_attention(q, k, ones, CAUSAL, dropout=0.5)
    assert y.std() > 0.01
    assert y.mean().item() == pytest.approx(1, abs=0.05)
