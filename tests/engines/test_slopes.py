"""Slopes of distance in softmax: which way a call goes, what it costs, and its plain definition."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import everyformer as ef
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility
from helpers import Largest

SLOPES = (0.5, 0.03125)


def heads(queries, keys, dtype=torch.float64, size=4):
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 2, n, size) for n in (queries, keys, keys))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def fallen(q, k, v, slopes=SLOPES, **more):
    slopes = torch.tensor(slopes, dtype=torch.promote_types(q.dtype, torch.float32))
    return softmax_attention(q, k, v, Visibility(causal=True), slopes=slopes, **more)


def by_pairs(q, k, v, scale):
    """Query i stands at i + S - L and sees keys up to there; -m_h times the distance is added."""
    y = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    behind = k.shape[2] - q.shape[2]
    for h, m in enumerate(SLOPES):
        for i in range(q.shape[2]):
            seen = range(max(i + behind + 1, 0))
            scores = [scale * float(q[0, h, i] @ k[0, h, j]) - m * (i + behind - j) for j in seen]
            weights = [math.exp(s) for s in scores]
            for j, w in zip(seen, weights, strict=True):
                y[0, h, i] += w / sum(weights) * v[0, h, j].double()
    return y


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 4), (3, 7)])
@pytest.mark.parametrize("scale", [0.5, 0.0])
def test_a_call_is_its_definition_whatever_the_numbers_of_queries_and_keys(queries, keys, scale):
    q, k, v = heads(queries, keys)
    got = fallen(q, k, v, scale=scale)
    torch.testing.assert_close(got, by_pairs(q, k, v, scale), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_scale_of_zero_leaves_distances_alone(dtype):
    q, k, v = heads(6, 6, dtype)
    got = fallen(q, k, v, scale=0.0).double()
    expected = by_pairs(q.double(), k.double(), v, 0.0)
    close = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, rtol=0, atol=close)


def test_dropout_on_weights_is_not_forgotten():
    """Of values that are all one: sums of the weights that are left, doubled."""
    q, k, _ = heads(300, 300, torch.float32)
    ones = torch.ones(1, 2, 300, 4)
    torch.manual_seed(0)
    y = fallen(q, k, ones, (0.0, 0.0), dropout=0.5)
    assert y[:, :, -100:].std() > 0.01
    assert y[:, :, -100:].mean().item() == pytest.approx(1, abs=0.05)
    torch.testing.assert_close(fallen(q, k, ones, (0.0, 0.0)), ones)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_of_all_pairs_is_made(dtype):
    length = 2048
    q, k, v = (t.requires_grad_() for t in heads(length, length, dtype))
    with Largest() as largest:
        fallen(q, k, v).sum().backward()
    # a byte a pair and head would be more
    assert 0 < largest.found < 2 * length**2


@pytest.mark.parametrize(
    ("queries", "keys", "pairs"),
    [
        # triangles of 256 (computed whole), squares between them, and all keys of the past
        (256, 256, 256**2),
        (512, 512, 3 * 256**2),
        (1024, 1024, (4 + 2) * 256**2 + 512**2),
        (300, 300, 256**2 + 44**2 + 256 * 44),
        (768, 768, (3 + 1) * 256**2 + 256 * 512),
        (100, 700, 100**2 + 100 * 600),
    ],
)
def test_operations_are_those_of_the_pairs_that_are_computed(queries, keys, pairs):
    q, k, v = (t.requires_grad_() for t in heads(queries, keys, torch.float32))
    with FlopCounterMode(display=False) as forward:
        y = fallen(q, k, v)
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    # two products of 4 channels for 2 heads one way, five the other
    assert forward.get_total_flops() == 2 * 2 * 2 * 4 * pairs
    assert backward.get_total_flops() == 5 * 2 * 2 * 4 * pairs


def windowed(backend="auto", causal=True, dtype=torch.float64):
    torch.manual_seed(0)
    made = ef.create_mixer(
        "longformer", width=12, heads=3, causal=causal, position="alibi", window=64,
        backend=backend,
    )  # fmt: skip
    return made.to(dtype).eval()


@pytest.mark.parametrize("at", [0, 100, 4000, 8900])
def test_windows_lose_no_digit_wherever_they_stand(at):
    """In float32, against the same window of a text that is cut out."""
    x = torch.randn(1, 9000, 12, generator=torch.Generator().manual_seed(1))
    before = max(at - 128, 0)
    with torch.no_grad():
        got = windowed(dtype=torch.float32)(x).y[:, at : at + 50]
        cut = windowed("dense")(x[:, before : at + 50].double()).y[:, at - before :]
    torch.testing.assert_close(got.double(), cut, rtol=0, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_windows_in_half_precision_see_both_sides_fall(causal, dtype):
    x = torch.randn(1, 700, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    low, exact = windowed("blocked", causal, dtype), windowed("dense", causal)
    exact.load_state_dict(low.state_dict())
    with torch.no_grad():
        bound = 2e-2 if dtype == torch.bfloat16 else 3e-3
        torch.testing.assert_close(low(x).y.double(), exact(x.double()).y, rtol=0, atol=bound)


def test_queries_before_the_first_key_see_nothing():
    """More queries than keys, which end together."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 4).double() for n in (7, 3, 3))
    got = fallen(q, k, v)
    assert torch.equal(got[:, :, :4], torch.zeros(1, 2, 4, 4).double())
    torch.testing.assert_close(got[:, :, 4:], fallen(q[:, :, 4:], k, v))


def test_a_far_key_that_outweighs_all_near_ones_is_not_left_out():
    """Scores of 200 and -200: a key 600 back has e^115 times the weight of its neighbours."""
    length, slopes = 1400, (0.474, 0.9)
    v = heads(length, length)[2]
    q = torch.zeros_like(v)
    q[..., 0] = 200**0.5
    k = -q
    k[:, :, [0, 430]] *= -1
    behind = torch.arange(length)[:, None] - torch.arange(length)
    scores = q @ k.mT - torch.tensor(slopes, dtype=q.dtype)[:, None, None] * behind
    expected = scores.masked_fill(behind < 0, -math.inf).softmax(-1) @ v
    got = fallen(q, k, v, slopes, scale=1.0)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)
