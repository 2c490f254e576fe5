"""The score engine: blocks equal the whole, and columns and pairs are each other's adjoint."""

import pytest
import torch

from everyformer.core.mask import Mask
from everyformer.engines.softmax import scored
from everyformer.engines.softmax.pairs import Pairs
from everyformer.verification.cases import stir
from helpers import build_mixer

LENGTH = 19
POSITIONS = [
    ("t5-relative", {"buckets": 8, "max_distance": 9}),
    ("alibi", {"learned": True}),
    ("shaw", {"clip": 4}),
    ("shaw", {"clip": 30, "queries": True, "per_head": True}),
    ("xl-relative", {}),
    ("xl-relative", {"distances": "learned", "reach": 5}),
    ("da-transformer", {}),
]
CUTS = [(40, 1, 0), (60, 2, 10**9), (60, 2, 400), (500, 3, 0), (2000, 64, 300)]
"""scores of a block, queries of one at least, scores saved for the backward pass"""


def masks():
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, :4] = False
    holes = torch.ones(2, LENGTH, dtype=torch.bool)
    holes[0, 7] = holes[1, 0] = False
    pairs = torch.rand(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.7
    documents = torch.arange(LENGTH)[None].expand(2, -1) // 6
    bias = torch.randn(1, 3, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)).double()
    return {
        "none": None,
        "left padding": Mask(keep=keep),
        "holes": Mask(keep=holes),
        "pairs": Mask(allowed=pairs),
        "documents": Mask(documents=documents),
        "bias": Mask(bias=bias, keep=keep),
    }


def mixer(position, options, causal, **more):
    made = build_mixer(
        "attention", width=12, heads=3, causal=causal, position=position,
        position_options=options, **more,
    )  # fmt: skip
    stir(made)
    return made


def results(made, x, mask, seen):
    torch.manual_seed(5)
    y = made(x, mask=mask).y * seen
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).double()
    return y, torch.autograd.grad((y * weights).sum(), [x, *made.parameters()], allow_unused=True)


@pytest.mark.parametrize(("position", "options"), POSITIONS, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_equal_the_whole(position, options, causal, monkeypatch):
    made = mixer(position, options, causal, kv_heads=1, sink=True)
    x = torch.randn(2, LENGTH, 12).double().requires_grad_()
    for name, mask in masks().items():
        keep = None if mask is None else mask.keep
        seen = 1.0 if keep is None else keep[..., None].double()
        monkeypatch.setattr(scored, "BLOCK", 1 << 20)
        whole = results(made, x, mask, seen)
        for size, rows, saved in CUTS:
            monkeypatch.setattr(scored, "BLOCK", size)
            monkeypatch.setattr(scored, "ROWS", rows)
            monkeypatch.setattr(scored, "SAVED", saved)
            got = results(made, x, mask, seen)
            where = f"{name} in blocks of {size}, {rows}, {saved}"
            torch.testing.assert_close(got, whole, msg=where)


@pytest.mark.parametrize(
    "trained", ["position.value_table", "position.key_table", "project.weights.0", "sink"]
)
@pytest.mark.parametrize("saved", [0, 10**9])
def test_a_part_that_alone_is_trained_gets_its_gradient(trained, saved, monkeypatch):
    made, x = mixer("shaw", {"clip": 3}, True, sink=True), torch.randn(1, LENGTH, 12).double()
    made.requires_grad_(False)
    part = made.get_parameter(trained).requires_grad_()
    (whole,) = torch.autograd.grad(made(x).y.square().sum(), part)
    monkeypatch.setattr(scored, "BLOCK", 60)
    monkeypatch.setattr(scored, "ROWS", 2)
    monkeypatch.setattr(scored, "SAVED", saved)
    (found,) = torch.autograd.grad(made(x).y.square().sum(), part)
    torch.testing.assert_close(found, whole)


def test_a_graph_may_be_walked_twice(monkeypatch):
    monkeypatch.setattr(scored, "BLOCK", 60)
    monkeypatch.setattr(scored, "ROWS", 2)
    made = mixer("xl-relative", {}, True)
    x = torch.randn(1, LENGTH, 12).double().requires_grad_()
    loss = made(x).y.square().sum()
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (second,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(second, first)


@pytest.mark.parametrize("saved", [0, 300, 10**9])
def test_dropout_of_the_backward_pass_is_that_of_the_forward_pass(saved, monkeypatch):
    monkeypatch.setattr(scored, "BLOCK", 60)
    monkeypatch.setattr(scored, "ROWS", 2)
    monkeypatch.setattr(scored, "SAVED", saved)
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
    monkeypatch.setattr(scored, "BLOCK", 1 << 12)
    monkeypatch.setattr(scored, "SAVED", saved)
    made, held = mixer("da-transformer", {}, True).float(), {}

    def keep(t):
        held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // 4
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = made(torch.randn(1, 256, 12)).y
    pairs = 3 * 256 * 256
    # products and weights of what is saved, and what does not grow like all pairs
    assert y.requires_grad
    assert share * pairs <= sum(held.values()) < (2 * share + 0.6) * pairs


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize(("length", "source"), [(1, 1), (1, 7), (2, 2), (5, 9), (9, 9)])
def test_collect_is_the_adjoint_of_lay_and_both_put_distances_where_they_belong(
    length, source, regular
):
    keys = torch.arange(source)[None]
    pairs = Pairs.of(keys[:, source - length :], keys, regular=regular)
    columns = pairs.span().double().expand(2, 3, length, -1).contiguous().requires_grad_()
    laid = pairs.lay(columns)
    assert torch.equal(laid, pairs.distances()[:, None].expand(2, 3, -1, -1).double())
    numbers = torch.randn(2, 3, length, source).double().requires_grad_()
    collected = pairs.collect(numbers)
    torch.testing.assert_close((collected * columns).sum(), (numbers * laid).sum())
    (back,) = torch.autograd.grad(laid, columns, numbers)
    torch.testing.assert_close(back, collected)
    (back,) = torch.autograd.grad(collected, numbers, columns)
    torch.testing.assert_close(back, laid)


@pytest.mark.parametrize("first", [0, 2, 8, 20])
@pytest.mark.parametrize("after", [0, 3, 20])
def test_narrowed_is_the_adjoint_of_widen_and_ends_serve_the_rest(first, after):
    here = torch.arange(9)[None]
    pairs = Pairs.of(here, here, regular=True)
    table = torch.arange(first, -after - 1, -1).double().expand(2, -1)
    wide = pairs.widen(table, first)
    assert torch.equal(wide[0], pairs.span().clamp(-after, first).double())
    columns = torch.randn(2, 17).double()
    narrow = pairs.narrowed(columns, first, table.shape[1])
    torch.testing.assert_close((narrow * table).sum(), (wide * columns).sum())
