"""States: rows reset, reordered and counted without touching the original."""

import pytest
import torch

from everyformer import create_mixer, create_model
from everyformer.core.errors import ShapeError
from everyformer.core.state import StackState
from everyformer.genes.mixers import MIXERS
from helpers import build_mixer


def held_state(batch=3):
    mixer = create_mixer("attention", width=8, heads=2, causal=True)
    x = torch.randn(batch, 5, 8)
    return mixer, mixer(x, state=mixer.init_state(batch)).state


def test_a_reset_of_the_wrong_shape_is_refused():
    _, state = held_state()
    wrong = (torch.tensor([True]), torch.tensor([1, 0, 1]), torch.ones(3, 1, dtype=torch.bool))
    for where in (*wrong, [1], 1, [True, False, True]):
        with pytest.raises(ShapeError, match="one bool for each of the state's 3 rows"):
            state.reset(where)


def test_reset_clears_only_the_rows_asked_for_and_keeps_the_original():
    mixer, state = held_state()
    assert state.nbytes == 3 * (5 * (8 + 8) * 4 + 8)
    cleared = state.reset(torch.tensor([False, True, False]))
    assert cleared.position.tolist() == [5, 0, 5]
    assert not cleared.padding_mask[1].any()
    assert cleared.padding_mask[0].all()
    assert state.position.tolist() == [5, 5, 5]
    # rows are picked, repeated and dropped
    picked = state.reorder(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(picked.keys[0], state.keys[2])
    assert picked.position.shape == (4,)
    # an old state stays valid after it was continued
    x = torch.randn(3, 1, 8)
    first = mixer(x, state=state).y
    mixer(torch.randn(3, 3, 8), state=state)
    assert torch.equal(mixer(x, state=state).y, first)


def test_detach_reset_and_dtype_change_reach_every_layer():
    model = create_model("attention", width=8, layers=2, heads=2)
    state = model(torch.randint(0, 256, (1, 4)), state=model.init_state(1)).state
    assert isinstance(state, StackState)
    assert any(t.requires_grad for t in state.tensors())
    assert state.reset(torch.tensor([True])).layers[1].num_tokens.tolist() == [0]
    detached = state.detach().to(dtype=torch.float64)
    assert not any(t.requires_grad for t in detached.tensors())
    assert detached.layers[1].keys.dtype == torch.float64
    assert detached.position.dtype == torch.int64


def test_a_state_with_room_is_extended_in_place_and_two_continuations_do_not_disturb_each_other():
    mixer, plain = held_state(2)
    xs = torch.randn(3, 2, 4, 8)
    with torch.inference_mode():
        roomy = plain.detach().reserve(12)
        before = roomy.keys.clone()
        first = mixer(xs[0], state=roomy)
        # the slots of the next tokens lie right behind
        assert first.state.keys.data_ptr() == mixer(xs[1], state=first.state).state.keys.data_ptr()
        first = mixer(xs[0], state=plain.detach().reserve(12))
        second = mixer(xs[1], state=roomy)
        for x, held, base in ((xs[0], first, roomy), (xs[1], second, roomy)):
            expected = mixer(x, state=plain)
            torch.testing.assert_close(held.y, expected.y)
            torch.testing.assert_close(held.state.keys, expected.state.keys)
            more, wanted = mixer(xs[2], state=held.state), mixer(xs[2], state=expected.state)
            torch.testing.assert_close(more.y, wanted.y)
            assert torch.equal(base.keys, before)
        swapped = mixer(xs[2], state=first.state.reorder(torch.tensor([1, 0]))).y
        direct = mixer(xs[2].flip(0), state=first.state).y
        torch.testing.assert_close(swapped.flip(0), direct)


@pytest.mark.parametrize("name", sorted(set(MIXERS.names()) - {"etc", "by-head"}))
def test_an_empty_state_has_the_dtype_that_is_asked_for(name):
    options = {"causal_chunk": 4} if name == "linformer" else {}
    mixer = build_mixer(name, width=8, heads=2, causal=True, max_length=16, **options)
    own, other = (
        {t.dtype for t in mixer.init_state(2, dtype=dtype).tensors() if t.is_floating_point()}
        for dtype in (None, torch.bfloat16)
    )
    # sums may be wider than what is asked for, never as wide as the weights here
    assert torch.float64 in own
    assert torch.float64 not in other
