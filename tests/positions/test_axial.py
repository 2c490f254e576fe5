"""Axial positions: digits of the place pick rows of short tables."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError, ShapeError
from everyformer.positions.axial import Axial, axial_reference

SHAPES = [((3, 5), (4, 8)), ((2, 3, 4), (1, 2, 9)), ((12,), (12,)), (None, None)]


@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_every_place_is_its_definition(shape, dims):
    axial = Axial(width=12, max_length=11, options={"shape": shape, "dims": dims})
    places = torch.arange(axial.max_length)
    expected = torch.stack([axial_reference(p, list(axial.tables)) for p in places.tolist()])
    torch.testing.assert_close(axial.embed(places[None])[0], expected, rtol=0, atol=0)
    assert len(expected.unique(dim=0)) == axial.max_length >= 11
    assert sum(t.numel() for t in axial.tables) == sum(
        length * size
        for length, size in zip(axial.shape, [len(t[0]) for t in axial.tables], strict=True)
    )


def test_any_length_up_to_the_product_is_a_slice():
    model = ef.create_model("axial", width=12, heads=3, layers=1, max_length=30, shape=(5, 6))
    tokens = torch.randint(0, 256, (2, 17))
    whole = model(tokens).logits
    torch.testing.assert_close(model(tokens[:, :7]).logits, whole[:, :7])
    with pytest.raises(ShapeError, match="max_length=30"):
        model(torch.zeros(1, 31, dtype=torch.long))


def test_tables_start_with_unit_variance():
    torch.manual_seed(0)
    axial = Axial(width=128, max_length=4096)
    assert [tuple(t.shape) for t in axial.tables] == [(64, 64), (64, 64)]
    for table in axial.tables:
        assert abs(table.std() - 1) < 0.05


REFUSED = [
    ({"shape": (3, 3)}, 12, "reach 9 tokens, but max_length=12"),
    ({"shape": (4, 3), "dims": (5, 5)}, 12, "add up to width=12"),
    ({"shape": (4, 3), "dims": (12,)}, 12, "2 numbers"),
    ({}, None, "give max_length"),
]


@pytest.mark.parametrize(("options", "longest", "message"), REFUSED)
def test_shapes_that_do_not_fit_are_refused(options, longest, message):
    with pytest.raises(GeneError, match=message):
        Axial(width=12, max_length=longest, options=options)
