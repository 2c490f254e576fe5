"""A mixer that is made without memory and filled afterwards is the one that was saved."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import EveryformerError

SIZES = {"width": 16, "heads": 2, "max_length": 24}


def able(name, causal):
    try:
        ef.create_mixer(name, causal=causal, **SIZES)
    except EveryformerError:
        return False
    return True


CASES = [
    (member.name, causal)
    for member in ef.list_members()
    for causal in (True, False)
    if member.is_mixer and able(member.name, causal)
]


@pytest.mark.dear("what a mixer keeps is in the laws of every member")
@pytest.mark.parametrize(("name", "causal"), CASES)
def test_a_mixer_made_on_meta_and_filled_is_the_one_that_was_saved(name, causal):
    torch.manual_seed(0)
    made = ef.create_mixer(name, causal=causal, **SIZES).eval()
    with torch.device("meta"):
        hollow = ef.create_mixer(name, causal=causal, **SIZES).eval()
    hollow.to_empty(device="cpu").load_state_dict(made.state_dict())
    x = torch.randn(2, 24, 16)
    torch.manual_seed(1)
    expected = made(x).y
    torch.manual_seed(1)
    assert torch.equal(hollow(x).y, expected)
