"""A scored text does not find its own rows: what is left out, and that all else is found."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from everyformer.core.errors import ConfigError
from everyformer.datastores.own import own_rows, search_apart, standing_in
from everyformer.datastores.store.index import build_index
from everyformer.datastores.store.options import SearchOptions
from everyformer.datastores.store.record import Origin
from everyformer.datastores.store.store import Store
from everyformer.datastores.store.writing import Writer
from everyformer.models.knn_lm import Scored

END = 9
"""the token between documents"""
DRAW = np.random.default_rng(0)
DOCUMENTS = [DRAW.integers(0, 9, n).tolist() for n in (40, 3, 25, 2)]
DOCUMENTS.append(DOCUMENTS[2])
TEXT = [token for document in DOCUMENTS for token in (*document, END)]
FIRST = [0, 39, 41, 65, 66]
"""first rows of the documents"""
ROWS = 90


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Random keys; the values of a document are its tokens from the second on."""
    with Writer.create(tmp_path / "store", Origin("m", "t", "hidden:1", 8, 8), 3, "float32") as new:
        for number, tokens in enumerate(DOCUMENTS):
            new.document(f"{number}.txt")
            keys = DRAW.standard_normal((len(tokens) - 1, 3)).astype(np.float32)
            new.add(keys, np.array(tokens[1:]))
        new.finish()
    return Store.open(tmp_path / "store")


def literally(window: list[int], place: int) -> list[int]:
    """Rows at whose place the window's token is, by the definition alone."""
    found = []
    for document, first in zip(DOCUMENTS, FIRST, strict=True):
        for offset in range(1, len(document)):
            agree = True
            for i, token in enumerate(window):
                u = offset + i - place
                if 0 < u < len(document):
                    agree &= token == document[u]
                elif u in (-1, len(document)):
                    agree &= token == END
            if agree:
                found.append(first + offset - 1)
    return found


def scored(starts: list[int], length: int) -> Scored:
    windows = torch.tensor([TEXT[s : s + length + 1] for s in starts])
    row = torch.arange(len(starts)).repeat_interleave(length)
    return Scored(windows, row, torch.arange(length).repeat(len(starts)))


WINDOWS = [(0, 8), (5, 16), (33, 16), (40, 6), (44, 12), (60, 11), (64, 35)]


@pytest.mark.parametrize(("start", "length"), WINDOWS)
def test_own_rows_are_those_whose_document_reads_as_the_window_does(
    store: Store, start: int, length: int
) -> None:
    asked = scored([start], length)
    everything = np.tile(np.arange(ROWS), (length, 1))
    found = own_rows(store, asked, everything, END)
    window = TEXT[start : start + length + 1]
    for place in range(length):
        assert np.flatnonzero(found[place]).tolist() == literally(window, place + 1)
    # inside the first document, which stands there once, the row is the place itself
    if start + length < 40:
        assert [np.flatnonzero(row).tolist() for row in found] == [
            [start + place] for place in range(length)
        ]


def test_padding_contradicts_nothing(store: Store) -> None:
    asked = scored([5], 16)
    padded = torch.cat((torch.full((1, 4), -1), asked.windows, torch.full((1, 2), -1)), 1)
    everything = np.tile(np.arange(ROWS), (16, 1))
    expected = own_rows(store, asked, everything, END)
    found = own_rows(store, Scored(padded, asked.row, asked.place + 4), everything, END)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("k", [1, 7, 80, ROWS])
def test_what_is_found_is_the_search_of_a_store_without_those_rows(store: Store, k: int) -> None:
    asked = scored([0, 5, 44, 64], 16)
    queries = torch.randn(len(asked.row), 3, generator=torch.Generator().manual_seed(0))
    index = build_index(store, SearchOptions(kind="exact"), say=lambda _: None)
    found = search_apart(index, queries, k, asked, END)
    squares = (queries[:, None] - store.key_tensor[None]).square().sum(-1)
    for n, (row, place) in enumerate(zip(asked.row.tolist(), asked.place.tolist(), strict=True)):
        out = set(literally(asked.windows[row].tolist(), place + 1))
        kept = [r for r in range(ROWS) if r not in out]
        expected = squares[n, kept].sort().values[:k]
        none = torch.full((k - len(expected),), math.inf)
        torch.testing.assert_close(found.distances[n], torch.cat((expected, none)))
        assert out.isdisjoint(found.rows[n].tolist())
        assert (found.rows[n] >= 0).sum() == len(expected)


def test_more_neighbours_than_rows_are_refused_as_without(store: Store) -> None:
    index = build_index(store, SearchOptions(kind="exact"), say=lambda _: None)
    with pytest.raises(ConfigError, match="k=91"):
        search_apart(index, torch.zeros(8, 3), 91, scored([0], 8), END)


def test_a_text_without_separators_ends_where_it_ends(store: Store) -> None:
    """The last window of one document alone, and one that goes on behind it with another text."""
    for after, expected in (([], True), ([1, 2, 3], False)):
        window = torch.tensor([[*DOCUMENTS[0][30:], *after]])
        length = window.shape[1] - 1
        asked = Scored(window, torch.zeros(9).long(), torch.arange(9))
        found = own_rows(store, asked, np.arange(30, 39)[:, None], END)
        assert found.all() == expected, length
    assert list(itertools.accumulate(len(d) - 1 for d in DOCUMENTS)) == [*FIRST[1:], ROWS]


def test_windows_that_stand_in_the_store_are_counted(store: Store) -> None:
    strange = [8 - token if token < END else END for token in TEXT[:36]]
    windows = np.array([TEXT[:36], strange, TEXT[40:76], TEXT[2:38]])
    assert standing_in(store, windows, END) == 3
    assert standing_in(store, windows[1:2], END) == 0
    # a document's end in front of what no document goes on with
    assert standing_in(store, np.array([[*DOCUMENTS[0][20:], END, *[7] * 9]]), END) == 1


def test_one_other_token_anywhere_in_the_window_contradicts(store: Store) -> None:
    window = torch.tensor([DOCUMENTS[0][:36]])
    row, place = torch.zeros(35).long(), torch.arange(35)
    assert own_rows(store, Scored(window, row, place), np.arange(35)[:, None], END).all()
    for at in range(1, 36):
        other = window.clone()
        other[0, at] = 8 - other[0, at] if other[0, at] != 4 else 0
        assert not own_rows(store, Scored(other, row, place), np.arange(35)[:, None], END).any()
