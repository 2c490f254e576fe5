"""Adaptive spans over a memory of segments: positions, ramps and what is learned, by identities."""

from functools import partial

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.genes.memory.segment import SegmentState
from helpers import close, covering, draw, in_pieces
from sequence_laws.flops import count_flops

WIDTH, HEADS, LENGTH, WINDOW = 12, 3, 19, 7
FORMS = [{"ramp": 3}, {"ramp": 2, "dynamic": True}]
"""each with spans that end within the window, by head"""


def made(slots=WINDOW, store="inputs", same_length="never", **options):
    torch.manual_seed(0)
    memory = {"slots": slots, "store": store, "same_length": same_length}
    m = ef.create_mixer(
        "adaptive-span", width=WIDTH, heads=HEADS, causal=True, window=WINDOW, memory="segment",
        memory_options=memory, **{"ramp": 3, **options},
    ).double()  # fmt: skip
    if m.spans is not None:
        with torch.no_grad():
            m.spans.copy_(torch.tensor([0.0, 1.3, 2.4]) / WINDOW)
    return m


X = draw(2, LENGTH, WIDTH)


@covering(store=["inputs", "keys"], form=FORMS, size=[1, 4, 7])
def test_a_memory_of_the_window_makes_segments_one_pass(size, form, store):
    for m in (made(store=store, **form).train(), made(store=store, **form).eval()):
        close(in_pieces(m, X, size)[0], m(X).y)
        close(m(X).y, m.reference(X))


def test_a_memory_shorter_than_the_spans_shows_what_it_has():
    m = made(slots=2).train()
    with torch.no_grad():
        m.spans.fill_(1)
    _, state = in_pieces(m, X[:, :9], 9)
    # two rows and the segment itself
    close(m(X[:, 9:14], state=state).y, m(X[:, 7:14]).y[:, 2:])


@pytest.mark.parametrize("same_length", ["always", "evaluation"])
def test_with_same_length_spans_end_at_the_slots(same_length):
    """The last M tokens before a token are visible; the segments do not matter."""
    m = made(slots=3, same_length=same_length).eval()
    with torch.no_grad():
        m.spans.fill_(1)
    close(in_pieces(m, X, 5)[0], m(X).y)
    close(m(X).y, m.reference(X))
    x = X[:1].clone().requires_grad_()
    m(x).y[0, -1].sum().backward()
    felt = x.grad[0].abs().amax(-1) > 0
    assert felt.tolist() == [LENGTH - 1 - i <= 3 for i in range(LENGTH)]


def test_parameters_learn_from_the_past_which_gets_no_gradient():
    """As in one pass over a past that is cut from the graph."""
    m = made().train()
    past = X[:, :6].clone().requires_grad_()
    state = m(past, state=m.init_state(2)).state
    assert isinstance(state, SegmentState)
    assert not any(t.requires_grad for t in state.tensors())
    weight, found = draw(2, 5, WIDTH, seed=3), []
    whole = torch.cat((past.detach(), X[:, 6:11]), 1)
    for y in (m(X[:, 6:11], state=state).y, m(whole).y[:, 6:]):
        found.append(torch.autograd.grad((y * weight).sum(), list(m.parameters())))
    for ours, expected in zip(*found, strict=True):
        assert expected.abs().max() > 1e-4
        close(ours, expected)


def test_rows_that_no_span_reaches_are_not_projected():
    # ceil(3 + 2.4) rows are read, of seven and of six
    whole, short = (made(slots=slots).train() for slots in (WINDOW, 6))
    ys, costs = [], []
    for m in (whole, short):
        _, state = in_pieces(m, X[:, :9], 9)
        ys.append(m(X[:, 9:12], state=state).y)
        costs.append(count_flops(partial(m, X[:, 9:12], state=state)))
    assert costs[0] == costs[1]
    close(*ys)


@pytest.mark.parametrize(
    ("slots", "keys"), [(4, 4), (WINDOW, 6)], ids=["of the slots", "of the longest span"]
)
def test_in_evaluation_a_ring_of_keys_is_carried(slots, keys):
    m = made(slots=slots, store="auto").eval()
    _, state = in_pieces(m, X, 5)
    assert isinstance(state, KeyValueState)
    assert state.keys.shape[2] == keys
    close(m.append(X, state=m.init_state(2)).keys, state.keys)
    # while spans are learned they may grow, so all slots stay
    assert in_pieces(made(slots=slots, store="keys").train(), X, 5)[1].keys.shape[2] == slots


@pytest.mark.parametrize(
    ("memory", "causal", "said"),
    [
        ("segment", False, "carries the past of causal texts, but this adaptive-span reads both"),
        ("compressive", True, "memory 'compressive' is more than the last tokens"),
        ("memorizing", True, "memory 'memorizing' is more than the last tokens"),
    ],
)
def test_what_it_cannot_read_is_refused(memory, causal, said):
    with pytest.raises(GeneError, match=said):
        ef.create_mixer("adaptive-span", width=WIDTH, heads=HEADS, causal=causal, memory=memory)


def test_what_is_remembered_of_spans_is_of_one_reach():
    """In evaluation spans end at the slots, in training at the window."""
    m, found = made(slots=2, same_length="evaluation", ramp=4), []
    for working in (True, False):
        with torch.set_grad_enabled(working):
            found.append([m.train(mode)(X).y.detach() for mode in (True, False)])
    for a, b in zip(*found, strict=True):
        close(a, b)
    assert (found[0][0] - found[0][1]).abs().max() > 1e-6
