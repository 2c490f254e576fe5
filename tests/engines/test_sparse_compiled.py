"""Units under a compiler: an operator that equals them, with dropout and additive positions too."""

import math
import warnings

import pytest
import torch
from test_sparse import HEADS, NAMES, PLANS, SIZE, heads, with_gradients
from torch.testing import assert_close

from everyformer.core.dispatch import AllPairsWarning, watched
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.sparse.by_torch import by_parts
from everyformer.engines.sparse.opaque import opaque_parts
from everyformer.genes.positions import make_position
from helpers import build_mixer, draw

SCALE = 1 / math.sqrt(SIZE)
LENGTHS = torch.tensor([43, 30])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padded", [False, True])
def test_the_operator_equals_the_units(name, padded):
    rows = [t.transpose(1, 2) for t in heads(43)]
    lengths = LENGTHS if padded else None
    padding_mask = torch.arange(43) < LENGTHS[:, None] if padded else None
    given = *rows, lengths, PLANS[name], Scores(SCALE)
    ways = opaque_parts(*given), by_parts(*given)[0]
    found = (with_gradients(y.transpose(1, 2), rows, padding_mask) for y in ways)
    assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["window and globals", "window and a table", "head by head"])
def test_what_a_position_learned_by_distance_gets_its_gradient(name):
    torch.manual_seed(3)
    made = make_position(
        "t5-relative", {}, width=HEADS * SIZE, heads=HEADS, head_dim=SIZE,
        value_dim=SIZE, max_length=43, causal=PLANS[name].causal,
    ).double()  # fmt: skip
    learned = [*made.parameters()]
    for weight in learned:
        torch.nn.init.normal_(weight)
    rows = [t.transpose(1, 2) for t in heads(43)]
    given = *rows, None, PLANS[name], Scores(SCALE, position=made)
    ways = opaque_parts(*given), by_parts(*given)[0]
    assert_close(*(with_gradients(y, [*rows, *learned]) for y in ways), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["strided", "window and globals", "head by head"])
def test_dropout_drops_the_same_weights_in_both_passes(name, monkeypatch):
    seed = torch.tensor([12345])
    monkeypatch.setattr(torch, "randint", first_then(seed, torch.randint))
    rows = [t.transpose(1, 2) for t in heads(43)]
    rule = Scores(SCALE, dropout=0.4)
    got = with_gradients(opaque_parts(*rows, None, PLANS[name], rule), rows)
    monkeypatch.undo()
    torch.manual_seed(int(seed))
    want = with_gradients(by_parts(*rows, None, PLANS[name], rule)[0], rows)
    assert_close(got, want, rtol=0, atol=1e-12)
    other = by_parts(*rows, None, PLANS[name], rule)[0]
    assert (other - want[0]).abs().max() > 0.1


def first_then(value, then):
    """A function that gives ``value`` at its first call."""
    left = [value]
    return lambda *arguments, **named: left.pop() if left else then(*arguments, **named)


def test_dropout_leaves_the_generator_where_it_was():
    rows = [t.transpose(1, 2) for t in heads(43)]
    torch.manual_seed(0)
    torch.randint(2**62, (1,))
    want = torch.rand(())
    torch.manual_seed(0)
    opaque_parts(*rows, None, PLANS["window"], Scores(SCALE, dropout=0.4))
    assert torch.rand(()) == want


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("changed", [{}, {"attention_dropout": 0.3}, {"position": "t5-relative"}])
def test_a_compiled_plan_stays_sparse(changed):
    """One graph for two lengths, whose units are computed, forward and backward."""
    torch.compiler.reset()
    mixer = build_mixer(
        "longformer", causal=True, width=16, heads=2, window=8, max_length=700,
        dtype=torch.float32, **changed,
    ).train()  # fmt: skip
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(mixer, backend=count, fullgraph=True)
    with warnings.catch_warnings(), watched() as ways:
        warnings.simplefilter("error", AllPairsWarning)
        for length in (300, 600):
            x = draw(1, length, 16, dtype=torch.float32).requires_grad_()
            torch._dynamo.mark_dynamic(x, 1)
            y = compiled(x).y
            (gradient,) = torch.autograd.grad(y.sum(), x)
            assert gradient.isfinite().all()
            if "attention_dropout" not in changed:
                assert_close(y, mixer(x).y)
                assert_close(gradient, *torch.autograd.grad(mixer(x).y.sum(), x))
    assert len(graphs) == 1
    assert {way.name for way in ways} == {"blocked"}
    read = {node.target for node in graphs[0].graph.nodes if "everyformer" in str(node.target)}
    [operator] = [str(target) for target in read if "sparse" in str(target)]
    assert operator.startswith("everyformer.sparse_parts" if changed else "everyformer.sparse_soft")
