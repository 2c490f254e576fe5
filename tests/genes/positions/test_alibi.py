"""ALiBi by its identities, and against Bloom and MPT."""

import math

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.engines.softmax.attention import attention_weights, softmax_attention
from everyformer.engines.softmax.visibility import Visibility
from everyformer.genes.mixers.attention.reference import attention_reference
from everyformer.genes.positions.alibi import Alibi, alibi_slopes
from everyformer.genes.positions.t5_relative import T5Relative
from helpers import build_mixer

HEADS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20)
Q, K = torch.tensor([[4, 5, 9]]), torch.tensor([[0, 3, 4, 5, 9, 11, 300]])
DIRECTIONS = pytest.mark.parametrize("causal", [True, False])


def bias(position, queries, keys, dtype=torch.float32):
    """What is added to the scores of a block: (B, H, L, S)."""
    return position.by_distance(queries[:, :, None] - keys[:, None, :], dtype).transpose(0, 1)


def literal(queries, keys, heads):
    """-m_h |i - j|"""
    slopes = torch.tensor(alibi_slopes(heads)).double()[:, None, None]
    return -slopes * (queries[:, None, :, None] - keys[:, None, None]).abs()


def mixer(causal, seed=0, heads=3, **options):
    sizes = {"width": 4 * heads, "heads": heads, "causal": causal}
    return build_mixer("attention", seed=seed, **sizes, **options)


def with_alibi(causal, seed=0, heads=3, more=None, **position):
    chosen = {"position": "alibi", "position_options": position}
    return mixer(causal, seed, heads, **chosen, **(more or {}))


@pytest.mark.parametrize("heads", HEADS)
def test_slopes_are_those_of_bloom_and_mpt(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    ours = torch.tensor(alibi_slopes(heads))
    assert alibi_slopes(heads) == pytest.approx(ef.reference.alibi_slopes(heads), rel=1e-15)
    table = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    torch.testing.assert_close(ours, table[:, 0, 1])
    torch.testing.assert_close(ours, -mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0])


def test_slopes_are_the_printed_ones():
    assert alibi_slopes(8) == tuple(2.0**-h for h in range(1, 9))
    assert alibi_slopes(16)[:2] == (2**-0.5, 0.5)
    assert alibi_slopes(12)[8:] == tuple(2**-h for h in (0.5, 1.5, 2.5, 3.5))
    assert alibi_slopes(12, "geometric")[11] == 2**-8


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_bias_equals_its_definition_on_any_block(heads):
    added = bias(Alibi(width=8, heads=heads), Q, K, torch.float64)
    torch.testing.assert_close(added, literal(Q, K, heads))
    assert added.shape == (1, heads, 3, 7)
    assert (added[:, :, 0, 2] == 0).all()
    assert (added[:, :, 2, :5].diff(dim=-1) > 0).all()
    rows = torch.tensor([[0, 1], [7, 8]])
    both = bias(Alibi(width=8, heads=heads), rows, K, torch.float64)
    torch.testing.assert_close(both[1:], bias(Alibi(width=8, heads=heads), rows[1:], K).double())


@DIRECTIONS
def test_attention_with_alibi_equals_the_equation(causal):
    made, x = with_alibi(causal), torch.randn(2, 7, 12).double()
    q, k, v = made.project(x)
    here = torch.arange(7)[None]
    expected = attention_reference(q, k, v, causal=causal, bias=literal(here, here, 3))
    torch.testing.assert_close(made(x).y, made.out(expected.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("heads", "groups", "values"), [(3, 3, 4), (4, 2, 4), (6, 1, 11)])
def test_one_more_channel_equals_the_bias_written_out(heads, groups, values, learned):
    torch.manual_seed(0)
    length, scale = 300, 0.7
    shapes = ((heads, 5), (groups, 5), (groups, values))
    q, k, v = (torch.randn(2, h, length, d).double().requires_grad_() for h, d in shapes)
    slopes = torch.tensor(alibi_slopes(heads)).double().requires_grad_(learned)
    behind = torch.arange(length)[:, None] - torch.arange(length)
    bias = (-slopes[:, None, None] * behind).masked_fill(behind < 0, -math.inf)[None]
    got = softmax_attention(q, k, v, Visibility(causal=True), slopes=slopes, scale=scale)
    expected = softmax_attention(q, k, v, Visibility(mask=bias), scale=scale)
    torch.testing.assert_close(got, expected)
    inputs = [q, k, v, *([slopes] if learned else [])]
    weight = torch.randn_like(got)
    found = (torch.autograd.grad(y, inputs, weight, retain_graph=True) for y in (got, expected))
    torch.testing.assert_close(*found)
    weights = attention_weights(q, k, Visibility(causal=True), slopes=slopes, scale=scale)
    torch.testing.assert_close(weights @ v.repeat_interleave(heads // groups, 1), expected)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_long_texts_lose_no_distance_in_small_dtypes(dtype, bound):
    torch.manual_seed(0)
    length = 16_401
    q, k, v = (torch.randn(1, 3, length, 8).to(dtype) for _ in range(3))
    slopes = torch.tensor([2**-1, 2**-5, 2**-8], dtype=torch.float64)
    visible = {"visible": Visibility(causal=True), "slopes": slopes}
    late = [4000, 16_384, 16_400]
    behind = torch.tensor(late)[:, None] - torch.arange(length)
    bias = (-slopes[:, None, None] * behind).masked_fill(behind < 0, -math.inf)[None]
    exact = softmax_attention(q[:, :, late].double(), k.double(), v.double(), Visibility(mask=bias))
    got = softmax_attention(q, k, v, **visible)[:, :, late].double()
    torch.testing.assert_close(got, exact, rtol=0, atol=bound)


CUTS = [(2, 2), (256, 256), (257, 257), (1025, 1025), (300, 901)]


@pytest.mark.parametrize(
    ("length", "source", "dtype"),
    [*((*cut, torch.float64) for cut in CUTS), (1300, 1300, torch.float32)],
)
def test_triangles_and_squares_cover_every_pair_once(length, source, dtype):
    """Outputs and gradients are those of the bias written out in float64, in every digit."""
    torch.manual_seed(0)
    sizes = ((4, length, 5), (2, source, 5), (2, source, 7))
    q, k, v = (torch.randn(2, *size).to(dtype).requires_grad_() for size in sizes)
    slopes = torch.tensor([2**-1, 2**-3, 2**-6, 0.0])
    got = softmax_attention(q, k, v, Visibility(causal=True), slopes=slopes, scale=0.6)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    behind = torch.arange(source - length, source)[:, None] - torch.arange(source)
    scores = 0.6 * wide[0] @ wide[1].repeat_interleave(2, 1).mT
    scores = (scores - slopes[:, None, None] * behind).masked_fill(behind < 0, -math.inf)
    expected = scores.softmax(-1) @ wide[2].repeat_interleave(2, 1)
    # sums of 1,300 weights: 2.2e-6 was seen on one thread
    close = {"rtol": 0.0, "atol": 4e-6 if dtype == torch.float32 else 1e-13}
    torch.testing.assert_close(got.double(), expected, **close)
    weight = torch.randn_like(expected)
    found = torch.autograd.grad(got, (q, k, v), weight.to(dtype))
    for one, other in zip(found, torch.autograd.grad(expected, wide, weight.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=close["atol"] * 4)


@pytest.mark.full("2,100 tokens, whose definition takes seconds")
@pytest.mark.parametrize(
    ("large", "dtype", "bound"),
    [(1.0, torch.float32, 1e-6), (1.0, torch.float64, 1e-13), (12.0, torch.float64, 1e-12)],
)
def test_what_is_left_out_of_squares_has_no_weight(large, dtype, bound):
    """Steep heads beside flat ones; large queries and keys outweigh many steps of distance."""
    torch.manual_seed(0)
    slopes, length = torch.tensor([4.0, 0.0, 2**-1, 200.0, 2.0, 2**-7]).double(), 2100
    made = [torch.randn(1, 6, length, 4).double() for _ in range(4)]
    weight = made.pop()
    behind = torch.arange(length)[:, None] - torch.arange(length)
    q, k, v = wide = [t.requires_grad_() for t in made]
    scores = large**2 * q @ k.mT / 2 - slopes[:, None, None] * behind
    expected = scores.masked_fill(behind < 0, -math.inf).softmax(-1) @ v
    exact = (expected, *torch.autograd.grad(expected, wide, weight))
    q, k, v = own = [t.detach().to(dtype).requires_grad_() for t in made]
    got = softmax_attention(q * large, k * large, v, Visibility(causal=True), slopes=slopes)
    found = (got, *torch.autograd.grad(got, own, weight.to(dtype)))
    for one, other in zip(found, exact, strict=True):
        error = (one.double() - other).abs().max() / other.abs().max()
        assert error < bound


def test_the_bias_is_kept_exact_in_models_of_small_dtypes():
    model = Alibi(width=8, heads=12).to(torch.bfloat16)
    assert torch.equal(bias(model, Q, K), bias(Alibi(width=8, heads=12), Q, K))


def test_heads_of_a_mixed_layer_keep_their_slopes():
    heads = ef.by_head("aft-simple", "attention", "aft-simple", "attention")
    model = ef.create_model("attention", width=16, heads=4, layers=1, position="alibi", mixer=heads)
    part = model.stack.blocks[0].mixer.parts[1]
    added = bias(part.position, Q, K)
    torch.testing.assert_close(added, bias(Alibi(width=16, heads=4), Q, K)[:, [1, 3]])
    tokens = torch.randint(0, 256, (2, 9))
    assert torch.isfinite(model(tokens).logits).all()


def test_bloom_with_our_slopes_gives_its_own_attention():
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    torch.manual_seed(0)
    padding_mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    table = bloom.build_alibi_tensor(padding_mask, 3, torch.float64).view(2, 3, 1, 7)
    q, k, v = (torch.randn(2, 3, 7, 4).double() for _ in range(3))
    hidden = ~(padding_mask[:, None, None, :].bool() & torch.ones(7, 7).bool().tril())
    theirs = torch.where(hidden, -math.inf, table)
    positions = (padding_mask.cumsum(1) - 1).clamp(min=0)
    ours = bias(Alibi(width=12, heads=3), positions, positions, torch.float64)
    ours = ours.masked_fill(hidden, -math.inf)
    got, expected = (softmax_attention(q, k, v, Visibility(mask=m)) for m in (ours, theirs))
    real = padding_mask.bool()
    torch.testing.assert_close(got.transpose(1, 2)[real], expected.transpose(1, 2)[real])


def test_slopes_and_combinations_without_meaning_are_refused_with_the_reason():
    wrong = {(1.0,): "one slope for each of `heads=3`", (1, -1, 1): "slopes.* must be at least 0"}
    for slopes, said in wrong.items():
        with pytest.raises(ef.EveryformerError, match=said):
            with_alibi(False, slopes=slopes)
    with pytest.raises(GeneError, match=r"'alibi' acts on scores, but mixer 'aft-full' has none"):
        ef.create_model("aft-full", position="alibi")
    with pytest.raises(GeneError, match="takes no position inside"):
        ef.create_mixer("gmlp", width=8, max_length=9, position="alibi")
    with pytest.raises(GeneError, match=r"acts on scores, which none of aft-simple"):
        ef.create_model(
            "attention", heads=2, mixer=ef.by_head(*["aft-simple"] * 2), position="alibi"
        )
    with pytest.raises(GeneError, match=r"`heads=3`, but attention has `heads=2`"):
        ef.create_mixer("attention", width=8, heads=2, position=Alibi(width=8, heads=3))
    both = T5Relative(width=8, heads=2, causal=False)
    with pytest.raises(GeneError, match=r"`causal=False`, but attention has `causal=True`"):
        ef.create_mixer("attention", width=8, heads=2, causal=True, position=both)
    made = with_alibi(False)
    with pytest.raises(UnsupportedError, match="between tokens of one sequence"):
        made(torch.zeros(1, 3, 12).double(), context=torch.zeros(1, 4, 12).double())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_distances_beyond_the_range_of_float16_fall_on(dtype):
    """Keys 70,000 back, farther than float16 counts, by slopes that leave them some weight."""
    torch.manual_seed(0)
    keys, slopes = 70_000, torch.tensor([2.0**-14, 2.0**-16])
    q, k, v = (torch.randn(1, 2, n, 16).to(dtype) for n in (2, keys, keys))
    got = softmax_attention(q, k, v, Visibility(causal=True), slopes=slopes)
    behind = torch.arange(keys - 2, keys).double()[:, None] - torch.arange(keys)
    scores = q.double() @ k.double().mT / 4 - slopes.double().view(2, 1, 1) * behind
    weights = scores.masked_fill(behind < 0, -float("inf")).softmax(-1)
    error = (got.double() - weights @ v.double()).abs().max()
    assert error < {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6}[dtype]
