"""States that are sums over the past: what came before a part is the sum of the parts before it."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.past import answered_by, past
from everyformer.core.state import StackState, State, adds_up, in_step, innermost
from helpers import build_mixer, build_model, close, draw

SUMS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("linear", {"feature_map": "exp"}),
    ("linear", {"feature_map": "identity", "normalise": "rms"}),
    ("performer", {"redraw": None}),
    ("rfa", {"redraw": None, "features": 5}),
    ("rfa", {"redraw": None, "features": 5, "gate": True}),
    ("rfa", {"redraw": None, "features": 5, "gate": True, "feature_map": "arccos"}),
    ("aft-simple", {}),
    ("aft-conv", {"kernel": 5}),
    ("aft-conv", {"kernel": 3, "tied": False}),
    ("aft-local", {"window": 4}),
    ("aft-local", {"window": 1}),
    ("by-head", {"mixers": ("linear", "aft-conv")}),
]
LENGTH = 17
CUTS = [(0, 9, 17), (0, 1, 2, 17), (0, 3, 6, 7, 14, 17)]


class Sums:
    """The answer to one part of a text after the other: the sums over all parts before it."""

    def __init__(self) -> None:
        self.parts: dict[int, list[State]] = defaultdict(list)
        self.asked = 0

    def __call__(self, given: Any, part: Callable[[], Any]) -> Any:
        before, state = self.parts[self.asked], given
        self.asked += 1
        for each in before:
            state = state.followed_by(each)
        before.append(part())
        return replace(state, seen=given.seen)


def built(name: str, options: dict[str, Any]) -> Mixer:
    sizes = {"width": 8, "heads": 2, "causal": True, "max_length": LENGTH}
    mixer = build_mixer(name, **sizes, **options).train()
    with torch.no_grad():
        for n, parameter in enumerate(mixer.parameters()):
            parameter += 0.2 * draw(*parameter.shape, seed=n)
    return mixer


def in_parts(mixer: Mixer, x: Tensor, keep: Tensor | None, cuts: tuple[int, ...]) -> Tensor:
    """Outputs of all parts, each read from an empty state that knows its place alone."""
    sums, outputs = Sums(), []
    for start, stop in pairwise(cuts):
        seen = torch.full((len(x),), start) if keep is None else keep[:, :start].sum(1)
        empty = mixer.init_state(len(x))
        [state] = in_step(StackState(seen, (empty,))).layers
        mask = None if keep is None else Mask(keep=keep[:, start:stop])
        sums.asked = 0
        with answered_by(sums):
            outputs.append(mixer(x[:, start:stop], mask=mask, state=state).y)
    return torch.cat(outputs, 1)


def padding(kind: str | None) -> Tensor | None:
    if kind is None:
        return None
    keep = torch.arange(LENGTH) < torch.tensor([LENGTH, 11, 2])[:, None]
    return keep if kind == "right" else keep.flip(1)


@pytest.mark.parametrize("kind", [None, "right", "left"])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(("name", "options"), SUMS)
def test_the_past_of_a_part_is_the_sum_of_the_parts_before_it(
    name: str, options: dict[str, Any], cuts: tuple[int, ...], kind: str | None
) -> None:
    mixer, keep = built(name, options), padding(kind)
    x, weights = draw(3, LENGTH, 8), draw(3, LENGTH, 8, seed=2)
    results = []
    for run in (lambda x: mixer(x, mask=None if keep is None else Mask(keep=keep)).y,
                lambda x: in_parts(mixer, x, keep, cuts)):  # fmt: skip
        mixer.zero_grad()
        at = x.clone().requires_grad_()
        y = run(at)
        (y * weights).sum().backward()
        results.append([y, at.grad, *(p.grad for p in mixer.parameters())])
    for whole, parts in zip(*results, strict=True):
        close(parts, whole)


@pytest.mark.parametrize(
    ("name", "options"), [pair for pair in SUMS if pair[0] != "by-head"]
)  # fmt: skip
def test_sums_are_added_in_any_order(name: str, options: dict[str, Any]) -> None:
    """(a b) c = a (b c), of parts with gates too."""
    mixer, x, parts = built(name, options), draw(3, LENGTH, 8), []

    def keeping(given: Any, part: Callable[[], Any]) -> Any:
        parts.append(part())
        return given

    for start, stop in ((0, 2), (2, 9), (9, 17)):
        state = replace(mixer.init_state(3), seen=torch.full((3,), start))
        with answered_by(keeping):
            mixer(x[:, start:stop], state=state)
    a, b, c = parts
    left, right = a.followed_by(b).followed_by(c), a.followed_by(b.followed_by(c))
    for one, other in zip(left.tensors(), right.tensors(), strict=True):
        close(one, other)
    assert left.seen.tolist() == [17, 17, 17]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {"feature_map": "exp"}),
        ("performer", {"redraw": None}),
        ("rfa", {"redraw": None, "features": 5, "gate": True}),
        ("aft-simple", {}),
        ("aft-conv", {"kernel": 5}),
    ],
)
@pytest.mark.parametrize("later", [0.01, 100.0])
def test_no_weight_overflows_between_parts(
    name: str, options: dict[str, Any], later: float
) -> None:
    """Keys of one part are ten thousand times those of the other, in float32."""
    mixer = built(name, options).float()
    scale = torch.where(torch.arange(LENGTH) < 9, 1 / later, later)[:, None]
    x = draw(2, LENGTH, 8, dtype=torch.float32) * scale
    whole, found = mixer(x).y, in_parts(mixer, x, None, (0, 9, 17))
    assert found.isfinite().all()
    assert (found - whole).abs().max() < 1e-4 * whole.abs().max()


def test_what_adds_up_is_said_by_every_state_inside() -> None:
    sizes = {"width": 12, "heads": 3, "layers": 2, "max_length": 20, "vocabulary": 7}
    for name, options in SUMS:
        if name != "by-head":
            assert adds_up(build_model(name, **sizes, **options).init_state(2))
    for name in ("attention", "gmlp", "transformer-xl", "aft-full", "longformer"):
        assert not adds_up(build_model(name, **sizes).init_state(2))
    mixed = build_model("linear", **sizes, feedforward="sepconv").init_state(2)
    assert not adds_up(mixed)
    assert len([*innermost(mixed)]) == 4


def test_where_nobody_answers_the_past_is_what_was_given() -> None:
    state = build_mixer("linear", width=8, heads=2, causal=True).init_state(2)
    assert past(state, lambda: pytest.fail("nobody asked for it")) is state
    with answered_by(lambda given, part: part()):
        assert past(state, lambda: "sums") == "sums"  # type: ignore[arg-type]
    assert past(state, lambda: pytest.fail("the block is over")) is state
