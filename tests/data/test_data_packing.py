"""Packed documents: each is as if it were alone, and what cannot honour that is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from data_files import Load, write

import everyformer as ef
from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.core.tasks import LM, MLM
from everyformer.data.batch import IGNORED
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.family import list_members
from everyformer.training.evaluate import evaluate
from everyformer.training.step import forward
from helpers import build_model, shifted

TEXTS = ("first one", "b", "the third text here", "d4", "and so on")
LENGTH = 29
DOCUMENTS = {f"{n}.txt": f"document {n} " * 5 for n in range(9)}


def packed(texts: tuple[str, ...], length: int) -> TextDataset:
    tokens = np.frombuffer(("\0" + "\0".join(texts) + "\0").encode(), np.uint8)
    return TextDataset(
        name="t", task="lm", kind="text", vocabulary=256, length=length, split="", fingerprint="",
        tokenizer=ByteTokenizer(), train=tokens, validation=tokens, packed=True,
    )  # fmt: skip


def small(member: str, task: str = LM) -> Any:
    sizes = {"width": 12, "heads": 3, "layers": 2, "max_length": 64}
    return shifted(build_model(member, task, vocabulary=257, **sizes), 0.2)


@pytest.mark.dear("packing is in the laws of every member")
@pytest.mark.parametrize("member", [m.name for m in list_members(task=LM)])
def test_the_loss_of_packed_documents_is_that_of_the_documents_apart(member: str) -> None:
    whole = sum(len(text) + 1 for text in TEXTS)
    data = packed(TEXTS, whole)
    model, alone = small(member), small(member)
    (batch,) = data.validation_batches(1)
    assert batch.scored == whole
    loss = forward(model, batch).loss
    assert loss is not None
    loss.backward()
    total = torch.zeros((), dtype=torch.float64)
    for text in TEXTS:
        ids = torch.tensor([list(f"\0{text}\0".encode())])
        total = total + alone(ids[:, :-1], targets=ids[:, 1:]).loss * (len(text) + 1) / whole
    total.backward()
    torch.testing.assert_close(loss, total)
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("member", ["bert", "gmlp", "aft-local"])
def test_masked_documents_are_read_apart_too(member: str) -> None:
    model = small(member, MLM)
    data = packed(TEXTS, LENGTH)
    inputs = data.train_batch(0, 4, 0).inputs
    targets = torch.where(torch.rand(inputs.shape) < 0.3, inputs, IGNORED)
    documents = data.documents_of(inputs)
    logits = model(inputs, targets=targets, mask=ef.Mask(documents=documents)).logits
    for row in range(4):
        for number in documents[row].unique():
            here = documents[row] == number
            apart = model(inputs[row, here][None]).logits[0]
            torch.testing.assert_close(logits[row, here], apart)


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe:262"])
@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_documents_begin_at_their_separator(
    task: str, tokenizer: str, tmp_path: Any, load: Load
) -> None:
    folder = write(tmp_path / "d", DOCUMENTS)
    options = {"length": 16, "tokenizer": tokenizer, "validation": 0.3}
    data = load(folder, task, packing=True, **options)
    plain = load(folder, task, **options)
    assert data.fingerprint != plain.fingerprint
    several = 0
    for step in range(4):
        batch, other = data.train_batch(step, 8, 0), plain.train_batch(step, 8, 0)
        assert torch.equal(batch.inputs, other.inputs)
        assert torch.equal(batch.targets, other.targets)
        assert other.documents is None
        first = batch.inputs == data.tokenizer.separator
        steps = batch.documents[:, 1:] - batch.documents[:, :-1]
        assert torch.equal(steps.bool(), first[:, 1:])
        several += int(steps.sum())
        assert torch.equal(batch.rows(2, 5).documents, batch.documents[2:5])
        assert batch.to("cpu").documents is batch.documents
    assert several > 0
    held = [batch.documents for batch in data.validation_batches(3)]
    assert all(documents is not None for documents in held)


def test_a_packed_model_is_measured_document_by_document() -> None:
    data, model = packed(TEXTS, LENGTH), small("rope")
    result = evaluate(model, data, batch=2)
    total = 0.0
    for batch in data.validation_batches(1):
        for number in batch.documents.unique():
            here = batch.documents[0] == number
            goals = batch.targets[:, here]
            if (goals != IGNORED).any():
                loss = model(batch.inputs[:, here], targets=goals).loss
                total += loss.item() * int((goals != IGNORED).sum())
    assert result is not None
    assert result["loss"] == pytest.approx(total / result["scored"], rel=1e-9)


def test_what_cannot_be_packed_is_refused(tmp_path: Any, load: Load) -> None:
    one = write(tmp_path, {"a.txt": "one text alone " * 50}) / "a.txt"
    with pytest.raises(DataError, match="is one document, so there is nothing to pack"):
        load(one, length=16, packing=True)
    with pytest.raises(ConfigError, match="no meaning for the built-in 'digits'"):
        load("digits", packing=True)


def test_a_member_that_cannot_keep_documents_apart_refuses() -> None:
    model = small("rope")
    model.stack.blocks[1].mixer.supported_masks = frozenset({"padding_mask"})
    with pytest.raises(UnsupportedError, match=r"cannot honour the mask part\(s\) documents"):
        forward(model, packed(TEXTS, LENGTH).train_batch(0, 2, 0))
