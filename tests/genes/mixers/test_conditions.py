"""What a mixer is told beside its tokens: packing, padding, pairs, states; alone and together."""

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.checks.cases import Case, cases, draw
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.core.trials import WIDTH
from everyformer.family import list_members
from helpers import covering

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
EXACT = {"rtol": 0, "atol": 1e-12}
float64 = torch.float64


BY_LENGTH = [
    {"kind": "dynamic", "factor": 4.0, "original_length": 3},
    {"kind": "longrope", "factor": 4.0, "original_length": 6, "short": (1.0, 1.0)}
    | {"long": (3.0, 7.0)},
]
PATTERNS = {
    "longformer": ({"window": 4}, {"window": 4, "global_tokens": (0, 3)}),
    "bigbird": ({"block_size": 2, "random_blocks": 1},),
    "sparse-transformer": ({"stride": 3}, {"pattern": "fixed", "stride": 3, "mode": "heads"}),
    "blockwise": ({"blocks": 3, "groups": (1, 1, 1)},),
    "image-transformer": ({"block_size": 4, "memory_size": 3},),
    "attention": ({},),
}


@covering(name=PATTERNS, causal=[True, False], scaling=BY_LENGTH)
def test_scaled_rotations_count_the_real_tokens_alone(name, causal, scaling):
    member = ef.info(name)
    for options in PATTERNS[name]:
        own = {"position": "rope", "position_options": {"scaling": scaling}, **options}
        case = Case(member, own, causal)
        mixer = case.mixer(float64)
        alone = [draw(1, n, WIDTH, seed=n) for n in (5, 9)]
        x, padding_mask = torch.full((2, 10, WIDTH), 9.0, dtype=float64), torch.zeros(2, 10).bool()
        for row, (text, places) in enumerate(zip(alone, ((1, 2, 4, 5, 6), range(9)), strict=True)):
            x[row, list(places)], padding_mask[row, list(places)] = text[0], True
        mask = Mask(padding_mask=padding_mask)
        for y in (mixer(x, mask=mask).y, mixer.reference(x, mask=mask)):
            for row, text in enumerate(alone):
                assert_close(y[row, padding_mask[row]], mixer.reference(text)[0], **CLOSE)


def test_pairs_beside_a_state_are_those_of_this_call():
    mixer = ef.create_mixer("attention", width=WIDTH, heads=3, causal=True).double()
    x = draw(2, 7, WIDTH)
    state = mixer(x[:, :4], state=mixer.init_state(2)).state
    attention_mask, bias = draw(2, 1, 3, 3, seed=3) > -0.4, draw(3, 3, 3, seed=4)
    attention_mask[..., torch.arange(3), torch.arange(3)] = True
    wide = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    wide[..., 4:, 4:] = attention_mask
    added = torch.zeros(3, 7, 7, dtype=float64)
    added[:, 4:, 4:] = bias
    expected = mixer(x, mask=Mask(attention_mask=wide, bias=added)).y[:, 4:]
    mask = Mask(attention_mask=attention_mask, bias=bias)
    assert_close(mixer(x[:, 4:], mask=mask, state=state).y, expected)


@pytest.mark.parametrize("memory", [None, "segment"])
def test_a_single_false_hides_this_call_and_not_the_past(memory):
    member = ef.info("attention" if memory is None else "transformer-xl")
    own = {} if memory is None else {"slots": 8, "position": "rope"}
    mixer = Case(member, own).mixer(float64)
    x = draw(1, 5, WIDTH)
    state = mixer(x[:, :4], state=mixer.init_state(1)).state
    hidden = Mask(attention_mask=torch.zeros(1, 1, dtype=torch.bool))
    wide = torch.ones(5, 5, dtype=torch.bool)
    wide[4, 4] = False
    expected = mixer.reference(x, mask=Mask(attention_mask=wide))[:, 4:]
    assert_close(mixer(x[:, 4:], mask=hidden, state=state).y, expected, **CLOSE)


@pytest.mark.parametrize("shape", [(3, 7), (3, 4), (2, 3, 3), (4, 1, 3, 3), (1, 1, 1, 3, 3), (7,)])
def test_pairs_of_another_shape_are_refused(shape):
    mixer = ef.create_mixer("attention", width=WIDTH, heads=3, causal=True).double()
    x = draw(2, 7, WIDTH)
    state = mixer(x[:, :4], state=mixer.init_state(2)).state
    shapes = r"mask.attention_mask is .*\(2, 3, 3, 3\).*a state's are not"
    with pytest.raises(ShapeError, match=shapes):
        mixer(x[:, 4:], mask=Mask(attention_mask=torch.ones(shape, dtype=torch.bool)), state=state)
    with pytest.raises(ShapeError, match=r"mask.bias is .*\(2, 3, 3, 3\)"):
        mixer(x[:, 4:], mask=Mask(bias=torch.zeros(shape)), state=state)


MEMORIES = [m for m in list_members() if m.genes["memory"].name is not None]


@pytest.mark.parametrize("member", MEMORIES, ids=lambda m: m.name)
def test_what_is_remembered_does_not_depend_on_ids_in_padding(member):
    for case in cases(member):
        mixer = case.mixer(float64)
        x, padding_mask = draw(2, 5, WIDTH), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
        later = draw(2, 3, WIDTH, seed=5)
        ids = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]])
        made = []
        for padding in (1, 0, 7):
            documents = torch.where(padding_mask, ids, padding)
            state = mixer(x, state=mixer.init_state(2)).state
            mask = Mask(padding_mask=padding_mask, documents=documents)
            state = mixer(x, mask=mask, state=state).state
            made.append(mixer(later, state=state).y)
        assert_close(made[0], made[1], **EXACT)
        assert_close(made[0], made[2], **EXACT)
