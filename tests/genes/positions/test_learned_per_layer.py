"""Tables before every layer: which row, where it enters, and what happens beyond the last."""

import pytest
import torch

from everyformer.core.errors import GeneError, ShapeError
from everyformer.genes.positions.learned_per_layer import LearnedPerLayer
from helpers import build_model

SIZES = {"width": 8, "heads": 2, "layers": 3, "max_length": 10}


def model(member="learned-per-layer", **more):
    made = build_model(member, **{**SIZES, "tie": False, **more})
    for position in made.stack.before or ():
        torch.nn.init.normal_(position.table)
    return made


def test_each_layer_reads_the_stream_plus_its_own_rows():
    made, x = model(), torch.randn(2, 7, 8).double()
    tokens = torch.zeros(2, 7).long()
    h = x
    for block, position in zip(made.stack.blocks, made.stack.before, strict=True):
        h = block(h + position.table[:7]).y
    expected = made.head(made.stack.norm(h))
    torch.testing.assert_close(made(tokens, embeddings=x).logits, expected)


def test_it_suits_mixers_that_take_no_position_inside():
    made, tokens = model(mixer="aft-simple"), torch.randint(0, 256, (1, 6))
    order = torch.tensor([2, 0, 1, 3, 4, 5])
    last = made(tokens).logits[:, -1] - made(tokens[:, order]).logits[:, -1]
    assert last.abs().max() > 1e-3


def test_beyond_the_table_is_an_error_also_in_a_stream():
    made, tokens = model(), torch.randint(0, 256, (1, 11))
    with pytest.raises(ShapeError, match="`max_length=10`, but position 10"):
        made(tokens)
    state = made(tokens[:, :10], state=made.init_state(1, dtype=torch.float64)).state
    with pytest.raises(ShapeError, match="position 10"):
        made(tokens[:, 10:], state=state)
    with pytest.raises(GeneError, match="max_length"):
        LearnedPerLayer(width=4)
