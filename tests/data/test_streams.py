"""Text in order: nothing dropped, nothing read twice, rows that go on, documents that end."""

import dataclasses

import numpy as np
import pytest
import torch

from everyformer.core.errors import DataError
from everyformer.data.batch import IGNORED
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.plain import ByteTokenizer


def text(tokens: int, length: int, stride: int | None = None, **more: object) -> TextDataset:
    row = np.arange(tokens).astype(np.int32)
    return TextDataset(
        name="text", task="lm", kind="text", vocabulary=tokens, length=length, split="",
        fingerprint="", train=row, validation=row, stride=stride, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def real_tokens(batch):
    return (
        torch.ones_like(batch.inputs, dtype=torch.bool)
        if batch.padding_mask is None
        else batch.padding_mask
    )


SIZES = [(41, 4, 3), (41, 4, 1), (100, 7, 5), (9, 8, 2), (30, 5, 7)]


@pytest.mark.parametrize(("tokens", "length", "rows"), SIZES)
def test_training_reads_every_token_equally_often_and_goes_on_row_by_row(tokens, length, rows):
    data, steps = text(tokens, length), tokens - 1
    batches = [data.segment(step, rows) for step in range(steps)]
    inputs = torch.cat([batch.inputs for batch in batches], 1)
    targets = torch.cat([batch.targets for batch in batches], 1)
    # after as many steps as there are targets every row has gone round ``length`` times
    counts = torch.bincount(targets.flatten(), minlength=tokens)
    assert counts[0] == 0
    assert set(counts[1:].tolist()) == {rows * length}
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs[:, 1:], (inputs[:, :-1] + 1) % (tokens - 1))


class Named:
    """Of each position one neighbour: the position and a number of the part."""

    def __init__(self, part: int) -> None:
        self.part = part

    def at(self, positions: np.ndarray) -> np.ndarray:
        return (positions + self.part).astype(np.int32)[..., None]


def test_neighbours_are_those_of_the_tokens_however_a_text_is_read():
    data = text(41, 4, neighbours=(Named(1000), Named(5000)))
    data = dataclasses.replace(data, validation=data.validation.copy())
    training = [data.train_batch(3, 5, 0), *(data.segment(step, 3) for step in range(12))]
    assert any(batch.documents is not None for batch in training)
    held = [*data.validation_batches(4), *data.in_order(3)]
    for ahead, batch in data.warmed(4, None, 2):
        held.append(batch)
        # what lies before the start of a text is padding
        held += [part for part in ahead if part.padding_mask is None]
    for part, batches in ((1000, training), (5000, held)):
        for batch in batches:
            assert torch.equal(batch.neighbours[..., 0], batch.inputs + part)
            assert torch.equal(batch.rows(1, 3).neighbours, batch.neighbours[1:3])


def test_a_document_begins_where_a_stream_comes_to_the_start_of_the_text():
    batch = text(11, 4).segment(2, 1)
    assert batch.inputs.tolist() == [[8, 9, 0, 1]]
    assert batch.documents.tolist() == [[0, 0, 1, 1]]
    assert text(11, 4).segment(1, 1).documents is None


@pytest.mark.parametrize(("tokens", "length", "streams"), [*SIZES, (41, 4, 100)])
def test_held_out_text_is_scored_once(tokens, length, streams):
    scored: list[int] = []
    before = None
    for batch in text(tokens, length).in_order(streams):
        assert batch.inputs.shape == (streams, length)
        real = batch.targets != IGNORED
        assert torch.equal(batch.targets[real], batch.inputs[real] + 1)
        scored += batch.targets[real].tolist()
        if before is not None:
            goes_on = batch.inputs[:, 0] == before[:, -1] + 1
            assert bool((goes_on | ~real[:, 0]).all())
        before = batch.inputs
    assert sorted(scored) == list(range(1, tokens))


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("stride", [None, 2])
@pytest.mark.parametrize("before", [2, 10**11])
def test_windows_are_the_usual_ones_with_the_text_before_them(stride, limit, before):
    data = text(43, 5, stride)
    plain = list(data.validation_batches(4, limit))
    warmed = list(data.warmed(4, limit, before))
    for usual, (ahead, batch) in zip(plain, warmed, strict=True):
        assert torch.equal(usual.inputs, batch.inputs)
        assert torch.equal(usual.targets, batch.targets)
        rows = torch.cat([*(part.inputs for part in ahead), batch.inputs], 1)
        kept = torch.cat([real_tokens(part) for part in (*ahead, batch)], 1)
        for row, real, start in zip(rows, kept, batch.inputs[:, 0].tolist(), strict=True):
            first = max(0, start - 5 * before)
            assert row[real].tolist() == list(range(first, start + 5))


def test_packed_documents_keep_their_ids():
    row = np.frombuffer(b"ab\0cde\0fg\0hij", dtype=np.uint8)
    data = TextDataset(
        name="text", task="lm", kind="text", vocabulary=256, length=4, split="", fingerprint="",
        train=row, validation=row, packed=True, tokenizer=ByteTokenizer(),
    )  # fmt: skip
    ids = [batch.documents[0].tolist() for batch in data.in_order(1)]
    # the text's own start begins a document too: only id 0 continues what was before
    assert ids == [[1, 1, 2, 2], [0, 0, 1, 1], [0, 1, 1, 1]]


def test_all_held_out_leaves_nothing_to_train_on():
    data = text(9, 4)
    empty = TextDataset(**{**data.__dict__, "train": data.train[:0]})
    with pytest.raises(DataError, match="nothing to train on"):
        empty.segment(0, 2)
