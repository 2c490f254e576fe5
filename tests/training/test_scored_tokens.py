"""Bits of lines and documents: every token once, in the line in which it begins."""

import math
from typing import Any

import numpy as np
import pytest

from everyformer.core.errors import UnsupportedError
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.training.scored import scores

BIT = math.log(2)


class Pieces(Tokenizer):
    """Characters below 256, and tokens of several or of two bytes."""

    kind = name = "pieces"
    separator = 0
    texts = ("x\ny", "\n\n", "\u00fc")
    vocabulary = 256 + len(texts)

    def encode_array(self, text: str) -> np.ndarray:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return {}

    def decode(self, ids: Any) -> str:
        own = [chr(i) if i < 256 else self.texts[int(i) - 256] for i in ids]
        return "".join(own)


def dataset(tokens: Any, tokenizer: Any) -> TextDataset:
    row = np.array(tokens)
    return TextDataset(
        name="made", task="lm", kind="text", vocabulary=tokenizer.vocabulary, length=2, split="",
        bytes_per_token=1.0, fingerprint="", tokenizer=tokenizer, train=row, validation=row,
    )  # fmt: skip


def places(rows: list[dict[str, Any]]) -> dict[tuple[int, ...], tuple[float, int, str]]:
    return {
        tuple(row[name] for name in ("document", "line") if name in row): (
            round(row["bits"], 9), row["tokens"], row["text"],
        )
        for row in rows
    }  # fmt: skip


def test_lines_of_bytes_have_their_bits_and_the_strangest_is_first() -> None:
    data = dataset([*b"ab\ncd\n\nef"], ByteTokenizer())
    losses = np.array([1, 1, 9, 9, 1, 4, 1, 3]) * BIT
    rows = scores(data, losses, "line")
    assert places(rows) == {
        (1, 1): (2, 2, "ab"), (1, 2): (19, 3, "cd"), (1, 3): (4, 1, ""), (1, 4): (4, 2, "ef"),
    }  # fmt: skip
    # the first token has nothing before it, so that its byte does not count
    each = [(row["line"], round(row["bits_per_byte"], 9)) for row in rows]
    assert each == [(2, round(19 / 3, 9)), (3, 4), (4, 2), (1, 1)]


def test_lines_are_counted_anew_in_each_document_whose_end_is_of_its_last_line() -> None:
    data = dataset([*b"a\nb\n\0c\nd\0\0e\0"], ByteTokenizer())
    losses = np.arange(1.0, len(data.validation)) * BIT
    lines, documents = (places(scores(data, losses, each)) for each in ("line", "document"))  # type: ignore[arg-type]
    assert {place: bits for place, (bits, _, _) in lines.items()} == {
        (1, 1): 1, (1, 2): 2 + 3 + 4, (2, 1): 5 + 6, (2, 2): 7 + 8, (3, 1): 9, (4, 1): 10 + 11,
    }  # fmt: skip
    assert documents == {
        (1,): (10, 4, "a b"), (2,): (26, 4, "c d"), (3,): (9, 1, ""), (4,): (21, 2, "e"),
    }  # fmt: skip


def test_a_token_across_a_line_is_of_that_in_which_it_begins() -> None:
    """x, newline and y are one token, two newlines another."""
    data = dataset([*b"ab", 256, *b"z", 257, *b"w", 258], Pieces())
    losses = np.array([1, 2, 4, 8, 16, 32.0]) * BIT
    rows = scores(data, losses, "line")
    assert places(rows) == {(1, 1): (3, 2, "abx y"), (1, 2): (12, 2, "z"), (1, 4): (48, 2, "wü")}
    # bytes of the text, of which ü has two; those of the first token do not count
    assert {row["line"]: row["bits"] / row["bits_per_byte"] for row in rows} == pytest.approx(
        {1: 4, 2: 3, 4: 3}
    )


def test_a_long_text_is_shown_in_one_line_and_shortened() -> None:
    data = dataset([*("a\x1b\t" * 400).encode()], ByteTokenizer())
    [row] = scores(data, np.ones(1199), "line")
    assert len(row["text"]) == 200
    assert row["text"].startswith("a  a  ")
    assert row["text"].endswith("…")
    assert row["bits"] == pytest.approx(1199 / BIT)


def test_a_vocabulary_without_line_ends_has_documents_alone() -> None:
    data = dataset([1, 2, 1], CharTokenizer("ab"))
    with pytest.raises(UnsupportedError, match="no token of the tokenizer chars ends a line"):
        scores(data, np.ones(2), "line")
    [row] = scores(data, np.ones(2), "document")
    assert (row["tokens"], row["text"]) == (2, "aba")
