"""States that grow: tokens go into reserved slots, and a step copies nothing of the past."""

import pytest
import torch

import everyformer as ef
from everyformer.checks.cases import Case
from everyformer.engines.softmax.cache import KeyValueState
from helpers import draw
from sequence_laws.operations import Counter

HELD = {"attention": 256, "aft-full": 256, "gmlp": 256, "amlp": 768, "linformer-chunked": 64}
"""members whose states grow, and the bytes of a token in float32"""
TEXTS = {"attention": {}, "aft-full": {}, "gmlp": {}, "amlp": {}, "linformer": {"causal_chunk": 4}}
"""their mixers, with options"""
WIDTH = 32


def written_by_a_step(name: str, tokens: int, reserved: bool) -> int:
    """Bytes that one token after so many writes."""
    sizes = {"width": WIDTH, "heads": 2, "length": tokens + 8}
    mixer = Case(ef.info(name), {}, True).mixer(torch.float32, **sizes)
    x = draw(1, tokens + 2, WIDTH, dtype=torch.float32)
    with torch.inference_mode():
        state = mixer.init_state(1)
        state = state.reserve(64) if reserved else state
        for piece in x.split([tokens, 1, 1], 1):
            with Counter() as counted:
                state = mixer(piece, state=state).state
    return counted.written


@pytest.mark.parametrize("name", HELD)
def test_reserved_slots_spare_a_copy_of_the_past(name):
    """Of all that is held, once; with them nothing is copied by the law `traffic`."""
    without, reserved = (written_by_a_step(name, 512, each) for each in (False, True))
    # beside the slots lies a segment of a few tokens
    assert without - reserved == pytest.approx(512 * HELD[name], rel=0.015)


@pytest.mark.parametrize(("name", "options"), TEXTS.items())
def test_two_texts_go_on_from_one_state(name, options):
    """The first writes behind what both read; the second finds the slots taken, and copies."""
    sizes = {"width": WIDTH, "heads": 2, "causal": True, "max_length": 24}
    mixer = ef.create_mixer(name, **sizes, **options).double().eval()
    x, ends = draw(2, 9, WIDTH), [draw(2, 5, WIDTH, seed=n) for n in (2, 3)]
    with torch.no_grad():
        state = mixer(x, state=mixer.init_state(2).reserve(32)).state
        first = mixer(ends[0], state=state)
        second = mixer(ends[1], state=state)
        third = mixer(ends[1], state=first.state)
        for out, read in ((first, ends[:1]), (second, ends[1:]), (third, ends)):
            expected = mixer(torch.cat((x, *read), 1)).y[:, -5:]
            torch.testing.assert_close(out.y, expected, rtol=0, atol=1e-12)


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
