"""States that grow: tokens go into reserved slots, and a step copies nothing of the past."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.operations import Operations
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.verification.cases import Case
from helpers import draw

HELD = ("attention", "aft-full", "gmlp", "amlp")
"""members with a slot for each token"""
COPIES = {"xl-relative": "makes the waves of all distances anew"}
"""members whose step writes more the more was read, and what"""
CHOOSES = ("routing", "bigbird")
"""members whose step gathers as many tokens as a choice says: another number after each text"""
WIDTH = 32
PAST = 4 * WIDTH
"""bytes of one token in float32: a copy of one tensor of the past writes as many for each"""


class Written(Operations):
    """Counts the bytes of results that are no views, and of what is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        places = {t.untyped_storage().data_ptr() for t in given}
        for t in made:
            view = t.untyped_storage().data_ptr() in places and not func._schema.is_mutable
            self.count += 0 if view else t.numel() * t.element_size()


def written_by_a_step(name: str, tokens: int, reserved: bool = True) -> int:
    """Bytes that one token after so many writes."""
    mixer = Case(ef.info(name), {}, True).mixer(
        torch.float32, width=WIDTH, heads=2, length=tokens + 8
    )
    x = draw(1, tokens + 2, WIDTH, dtype=torch.float32)
    with torch.inference_mode():
        state = mixer.init_state(1)
        state = state.reserve(64) if reserved else state
        for piece in x[:, :tokens].split(256, 1):
            state = mixer(piece, state=state).state
        state = mixer(x[:, tokens : tokens + 1], state=state).state
        with Written() as written:
            mixer(x[:, tokens + 1 :], state=state)
    return written.count


def growth(name: str, reserved: bool = True) -> float:
    """Bytes more that a step writes for each token that was read before, beyond all windows."""
    first, second = (written_by_a_step(name, n, reserved) for n in (512, 1024))
    return (second - first) / 512


STREAMING = [
    member.name
    for member in ef.list_members()
    if member.can("causal") and member.can("streaming") and member.name not in CHOOSES
]


@pytest.mark.parametrize("name", STREAMING)
def test_a_step_writes_no_copy_of_the_past(name):
    if name in COPIES:
        assert growth(name) >= PAST, f"mended: {COPIES[name]}"
    else:
        assert growth(name) < PAST


@pytest.mark.parametrize("name", HELD)
def test_without_reserved_slots_it_does(name):
    assert growth(name, reserved=False) >= PAST


@pytest.mark.parametrize("name", HELD)
def test_two_texts_go_on_from_one_state(name):
    """The first writes behind what both read; the second finds the slots taken, and copies."""
    mixer = ef.create_mixer(name, width=WIDTH, heads=2, causal=True, max_length=24).double().eval()
    x, ends = draw(2, 9, WIDTH), [draw(2, 5, WIDTH, seed=n) for n in (2, 3)]
    with torch.no_grad():
        state = mixer(x, state=mixer.init_state(2).reserve(32)).state
        first = mixer(ends[0], state=state)
        second = mixer(ends[1], state=state)
        third = mixer(ends[1], state=first.state)
        for y, text in (
            (first.y, torch.cat((x, ends[0]), 1)),
            (second.y, torch.cat((x, ends[1]), 1)),
            (third.y, torch.cat((x, *ends), 1)),
        ):
            torch.testing.assert_close(y, mixer(text).y[:, -5:], rtol=0, atol=1e-12)


def test_room_that_is_full_is_doubled_and_holds_what_there_was():
    k, v = draw(2, 3, 40, 4), draw(2, 3, 40, 5, seed=9)
    state = KeyValueState.empty((2, 3), 4, 5, dtype=torch.float64).reserve(3)
    places, capacities = set(), []
    with torch.no_grad():
        for n in range(40):
            state = state.append(k[:, :, n : n + 1], v[:, :, n : n + 1], None, None)
            places.add(state.keys.untyped_storage().data_ptr())
            assert state.room is not None
            capacities.append(state.room.capacity)
    assert torch.equal(state.keys, k)
    assert torch.equal(state.values, v)
    assert sorted(set(capacities)) == [3, 8, 18, 38, 78]
    assert len(places) == 5


def test_with_gradients_tokens_are_copied():
    k = draw(2, 3, 1, 4)
    state = KeyValueState.empty((2, 3), 4, 4, dtype=torch.float64).reserve(8)
    assert state.append(k, k, None, None).room is None
    with torch.no_grad():
        assert state.append(k, k, None, None).room is state.room
