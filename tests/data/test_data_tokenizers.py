"""Tokenizers give back the text they were given, and know when they differ."""

import json
from pathlib import Path

import numpy as np
import pytest

from everyformer.core.errors import DataError, MissingExtraError
from everyformer.data import decode, encode_prompt, load_tokenizer, require_same
from everyformer.data.corpus import StreamEncoder
from everyformer.data.tokenizers.load import fit_tokenizer
from everyformer.data.tokenizers.package import BPETokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer

TEXT = "To be, or not to be: that is the question.\nГамлет, ça va? 東京\n" * 20


@pytest.mark.parametrize("spec", ["bytes", "chars", "bpe:300"])
def test_decoding_undoes_encoding_and_loading_saving(spec: str, tmp_path: Path) -> None:
    made = fit_tokenizer(spec, [TEXT])
    ids = made.encode(TEXT)
    assert made.decode(ids) == TEXT
    assert made.name == spec
    assert max(ids) < made.vocabulary
    made.save(tmp_path)
    for again in (load_tokenizer(tmp_path), load_tokenizer(json.loads(json.dumps(made.to_dict())))):
        assert again == made
        assert hash(again) == hash(made)
        assert again.encode(TEXT) == ids
        require_same(made, again)


def test_learning_bpe_twice_gives_the_same() -> None:
    assert BPETokenizer.fit([TEXT], 300) == BPETokenizer.fit([TEXT], 300)


def test_bpe_encodes_what_it_never_saw() -> None:
    made = BPETokenizer.fit(["aaa bbb\n" * 50], 260)
    assert made.decode(made.encode("Ωmega \x01")) == "Ωmega \x01"
    assert made.vocabulary <= 260


@pytest.mark.parametrize("spec", ["bytes", "chars", "bpe:300"])
def test_text_in_chunks_gives_the_tokens_of_the_whole(spec: str) -> None:
    text = "the quick brown f\u00f6x\njumps over the lazy dog\n" * 20
    made, raw = fit_tokenizer(spec, [text]), text.encode()
    for size in (1, 7, 300):
        encoder = StreamEncoder(made)
        parts = [encoder.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
        assert np.concatenate((*parts, encoder.feed(b"", final=True))).tolist() == made.encode(text)


def test_a_separator_is_one_token_of_its_own() -> None:
    for made in (ByteTokenizer(), BPETokenizer.fit([TEXT], 300), CharTokenizer.fit(["a\0b"])):
        assert made.encode("a\0b").count(made.separator or 0) == 1
    assert CharTokenizer.fit(["ab"]).separator is None


def test_unseen_characters_are_the_unknown_token() -> None:
    made = CharTokenizer.fit(["abc"])
    assert made.encode("axc") == [1, 0, 3]
    assert made.decode([1, 0, 3]) == "a\ufffdc"


def test_a_vocabulary_that_differs_names_both() -> None:
    with pytest.raises(DataError, match=r"chars \(3 tokens\).*chars \(4 tokens\).*'c'"):
        require_same(CharTokenizer.fit(["ab"]), CharTokenizer.fit(["abc"]))
    with pytest.raises(DataError, match=r"bytes \(256 tokens\).*none"):
        require_same(ByteTokenizer(), None)
    one, other = BPETokenizer.fit([TEXT], 300), BPETokenizer.fit(["other words " * 40], 300)
    with pytest.raises(DataError, match="different text"):
        require_same(one, other)


@pytest.mark.parametrize("content", ["{", '{"kind": "words"}', '{"kind": "bpe", "size": 9}'])
def test_a_broken_tokenizer_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"everyformer\[text\]"):
        BPETokenizer.fit([TEXT], 300)


def test_prompts_become_rows_and_come_back() -> None:
    made = CharTokenizer.fit(["abc\n"])
    assert encode_prompt(made, "cab").shape == (1, 3)
    assert decode(made, encode_prompt(made, "cab")) == "cab"
    assert encode_prompt(made, "").tolist() == [made.encode("\n")]
    with pytest.raises(DataError, match="'x'"):
        encode_prompt(made, "x")


def test_a_decoded_text_ends_where_its_document_ends() -> None:
    made = ByteTokenizer()
    assert encode_prompt(made, "").tolist() == [[0]]
    assert decode(made, made.encode("\0one\0two")) == "one"
    assert decode(made, made.encode("one\0two")) == "one"
