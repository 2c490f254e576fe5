"""Maps of queries and keys made inside the sums over the past are those made before them."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from everyformer.engines.kernel import chunks
from everyformer.engines.kernel.attention import kernel_attention
from everyformer.engines.kernel.denominators import POSITIVE
from everyformer.engines.kernel.features import made
from everyformer.engines.kernel.maps import SegmentMap
from everyformer.engines.kernel.sums import KernelState
from helpers import close, covering, draw, saved_bytes
from sequence_laws.flops import count_flops

B, H, D, M = 2, 3, 4, 6
MAPS = {"elu": 0, "positive": 1, "hyperbolic": H}
"""heads of each map's W: none, one for all, or one each"""
DRAWN = ["positive", "hyperbolic"]


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Segments of a chunk or two."""
    monkeypatch.setattr(chunks, "BUDGET", 2 * M * (D + 1))


def given(name, length, *, levels=False, gates=False):
    """Arguments that want gradients, and a map."""
    tensors = {n: draw(B, H, length, D, seed=k) for k, n in enumerate("qkv")}
    if levels:
        tensors["level"] = 2 * draw(B, H, length, seed=4)
    if gates:
        tensors["gate"] = F.logsigmoid(2 * draw(B, H, length, seed=5))
    for t in tensors.values():
        t.requires_grad_()
    return tensors, SegmentMap(draw(heads, M, D, seed=6) if (heads := MAPS[name]) else None, name)


def outside(tensors, by, padding_mask=None, state=None):
    """`kernel_attention` on features of the whole text."""
    (q, _), (k, own) = (made(by, tensors[n]) for n in "qk")
    level = tensors.get("level")
    level = level if own is None else own if level is None else level + own
    named = {"padding_mask": padding_mask, "gate": tensors.get("gate"), "state": state}
    return kernel_attention(q, k, tensors["v"], level=level, **named)


def inside(tensors, by, padding_mask=None, state=None):
    return kernel_attention(**tensors, padding_mask=padding_mask, state=state, feature_map=by)


def proper(state):
    """Sums themselves, which a state has relative to its level."""
    return state.sums if state.level is None else state.sums * state.level.exp()[..., None, None]


def in_two(run, tensors, by, padding_mask):
    """Both halves of a text, the second from the state after the first."""
    cut, state, found = tensors["q"].shape[2] // 2, None, []
    for a, b in ((0, cut), (cut, None)):
        part = {n: t[:, :, a:b] for n, t in tensors.items()}
        y, state = run(part, by, None if padding_mask is None else padding_mask[:, a:b], state)
        found.append(y)
    return torch.cat(found, 2), state


@covering(
    name=MAPS, length=(2, 64, 131), logs=({}, {"levels": True}, {"gates": True}),
    padded=(False, True), halves=(False, True),
)  # fmt: skip
def test_maps_inside_the_sums_are_those_before_them(name, length, logs, padded, halves):
    tensors, by = given(name, length, **logs)
    padding_mask = draw(B, length, seed=7) > -0.5 if padded else None
    shown = torch.ones(B, 1, length, 1) if padding_mask is None else padding_mask[:, None, :, None]
    weight, found = shown * draw(B, H, length, D, seed=8), []
    for run in (outside, inside):
        way = in_two if halves else lambda run, *rest: run(*rest)
        y, state = way(run, tensors, by, padding_mask)
        sums = proper(state)
        total = (y * weight).sum() + 0.1 * sums.square().sum()
        found.append([y * shown, sums, *torch.autograd.grad(total, [*tensors.values()])])
    close(*found, 1e-8)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_one_token_after_another_is_mapped_too(name, levels):
    tensors, by = given(name, 70, levels=levels)
    _, wanted = inside(tensors, by)
    state = None
    for a, b in itertools.pairwise(range(71)):
        part = {n: t[:, :, a:b] for n, t in tensors.items()}
        _, state = inside(part, by, state=state)
    close(proper(state), proper(wanted), 1e-10)


def test_the_operator_keeps_its_promises():
    tensors, by = given("hyperbolic", 70)
    like = {"device": "cpu", "dtype": torch.float64}
    empty = KernelState.empty((B, H), by.features(D), D, True, **like)
    arguments = (*tensors.values(), None, None, None, empty.sums, empty.level, *POSITIVE, *by)
    torch.library.opcheck(torch.ops.everyformer.kernel_attention, arguments)


def test_rows_that_are_learned_get_their_gradient():
    tensors, by = given("positive", 70)
    rows, found = by.rows.requires_grad_(), []
    for run in (outside, inside):
        y, _ = run(tensors, SegmentMap(rows))
        found += torch.autograd.grad((y * y).sum(), rows)
    close(*found)
    assert bool(found[0].any())


@pytest.mark.parametrize("name", DRAWN)
def test_no_features_are_kept_for_the_backward_pass(name, monkeypatch):
    monkeypatch.setattr(chunks, "BUDGET", 2**16)
    tensors, by = given(name, 640)

    def run(rows):
        return lambda: inside(tensors, SegmentMap(rows, by.kind))[0]

    kept = [saved_bytes(run(draw(1, m, D))) for m in (M, 10 * M)]
    # rows and the two states at the ends of the segment, of ten times as many features
    more = 9 * by.features(D) * (D + 2 * 2 * B * H * (D + 1)) * 8
    assert kept[1] - kept[0] <= more < B * H * 640 * M * 8


def test_features_of_elu_are_not_kept_either(monkeypatch):
    monkeypatch.setattr(chunks, "BUDGET", 2**16)
    tensors, by = given("elu", 640)
    # what was given, averages with their denominators, and the states at both ends
    most = 4 * B * H * 640 * D + B * H * 640 + 2 * 2 * B * H * D * (D + 1)
    assert saved_bytes(lambda: inside(tensors, by)[0]) <= 8 * most


@pytest.mark.parametrize("name", MAPS)
def test_operations_are_counted_as_those_of_maps_before(name):
    tensors, by = given(name, 128)
    counts = []
    for run in (outside, inside):
        forward = count_flops(lambda run=run: run(tensors, by))
        both = count_flops(lambda run=run: run(tensors, by)[0].sum().backward())
        counts.append((forward, both - forward))
    assert counts[0][0] == counts[1][0]
    # W x again
    products = 2 * 2 * B * H * 128 * M * D if MAPS[name] else 0
    assert counts[1][1] - counts[0][1] == products
