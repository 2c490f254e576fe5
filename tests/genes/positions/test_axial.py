"""Axial positions: digits of the place pick rows of short tables."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError, ShapeError
from everyformer.genes.positions.axial import Axial

SHAPES = [((3, 5), (4, 8)), ((2, 3, 4), (1, 2, 9)), ((12,), (12,)), (None, None)]


def digits(position, tables):
    """Rows of the position's digits, the last first."""
    for table in reversed(tables):
        position, digit = divmod(position, len(table))
        yield table[digit]


@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_every_place_is_its_definition(shape, dims):
    axial = Axial(width=12, max_length=11, options={"shape": shape, "dims": dims})
    places = torch.arange(axial.max_length)
    rows = [[*digits(p, axial.tables)][::-1] for p in places.tolist()]
    expected = torch.stack([torch.cat(row) for row in rows])
    torch.testing.assert_close(axial.embed(places[None])[0], expected, rtol=0, atol=0)
    assert len(expected.unique(dim=0)) == axial.max_length >= 11
    assert tuple(map(len, axial.tables)) == axial.shape


def test_any_length_up_to_the_product_is_a_slice():
    model = ef.create_model("axial", width=12, heads=3, layers=1, max_length=30, shape=(5, 6))
    tokens = torch.randint(0, 256, (2, 17))
    whole = model(tokens).logits
    torch.testing.assert_close(model(tokens[:, :7]).logits, whole[:, :7])
    with pytest.raises(ShapeError, match="max_length=30"):
        model(torch.zeros(1, 31, dtype=torch.long))


STARTS = [
    ("axial", {}, 1.0),
    ("axial", {"combine": "sum"}, 1.0),
    ("axial", {"scale_embedding": False}, 0.02),
    ("axial", {"init": "bert"}, 0.02),
    ("axial", {"tie": False, "init": "sparse-transformer"}, 0.01),
    ("axial", {"combine": "sum", "tie": False, "init": "sparse-transformer"}, 0.01),
    ("reformer", {}, 1.0),
]


@pytest.mark.parametrize(("member", "options", "std"), STARTS, ids=str)
def test_places_start_at_the_scale_of_the_tokens_they_are_added_to(member, options, std):
    torch.manual_seed(0)
    made = ef.create_model(member, width=128, max_length=4096, layers=1, vocabulary=500, **options)
    assert [len(t) for t in made.position.tables] == [64, 64]
    tokens = made.embed(made.embedding, torch.arange(500)[None])
    places = made.position.embed(torch.arange(4096)[None])
    assert tokens.std().item() == pytest.approx(std, rel=0.05)
    assert places.std().item() == pytest.approx(std, rel=0.05)


INITS = ["member", "bert", "gpt2", "sparse-transformer", "image-transformer"]
TABLES = {"learned": "std", "axial": "std", "learned-per-layer": "std", "shaw": "std",
          "t5-relative": "std", "xl-relative": "start_std"}  # fmt: skip


EACH = [*zip(TABLES, [*INITS, "bert"], strict=True), *(("learned", init) for init in INITS[1:])]


@pytest.mark.parametrize(("position", "init"), EACH)
def test_a_scale_that_is_asked_for_stands_beside_every_init(position, init):
    torch.manual_seed(0)
    made = ef.create_model(
        "attention", width=128, heads=2, layers=2, max_length=256, tie=False, init=init,
        position=position, position_options={TABLES[position]: 0.5},
    )  # fmt: skip
    tables = [p for p in made.parameters() if getattr(p, "no_decay", False)]
    assert tables
    assert torch.cat([t.flatten() for t in tables]).std().item() == pytest.approx(0.5, rel=0.2)


REFUSED = [
    ({"shape": (3, 3)}, 12, "reach 9 tokens, but `max_length=12`"),
    ({"shape": (4, 3), "dims": (5, 5)}, 12, "add up to `width=12`"),
    ({"shape": (4, 3), "dims": (12,)}, 12, "2 numbers"),
    ({}, None, "give `max_length"),
]


@pytest.mark.parametrize(("options", "longest", "message"), REFUSED)
def test_shapes_that_do_not_fit_are_refused(options, longest, message):
    with pytest.raises(GeneError, match=message):
        Axial(width=12, max_length=longest, options=options)
