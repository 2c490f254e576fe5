"""Tables before every layer: which row, where it enters, and what happens beyond the last."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.generation.config import Sampling
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


@pytest.mark.parametrize(("align", "rows"), [("start", [0, 1, 2]), ("end", [7, 8, 9])])
def test_rows_count_from_the_start_or_from_the_end(align, rows):
    made = model(align=align)
    made(torch.randint(0, 256, (2, 3))).logits.square().sum().backward()
    for position in made.stack.before:
        used = position.table.grad.abs().sum(1) > 0
        assert used.nonzero().flatten().tolist() == rows


def test_the_end_of_each_row_and_document_is_its_own():
    position = LearnedPerLayer(width=2, max_length=10, options={"align": "end"})
    places = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])
    expected = torch.tensor([[9, 9, 7, 8, 9], [5, 6, 7, 8, 9], [8, 9, 7, 8, 9]])
    assert torch.equal(position.embed(places), position.table[expected])


def test_left_padding_and_packing_change_nothing_with_rows_from_the_end():
    made, tokens = model(align="end"), torch.randint(0, 256, (1, 8))
    keep = torch.tensor([[False] * 3 + [True] * 5])
    padded = made(tokens, mask=Mask(keep=keep)).logits[:, 3:]
    torch.testing.assert_close(padded, made(tokens[:, 3:]).logits)
    packed = made(tokens, mask=Mask(documents=torch.tensor([[0] * 3 + [1] * 5]))).logits
    alone = torch.cat([made(part).logits for part in tokens.split([3, 5], 1)], 1)
    torch.testing.assert_close(packed, alone)


def test_beyond_the_table_is_an_error_also_in_a_stream():
    made, tokens = model(), torch.randint(0, 256, (1, 11))
    with pytest.raises(ShapeError, match="max_length=10, but position 10"):
        made(tokens)
    state = made(tokens[:, :10], state=made.init_state(1, dtype=torch.float64)).state
    with pytest.raises(ShapeError, match="position 10"):
        made(tokens[:, 10:], state=state)


def test_rows_from_the_end_have_no_state_and_a_table_needs_its_length():
    with pytest.raises(UnsupportedError, match="align='end'"):
        model(align="end").init_state(1)
    with pytest.raises(GeneError, match="max_length"):
        LearnedPerLayer(width=4)


def test_generation_without_a_state_recomputes_the_whole_text():
    made, text = model(align="end").float(), torch.tensor([[1, 2, 3]])
    new = ef.generate(made, text, tokens=3, sampling=Sampling(temperature=0.0))
    for _ in range(3):
        text = torch.cat((text, made(text).logits[:, -1:].argmax(-1)), 1)
    assert torch.equal(new, text[:, 3:])
