"""The score engine: blocks equal the whole, and columns and pairs are each other's adjoint."""

import pytest
import torch

import everyformer as ef
from everyformer.checks.cases import randomize_
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.engines.softmax import blocks
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.visibility import Visibility
from helpers import build_mixer, covering, saved_bytes, with_gradients

LENGTH = 19
POSITIONS = [
    ("t5-relative", {"buckets": 8, "max_distance": 9}),
    ("t5-relative", {"buckets": 4}, {"window": (5, None, 30), "softcap": 2.0}),
    ("alibi", {}),
    ("shaw", {"clip": 4}),
    ("shaw", {"clip": 30, "per_head": True}),
    ("xl-relative", {}),
    ("xl-relative", {"distances": "learned", "reach": 5}),
    ("da-transformer", {}),
]
CUTS = [(40, 1, 0), (60, 2, 10**9), (60, 2, 400), (500, 3, 0), (2000, 64, 300)]
"""scores of a block, queries of one at least, scores saved for the backward pass"""


def masks():
    padding_mask = torch.ones(2, LENGTH, dtype=torch.bool)
    padding_mask[0, :4] = False
    holes = torch.ones(2, LENGTH, dtype=torch.bool)
    holes[0, 7] = holes[1, 0] = False
    pairs = torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.7
    documents = torch.arange(LENGTH)[None].expand(2, -1) // 6
    bias = torch.randn(1, 3, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)).double()
    return {
        "none": None,
        "left padding": Mask(padding_mask=padding_mask),
        "holes": Mask(padding_mask=holes),
        "pairs": Mask(attention_mask=pairs),
        "documents": Mask(documents=documents),
        "bias": Mask(bias=bias, padding_mask=padding_mask),
    }


def mixer(position, options, causal, **more):
    made = build_mixer(
        "attention", width=12, heads=3, causal=causal, position=position,
        position_options=options, **more,
    )  # fmt: skip
    randomize_(made)
    return made


def results(made, x, mask, seen):
    torch.manual_seed(5)
    return with_gradients(made(x, mask=mask).y * seen, [x, *made.parameters()])


@pytest.mark.parametrize("chosen", POSITIONS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_equal_the_whole(chosen, causal, monkeypatch):
    position, options, more = (*chosen, {})[:3]
    made = mixer(position, options, causal, kv_heads=1, sink=True, **more)
    x = torch.randn(2, LENGTH, 12).double().requires_grad_()
    # each mask with each of the cuts, of one position or another
    for n, (name, mask) in enumerate(masks().items(), POSITIONS.index(chosen)):
        padding_mask = None if mask is None else mask.padding_mask
        seen = 1.0 if padding_mask is None else padding_mask[..., None].double()
        monkeypatch.setattr(blocks, "BLOCK", 1 << 20)
        whole = results(made, x, mask, seen)
        cut = dict(zip(("BLOCK", "ROWS", "SAVED"), CUTS[n % len(CUTS)], strict=True))
        for what, number in cut.items():
            monkeypatch.setattr(blocks, what, number)
        got = results(made, x, mask, seen)
        torch.testing.assert_close(got, whole, msg=f"{name} in blocks of {cut}")


def test_weights_and_log_sums_of_long_calls_are_those_of_short_ones(monkeypatch):
    made, at = mixer("t5-relative", {"buckets": 8}, True, sink=True), torch.arange(LENGTH)[None]
    q, k = (torch.randn(2, 3, LENGTH, 4).double() for _ in range(2))
    given = q, k, Visibility(causal=True), Pairs.of(at, at, regular=True, causal=True)
    short = made.scores.weights(*given), made.scores.log_sums(*given)
    # what weights leave is the sink's
    sinks = (made.sink[:, None] - short[1]).exp()
    torch.testing.assert_close(short[0].sum(-1) + sinks, torch.ones(2, 3, LENGTH).double())
    monkeypatch.setattr(blocks, "BLOCK", 60)
    monkeypatch.setattr(blocks, "ROWS", 2)
    torch.testing.assert_close((made.scores.weights(*given), made.scores.log_sums(*given)), short)


@covering(chosen=[("rope", {}), *POSITIONS], more=[{}, {"softcap": 2.0}])
def test_a_query_that_sees_nothing_weighs_nothing_and_reads_zeros(chosen, more, monkeypatch):
    made, at = mixer(*chosen[:2], False, **more), torch.arange(LENGTH)[None]
    q, k, v = (torch.randn(2, 3, LENGTH, 4).double() for _ in range(3))
    seen = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    seen[0, :, 5] = seen[1, :, :2] = False
    visible, pairs = Visibility(mask=seen), Pairs.of(at, at, regular=True, causal=False)
    sums = seen.any(-1).double().expand(-1, 3, -1)
    torch.testing.assert_close(made.scores.weights(q, k, visible, pairs).sum(-1), sums)
    for block in (10**6, 60):
        monkeypatch.setattr(blocks, "BLOCK", block)
        y = made.scores.attend(q, k, v, visible, pairs)
        assert (y[0, :, 5] == 0).all()
        assert (y[1, :, :2] == 0).all()
        assert (y[1, :, 2:] != 0).all()


@pytest.mark.parametrize(
    "trained", ["position.value_table", "position.key_table", "project.weights.0", "sink"]
)
@pytest.mark.parametrize("saved", [0, 10**9])
def test_a_part_that_alone_is_trained_gets_its_gradient(trained, saved, monkeypatch):
    made, x = mixer("shaw", {"clip": 3}, True, sink=True), torch.randn(1, LENGTH, 12).double()
    made.requires_grad_(False)
    part = made.get_parameter(trained).requires_grad_()
    (whole,) = torch.autograd.grad(made(x).y.square().sum(), part)
    monkeypatch.setattr(blocks, "BLOCK", 60)
    monkeypatch.setattr(blocks, "ROWS", 2)
    monkeypatch.setattr(blocks, "SAVED", saved)
    (found,) = torch.autograd.grad(made(x).y.square().sum(), part)
    torch.testing.assert_close(found, whole)


def test_a_graph_may_be_walked_twice(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 60)
    monkeypatch.setattr(blocks, "ROWS", 2)
    made = mixer("xl-relative", {}, True)
    x = torch.randn(1, LENGTH, 12).double().requires_grad_()
    loss = made(x).y.square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(second, first)


@pytest.mark.parametrize("saved", [0, 300, 10**9])
def test_dropout_of_the_backward_pass_is_that_of_the_forward_pass(saved, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 60)
    monkeypatch.setattr(blocks, "ROWS", 2)
    monkeypatch.setattr(blocks, "SAVED", saved)
    made = mixer("shaw", {"clip": 3}, True, attention_dropout=0.4).train()
    x = torch.randn(1, 9, 12).double().requires_grad_()

    def run(x):
        torch.manual_seed(7)
        return made(x).y

    assert torch.autograd.gradcheck(run, (x,), fast_mode=True)
    after = torch.get_rng_state()
    run(x).sum().backward()
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize(("saved", "share"), [(0, 0.0), (1 << 14, 0.1), (1 << 30, 1.0)])
def test_what_is_held_for_the_backward_pass_stays_within_the_budget(saved, share, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1 << 12)
    monkeypatch.setattr(blocks, "SAVED", saved)
    made, x = mixer("da-transformer", {}, True).float(), torch.randn(1, 256, 12)
    held = saved_bytes(lambda: made(x).y) // 4
    pairs = 3 * 256 * 256
    # products and weights of what is saved, and what does not grow like all pairs
    assert share * pairs <= held < (2 * share + 0.6) * pairs


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 4), (3, 8)])
def test_the_shift_puts_distances_at_pairs(queries, keys):
    scores = torch.randn(2, 3, queries, queries + keys - 1, dtype=torch.float64, requires_grad=True)
    got, expected = (part.relative_shift(scores) for part in (ef.functional, ef.reference))
    assert torch.equal(got, expected)
    # of keys that end with the queries, the number is that of the pair's distance alone
    apart = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    distances = (keys - 1 - torch.arange(queries + keys - 1)).expand(queries, -1)
    assert torch.equal(ef.functional.relative_shift(distances), -apart)
    torch.autograd.gradcheck(ef.functional.relative_shift, scores, fast_mode=True)


@pytest.mark.parametrize("shape", [(4, 3), (1, 1, 0, 0), (0, 3)])
def test_a_shift_of_too_few_distances_is_refused(shape):
    with pytest.raises(ShapeError, match="with L and S of at least 1"):
        ef.functional.relative_shift(torch.zeros(shape))
