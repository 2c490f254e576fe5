"""Sparse Sinkhorn attention: balancing, limits, an independent package, causality, streams."""

import math

import pytest
import torch

from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.trace import trace
from everyformer.engines.content.balance import (
    balanced,
    balanced_reference,
    gumbel,
)
from helpers import build_mixer, close, draw, shifted, with_gradients

WIDTH, HEADS, LONGEST = 12, 3, 40


def build(*, causal=False, dtype=torch.float64, max_length=LONGEST, block_size=4, **options):
    sizes = {"width": WIDTH, "heads": HEADS, "causal": causal, "max_length": max_length}
    mixer = build_mixer("sinkhorn", dtype=dtype, **sizes, block_size=block_size, **options)
    return shifted(mixer, vectors=True)


@pytest.mark.parametrize("causal", [False, True])
def test_balancing_in_logs_is_balancing_by_divisions(causal):
    logits = draw(1, 3, 6, 6).requires_grad_()
    fast, literal = balanced(logits, 4, causal=causal), balanced_reference(logits[0], 4, causal)
    close(*(with_gradients(t, [logits]) for t in (fast[0], literal)))


def test_large_logits_stay_finite_and_so_do_their_gradients():
    for causal in (False, True):
        logits = (1e5 * draw(1, 1, 5, 5, dtype=torch.float32)).requires_grad_()
        p = balanced(logits, 8, causal=causal)
        p.square().sum().backward()
        assert torch.isfinite(p).all()
        assert torch.isfinite(logits.grad).all()


def test_the_noise_is_gumbel_noise():
    torch.manual_seed(0)
    drawn = gumbel(torch.empty(200_000, dtype=torch.float64))
    assert abs(float(drawn.mean()) - 0.5772) < 0.01
    assert abs(float(drawn.var()) - math.pi**2 / 6) < 0.03


def test_balancing_and_sorting_are_those_of_the_sinkhorn_transformer_package():
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    logits, blocks = draw(3, 6, 6), draw(3, 6, 4, 5, seed=2)
    p = balanced(logits[None], 7)[0]
    close(p, package.sinkhorn_sorting_operator(logits, 7))
    mixed = (p @ blocks.flatten(2)).view_as(blocks)
    close(mixed, package.reorder_buckets(blocks, p))


@pytest.mark.parametrize("cut", [2, 5])
def test_sortcut_is_that_of_the_sinkhorn_transformer_package(cut):
    """Their SortCut with the simple sort net's P set to ours."""
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    mixer, x = build(sortcut=cut), draw(2, 20, WIDTH)
    with trace(mixer) as seen:
        y = mixer(x).y
    p = seen.find("sort")[""].flatten(0, 1)
    # their own block is read beside the sorted ones unless queries and keys differ in blocks
    sizes = {"kv_bucket_size": 4, "n_sortcut": cut}
    theirs = package.SinkhornAttention(20, WIDTH, WIDTH // HEADS, HEADS, 20, **sizes)

    class Ours(torch.nn.Module):
        def forward(self, q, k, topk):
            return p

    theirs.sort_net = Ours()
    heads = theirs.double()(*mixer.project(x))
    close(mixer.out(heads.transpose(1, 2).flatten(2)), y)


def test_a_mixture_adds_attention():
    for causal in (False, True):
        both, alone = build(causal=causal, mixture=True), build(causal=causal)
        alone.load_state_dict(both.state_dict())
        plain = build_mixer("attention", width=WIDTH, heads=HEADS, causal=causal)
        plain.load_state_dict(both.state_dict(), strict=False)
        x = draw(2, 11, WIDTH)
        close(both(x).y - alone(x).y, plain(x).y)


def test_noise_is_for_training_alone():
    mixer, x = build(), draw(1, 12, WIDTH)
    close(mixer(x).y, mixer(x).y, 0)
    assert (mixer.train()(x).y - mixer(x).y).abs().max() > 1e-3


@pytest.mark.parametrize("combine", ["concat", "sum-scores"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_weights_that_are_shown_make_the_output(causal, combine):
    mixer, x = build(causal=causal, combine=combine), draw(1, 11, WIDTH)
    if causal:
        mixer.null.data[1] = 0
    with trace(mixer) as seen:
        y = mixer(x).y
    weights = seen.find("weights")[""]
    assert weights.shape == (1, HEADS, 11, 11)
    values = mixer.project(x)[2]
    close(mixer.out((weights @ values).transpose(1, 2).flatten(2)), y)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"causal": True, "sortcut": 2}, GeneError, "causal=False"),
        ({"max_length": None}, GeneError, "give it"),
        ({"sortcut": 2, "combine": "sum-scores"}, ConfigError, "no own block"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(options, error, says):
    with pytest.raises(error, match=says):
        build(**options)


def test_what_cannot_be_read_is_refused():
    mixer, x = build(causal=True), draw(1, 5, WIDTH)
    with pytest.raises(ShapeError, match="max_length=40"):
        mixer(draw(1, 41, WIDTH))
    state = mixer(draw(1, 40, WIDTH), state=mixer.init_state(1)).state
    with pytest.raises(ShapeError, match="max_length=40"):
        mixer(x, state=state)
    with pytest.raises(UnsupportedError, match="cross form"):
        mixer(x, context=x)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_definition_has_finite_gradients_beside_tokens_that_are_none(length, dtype):
    """A short last block: of a sorted token no part is real, and the log of that is no number."""
    sizes = {"width": 12, "heads": 2, "max_length": 8}
    mixer = build_mixer("sinkhorn", dtype=dtype, causal=False, block_size=4, **sizes)
    x = draw(1, length, 12, dtype=dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(mixer.reference(x).square().sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0
