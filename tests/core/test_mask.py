"""Masks: positions count real tokens; a part that cannot be honoured is an error."""

import itertools

import pytest
import torch

from everyformer import create_mixer
from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.core.mask import Mask, document_positions, lengths_of, positions_of, runs_of

POSITIONS = [
    ([0, 0, 1, 1, 1], [0, 0, 0, 1, 2]),
    ([1, 1, 1, 0, 0], [0, 1, 2, 2, 2]),
    ([1, 0, 1, 0, 1], [0, 1, 1, 2, 2]),
    ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
]


@pytest.mark.parametrize(("padding_mask", "expected"), POSITIONS)
def test_positions_count_the_real_tokens_before(padding_mask, expected):
    mask = Mask(padding_mask=torch.tensor([padding_mask]).bool())
    found = positions_of(1, 5, mask, None, torch.device("cpu"))
    assert found.tolist() == [expected]
    later = positions_of(1, 5, mask, torch.tensor([7]), torch.device("cpu"))
    assert later.tolist() == [[7 + p for p in expected]]


def test_positions_restart_in_every_document():
    documents = torch.tensor([[3, 3, 3, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    assert document_positions(documents).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]
    # an id that comes again is another document
    ids = torch.tensor([[0, 0, 1, 1, 0]])
    assert runs_of(ids).tolist() == [[0, 0, 1, 1, 2]]
    assert document_positions(ids).tolist() == [[0, 1, 0, 1, 0]]


def test_ids_of_padding_begin_no_document():
    ids = torch.tensor([[3, 3, 8, 3, 1, 7, 1, 1], [9, 2, 2, 2, 2, 3, 9, 9]])
    padding_mask = torch.tensor([[1, 1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, 1, 0, 0]]).bool()
    assert runs_of(ids, padding_mask).tolist() == [[0] * 4 + [1] * 4, [0] * 5 + [1] * 3]
    assert document_positions(ids, padding_mask).tolist() == [
        [0, 1, 2, 2, 0, 1, 1, 1],
        [0, 0, 1, 2, 2, 0, 0, 0],
    ]


RUNS = [[0, 1, 1, 1, 1], [5, 5, 2, 4, 4], [0, 0, 1, 1, 0], [1, 2, 3, 4, 5], [7] * 5]


@pytest.mark.parametrize("documents", RUNS)
@pytest.mark.parametrize("padding_mask", [None, [1, 1, 0, 1, 1], [0, 1, 1, 1, 0], [1, 0, 1, 0, 1]])
def test_every_real_token_knows_how_long_its_document_is(documents, padding_mask):
    ids = torch.tensor([documents])
    real = (
        torch.ones_like(ids, dtype=torch.bool)
        if padding_mask is None
        else torch.tensor([padding_mask]).bool()
    )
    positions = positions_of(
        1, 5, Mask(padding_mask=real, documents=ids), None, torch.device("cpu")
    )
    left = [documents[i] for i in range(5) if real[0, i]]
    expected = [len(list(run)) for _, run in itertools.groupby(left)]
    lengths = [n for n in expected for _ in range(n)]
    assert lengths_of(positions)[real].tolist() == lengths


def test_lengths_become_flags():
    mask = Mask.from_lengths(torch.tensor([2, 0, 3]), 3)
    assert mask.padding_mask.int().tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    with pytest.raises(ShapeError, match="lengths must be"):
        Mask.from_lengths(torch.tensor([1.5]), 3)
    with pytest.raises(ShapeError, match="one flag per token"):
        positions_of(2, 6, Mask(padding_mask=torch.ones(2, 5).bool()), None, torch.device("cpu"))


@pytest.mark.parametrize("name", ["aft-simple", "gmlp"])
def test_a_part_that_a_member_cannot_honour_is_refused(name):
    mixer = create_mixer(name, width=8, heads=2, max_length=8)
    with pytest.raises(UnsupportedError, match=r"cannot honour.*bias"):
        mixer(torch.randn(1, 4, 8), mask=Mask(bias=torch.zeros(4, 4)))
    # what is told for a compiler is no part to honour
    mask = Mask(global_tokens=torch.ones(1, 3, dtype=torch.bool), prefix=3)
    assert mask.parts() == ["global_tokens"]
    mask.require("a mixer", frozenset({"global_tokens"}))
