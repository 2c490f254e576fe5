"""How long a text may get: as long as the smallest table over positions says, to the token."""

import pytest
import torch

from everyformer.core.errors import ShapeError
from everyformer.family import list_members
from everyformer.models.build import create_model

LENGTH = 12


@pytest.mark.dear("lengths are looked at by the model, not by members")
@pytest.mark.parametrize("member", [m.name for m in list_members(task="lm")])
def test_a_text_of_the_longest_length_is_read_and_no_longer_one(member: str) -> None:
    model = create_model(member, width=16, heads=2, layers=1, vocabulary=11, max_length=LENGTH)
    model = model.eval()
    longest = model.longest
    text = torch.zeros(1, (longest or 4 * LENGTH) + 1, dtype=torch.long)
    with torch.inference_mode():
        model(text[:, :-1])
        if longest is None:
            model(text)
        else:
            assert longest >= LENGTH
            with pytest.raises(ShapeError, match="max_length"):
                model(text)
