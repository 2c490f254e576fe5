"""The kernels of attention that sees distances; `test_fused` runs this file."""

import itertools
import math

import pytest
import torch

import everyformer as ef
from everyformer.core.dispatch import watched
from everyformer.core.mask import Mask
from everyformer.engines.fused.distances.call import backward, forward
from everyformer.engines.softmax import scored

B, H = 2, 2
KINDS = {
    # vectors, queries of their own for them, numbers, vectors of values, factors
    "numbers": (False, False, True, False, False),
    "vectors": (True, False, False, False, False),
    "vectors and numbers": (True, True, True, False, False),
    "vectors and values": (True, True, False, True, False),
    "values": (False, False, False, True, False),
    "factors": (False, False, True, False, True),
}
SHAPES = {
    # queries, keys, channels of keys and of values, causal
    "causal": (70, 70, 5, 7, True),
    "both sides": (37, 37, 20, 3, False),
    "after a past": (33, 75, 4, 4, True),
    "one tile": (2, 3, 3, 3, True),
    "fewer keys": (40, 9, 3, 3, False),
}
HALF = {torch.bfloat16: 2**-6, torch.float16: 2**-9}


def draw(shape, kind, dtype=torch.float32):
    length, source, size, wide, causal = SHAPES[shape]
    vectors, apart, numbers, values, factors = KINDS[kind]
    generator = torch.Generator().manual_seed(length)
    span = source if causal else length + source - 1

    def normal(*sizes, like=dtype):
        return torch.randn(*sizes, generator=generator).to(like)

    q, p = normal(B, H, length, size), normal(B, H, length, size) if apart else None
    k, v = normal(B, H, source, size), normal(B, H, source, wide)
    tables = (
        normal(H, span, size) if vectors else None,
        normal(H, span, like=torch.float32) if numbers else None,
        normal(H, span, wide) if values else None,
    )
    return q, p, k, v, tables, causal, factors


def literal(q, p, k, v, tables, causal, factors):
    """Averages and log-sums, pair by pair, in float64: the table's row of every distance."""
    vectors, numbers, values = tables
    length, source = q.shape[2], k.shape[2]
    i, j = torch.arange(length)[:, None], torch.arange(source)
    hidden = j > i + source - length if causal else torch.zeros(length, source, dtype=torch.bool)
    at = (length - 1 - i + j).masked_fill(hidden, 0)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    if factors:
        scores = scores.relu() * numbers[:, at]
    elif numbers is not None:
        scores = scores + numbers[:, at]
    if vectors is not None:
        scores = scores + torch.einsum("bhid,hijd->bhij", q if p is None else p, vectors[:, at])
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    o = torch.einsum("bhij,bhjd->bhid", weights, v)
    if values is not None:
        o = o + torch.einsum("bhij,hijd->bhid", weights, values[:, at])
    return o, scores.masked_fill(hidden, -math.inf).logsumexp(-1)


def check(given, tolerance):
    o, lse = forward(*given)
    q, p, k, v, tables, causal, factors = given
    leaves = [None if t is None else t.double().requires_grad_() for t in (q, p, k, v, *tables)]
    expected, logs = literal(*leaves[:4], leaves[4:], causal, factors)
    assert o.dtype == v.dtype
    assert (o.double() - expected).abs().max() <= tolerance * max(1, expected.abs().max())
    assert (lse.double() - logs).abs().max() <= tolerance * max(1, logs.abs().max())
    g = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    wanted = torch.autograd.grad((expected * g).sum(), [t for t in leaves if t is not None])
    found = backward(q, p, k, v, tables, o, lse, g, causal, factors)
    kept = [(t, f) for t, f in zip(leaves, found, strict=True) if t is not None]
    assert all(f is None for t, f in zip(leaves, found, strict=True) if t is None)
    for (leaf, one), exact in zip(kept, wanted, strict=True):
        assert one.shape == leaf.shape
        assert (one.double() - exact).abs().max() <= 2 * tolerance * max(1, exact.abs().max())


@pytest.mark.parametrize(
    ("shape", "kind"),
    [*itertools.product(("causal", "both sides"), KINDS), ("after a past", "vectors and numbers"),
     ("after a past", "factors"), ("one tile", "vectors and values"),
     ("fewer keys", "vectors and values")],
)  # fmt: skip
def test_averages_and_gradients(shape, kind):
    check(draw(shape, kind), 3e-6)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", ["vectors and values", "vectors and numbers", "factors"])
def test_half_precision(kind, dtype):
    check(draw("causal", kind, dtype), HALF[dtype])


def test_a_query_before_all_keys_gives_nothing():
    q, p, k, v, tables, _, factors = draw("fewer keys", "values")
    tables = (None, None, tables[2][:, : k.shape[2]])
    o, lse = forward(q, p, k, v, tables, True, factors)
    assert (o[:, :, : q.shape[2] - k.shape[2]] == 0).all()
    found = backward(q, p, k, v, tables, o, lse, torch.ones_like(o), True, factors)
    assert all(t.isfinite().all() for t in found if t is not None)


POSITIONS = {
    "t5": ("t5-relative", {"buckets": 8, "max_distance": 12}, {}),
    "waves": ("xl-relative", {}, {}),
    "learned distances": ("xl-relative", {"distances": "learned", "reach": 3}, {}),
    "vectors on both": ("shaw", {"clip": (2, 4)}, {}),
    "vectors of heads, on values alone": ("shaw", {"clip": 3, "keys": False, "per_head": True}, {}),
    "vectors on keys alone, few of them": ("shaw", {"clip": 3, "values": False}, {"kv_heads": 1}),
    "factors": ("da-transformer", {"distance_scale": 3.0}, {}),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", POSITIONS)
def test_a_layer_by_kernels_is_the_layer_in_blocks(case, causal, monkeypatch):
    name, options, own = POSITIONS[case]
    torch.manual_seed(0)
    mixer = ef.create_mixer(
        "attention", width=12, heads=2, causal=causal, position=name, position_options=options,
        **own,
    )  # fmt: skip
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 37, 12, requires_grad=True)
    leaves = [x, *mixer.parameters()]
    results = []
    for able in (False, True):
        monkeypatch.setattr(scored, "able", lambda q, k, v, able=able: able)
        with watched() as ways:
            y = mixer(x).y
        assert any(way.name == "kernels of distances" for way in ways) is able
        results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    for one, other in zip(*results, strict=True):
        assert (one - other).abs().max() <= 1e-5 * max(1, other.abs().max())


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"softcap": 2.0}, {}),
        ({"attention_dropout": 0.5}, {}),
        ({}, {"mask": Mask(padding_mask=torch.arange(9)[None] != 4)}),
        ({"causal": False}, {"mask": Mask(attention_mask=torch.ones(9, 9).bool().tril())}),
    ],
)
def test_what_kernels_do_not_know_goes_through_blocks(options, given, monkeypatch):
    monkeypatch.setattr(scored, "able", lambda q, k, v: True)
    sizes = {"width": 12, "heads": 2, "causal": True, "position": "shaw"}
    mixer = ef.create_mixer("attention", **{**sizes, **options})
    with watched() as ways:
        mixer(torch.randn(1, 9, 12), **given)
    assert "kernels of distances" not in {way.name for way in ways}
