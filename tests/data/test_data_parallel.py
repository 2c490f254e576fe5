"""Parallel text: which files are pairs, what a batch holds, what is refused with its place."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import Files, Load, corpus, pack, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.counting import counted_loss
from everyformer.data.parallel import Buckets, ParallelDataset, encode_source

EN = [f"the {word} runs" for word in ("dog", "cat", "boy", "fox", "cow", "man", "hen", "owl")]
DE = [
    f"läuft {word} nun sehr" for word in ("Hund", "Kater", "Bub", "Fuchs", "Kuh", "Mann", "H", "E")
]
TWINS = {"x.en": "\n".join(EN), "x.de": "\n".join(DE) + "\n"}
SPLIT = {
    f"{part}.{language}": f"{part} {language}\n" * count
    for part, count in (("train", 5), ("val", 2), ("test_2016_flickr", 3), ("test_2017", 1))
    for language in ("en", "de")
}


def pairs_of(data: Any, rows: np.ndarray) -> list[tuple[str, str]]:
    """The text of pairs, from their tokens."""
    texts = []
    for row in rows:
        a, b, c = (int(data.bounds[2 * row + i]) for i in range(3))
        assert data.tokens[b - 1] == data.tokens[c - 1] == data.tokenizer.separator
        texts.append(
            tuple(data.tokenizer.decode(data.tokens[i : j - 1]) for i, j in ((a, b), (b, c)))
        )
    return texts


def all_pairs(data: Any) -> list[tuple[str, str]]:
    return pairs_of(data, np.arange(len(data.bounds) // 2))


def made(root: Path, files: Files) -> Path:
    return write(root / "data", files)


# every form of source


TSV = "".join(f"{a}\t{b}\n" for a, b in zip(EN, DE, strict=True))
JSONL = "".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in zip(EN, DE, strict=True))
NESTED = "".join(
    json.dumps({"id": 1, "translation": {"de": b, "en": a}}) + "\n"
    for a, b in zip(EN, DE, strict=True)
)


@pytest.mark.parametrize(
    ("files", "source", "options", "languages"),
    [
        (TWINS, "", {"languages": "en-de"}, ("en", "de")),
        ({**TWINS, "x.fr": "f\n"}, "", {"languages": "en-de"}, ("en", "de")),
        ({f"corpus-en-de/{k}": v for k, v in TWINS.items()}, "corpus-en-de", {}, ("en", "de")),
        ({"x.tsv": TSV}, "x.tsv", {"task": "seq2seq", "header": "no"}, None),
        ({"x.tsv": "Source\tTarget\n" + TSV}, "x.tsv", {}, None),
        ({"x.tsv": "en\tde\n" + TSV}, "x.tsv", {}, ("en", "de")),
        ({"x.tsv": TSV}, "x.tsv", {"languages": "en-de", "header": "no"}, ("en", "de")),
        ({"x.jsonl": JSONL}, "x.jsonl", {}, None),
        ({"x.jsonl": NESTED}, "x.jsonl", {"languages": "en-de"}, ("en", "de")),
    ],
)
def test_every_form_gives_the_same_pairs(
    files: Files, source: str, options: dict[str, Any], languages: Any, tmp_path: Path, load: Load
) -> None:
    data = load(made(tmp_path, files) / source, **options)
    assert isinstance(data, ParallelDataset)
    assert data.task == "seq2seq"
    assert data.languages == (languages or ("source", "target"))
    assert f"from {' to '.join(data.languages)}" in data.split
    assert all_pairs(data) == list(zip(EN, DE, strict=True))
    assert data.validation_rows.tolist() == [7]
    assert "the last 10% of the pairs are held out: 7 training and 1 validation" in data.split


@pytest.mark.parametrize(
    ("name", "languages", "found"),
    [
        ("x", None, ("de", "en")),
        ("multi-en-de", None, ("en", "de")),
        ("de_en", None, ("de", "en")),
        ("multi-en-de", "de-en", ("de", "en")),
    ],
)
def test_the_direction_is_the_chosen_one_else_the_names_else_alphabetical(
    name: str, languages: str | None, found: tuple[str, str], tmp_path: Path, load: Load
) -> None:
    data = load(pack(tmp_path / f"{name}.zip", TWINS), languages=languages)
    assert data.languages == found
    turned = f"; --data.languages {found[1]}-{found[0]} turns the direction"
    assert (turned in data.split) == (languages is None)
    expected = {"en": EN, "de": DE}
    assert all_pairs(data) == list(zip(expected[found[0]], expected[found[1]], strict=True))


@pytest.mark.parametrize(
    ("part", "held"),
    [
        (None, ["val en"] * 2),
        ("val", ["val en"] * 2),
        ("test", ["test_2016_flickr en"] * 3 + ["test_2017 en"]),
        ("test_2016_flickr", ["test_2016_flickr en"] * 3),
        ("test_2017", ["test_2017 en"]),
    ],
)
def test_the_part_that_is_held_out_is_chosen(
    part: str | None, held: list[str], tmp_path: Path, load: Load
) -> None:
    data = load(pack(tmp_path / "x.zip", SPLIT), part=part, languages="en-de")
    assert [source for source, _ in pairs_of(data, data.validation_rows)] == held
    assert pairs_of(data, data.train_rows) == [("train en", "train de")] * 5
    assert data.held_out_pairs()[1] == [text.replace("en", "de") for text in held]


def test_only_files_that_show_it_are_taken_for_parallel_text(tmp_path: Path, load: Load) -> None:
    text = "words and words\n" * 40
    for name, files in (
        ("one", {"a.en": text, "b.de": text}),
        ("code", {"a.py": text, "a.pyi": text}),
        ("table", {"a.tsv": "said\tlabel\n" + "good text\tyes\nbad text\tno\n" * 9}),
    ):
        assert load(write(tmp_path / name, files), length=8).task != "seq2seq", name
    assert load(write(tmp_path / "two", {"a.en": text, "a.de": text}), "lm", length=8).task == "lm"


# what is refused


@pytest.mark.parametrize(("header", "said"), [("en\tde", "fr-xx"), ("en\ttext", "de-en")])
def test_languages_that_the_header_has_not_are_refused(
    header: str, said: str, tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"x.tsv": f"{header}\n{TSV}"}) / "x.tsv"
    columns = ", ".join(header.split("\t"))
    with pytest.raises(
        ConfigError, match=f"the columns {columns}, but `data.languages` says {said}"
    ):
        load(path, "seq2seq", languages=said)
    assert load(path, "seq2seq", languages="de-en" if "de" in header else None).task == "seq2seq"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"x.de": "\n".join(DE[:6])}, {}, r"x.de' ends after line 6, but .*x.en' goes on"),
        (
            {"x.de": "\n".join([*DE[:2], " ", *DE[3:]])},
            {},
            r"x.de', line 3 is empty.*x.en', line 3",
        ),
        ({"x.en": "\n".join(["", *EN[1:]])}, {}, r"x.en', line 1 is empty.*x.de', line 1"),
        ({"x.en": "\n".join([*EN[:7], "a\0b"])}, {}, r"x.en', line 8 has the character U\+0000"),
        ({"y.en": "more"}, {}, r"y.en' has no partner 'y.de'"),
        ({"x.fr": "f"}, {}, r"end in 'de', 'en', 'fr'; choose two"),
        ({}, {"languages": "en-fr"}, r"x.en' has no partner 'x.fr'"),
        ({}, {"languages": "cs-fr"}, r"no files in the languages cs and fr.*endings de, en"),
        ({}, {"length": 4}, r"no training pair .* is short enough"),
    ],
)
def test_unsound_twins_are_refused_with_their_place(
    change: Files, options: dict[str, Any], message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(DataError, match=message):
        load(made(tmp_path, {**TWINS, **change}), **options)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "source\ttarget\na\n", "x.tsv', line 2 has 1 column"),
        ("x.en", "only English\n", "one language only, 'en'"),
        ("x.en", "", "is empty"),
    ],
)
def test_unsound_tables_are_refused_with_their_place(
    name: str, text: str, message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(DataError, match=message):
        load(made(tmp_path, {name: text}) / name, "seq2seq")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"languages": "en"}, "two different languages"),
        ({"tokens": 20}, "more than `data.tokens=20`"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(made(tmp_path, TWINS), **options)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path, load: Load) -> None:
    text = load(write(tmp_path, {"a.txt": "abc " * 99}) / "a.txt", tokenizer="chars", length=8)
    with pytest.raises(DataError, match="no token that ends a sentence"):
        load(made(tmp_path, TWINS), reader=text.tokenizer)


def test_pairs_empty_on_both_sides_are_left_out_and_counted(tmp_path: Path, load: Load) -> None:
    files = {"x.en": "\n".join(["", *EN, ""]) + "\n", "x.de": "\n".join([" ", *DE, ""]) + "\n"}
    data = load(made(tmp_path, files))
    assert len(all_pairs(data)) == 8
    assert "2 empty pairs left out" in data.split


def test_lines_end_at_line_feeds_alone(tmp_path: Path, load: Load) -> None:
    files = {
        "x.en": "\ufeffone\u2028two\r\nthree\x0bfour\r\n",
        "x.de": "eins\r\nzwei\u2029drei\r\n",
    }
    data = load(made(tmp_path, files), languages="en-de")
    assert all_pairs(data) == [("one\u2028two", "eins"), ("three\x0bfour", "zwei\u2029drei")]


# tokens and batches


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "bpe:280"])
def test_a_batch_is_padded_on_the_right_and_ends_every_sentence(
    tokenizer: str, tmp_path: Path, load: Load
) -> None:
    data = load(made(tmp_path, TWINS), tokenizer=tokenizer, languages="en-de")
    end = data.tokenizer.separator
    assert data.target_ends == {"start_token": end, "end_token": end}
    batch = data.train_batch(0, 7, 0)
    assert batch.padding_mask is not None
    found = []
    for source, padding_mask, target in zip(
        batch.inputs, batch.padding_mask, batch.targets, strict=True
    ):
        count, scored = int(padding_mask.sum()), int((target >= 0).sum())
        assert padding_mask[:count].all()
        assert (target[scored:] == -100).all()
        assert (source[~padding_mask] == 0).all()
        assert source[count - 1] == target[scored - 1] == end
        pair = source[: count - 1].tolist(), target[: scored - 1].tolist()
        found.append(tuple(data.tokenizer.decode(ids) for ids in pair))
    assert sorted(found) == sorted(zip(EN[:7], DE[:7], strict=True))
    assert batch.tokens == batch.inputs.numel() + batch.targets.numel()
    assert batch.rows(1, 3).tokens == batch.tokens * 2 // 7
    assert torch.equal(encode_source(data.tokenizer, f" {EN[7]}\n"), data.held_out_pairs()[0][0])


def test_both_languages_of_the_training_part_make_the_vocabulary(
    tmp_path: Path, load: Load
) -> None:
    files = {**SPLIT, "val.en": "n\nü", "val.de": "e\nß"}
    data = load(pack(tmp_path / "x.zip", files), tokenizer="chars")
    assert data.tokenizer.characters == "\0" + "".join(sorted(set("train entrain de")))
    assert data.vocabulary == len(data.tokenizer.characters) + 1


def test_bits_per_byte_count_the_target_and_its_line_end(tmp_path: Path, load: Load) -> None:
    byte = load(made(tmp_path, TWINS), languages="en-de")
    assert byte.bytes_per_token == 1.0
    merged = load(made(tmp_path, TWINS), languages="en-de", tokenizer="bpe:300")
    tokens = len(merged.tokenizer.encode(DE[7])) + 1
    assert merged.bytes_per_token == (len(DE[7].encode()) + 1) / tokens


def long_corpus(count: int = 700) -> dict[str, str]:
    draw = random.Random(0)
    lengths = [min(max(3, round(draw.lognormvariate(2.6, 0.5))), 60) for _ in range(count)]
    source = ["a" * n for n in lengths]
    target = ["b" * max(1, n + draw.randint(-2, 4)) for n in lengths]
    return {"x.en": "\n".join(source), "x.de": "\n".join(target)}


@pytest.mark.parametrize("tokens", [None, 150, 400])
def test_an_epoch_has_every_pair_once_and_always_as_many_batches(
    tokens: int | None, tmp_path: Path, load: Load
) -> None:
    data = load(made(tmp_path, long_corpus()), languages="en-de", tokens=tokens)
    count = data.buckets.batches(16)
    epochs = [
        [data.buckets.rows(step, 16, 5) for step in range(epoch * count, (epoch + 1) * count)]
        for epoch in range(3)
    ]
    for epoch in epochs:
        assert sorted(np.concatenate(epoch)) == list(range(len(data.train_rows)))
    composed = [{tuple(sorted(rows)) for rows in epoch} for epoch in epochs]
    assert composed[0] != composed[1] != composed[2]
    assert [len(rows) for rows in epochs[0]] != [len(rows) for rows in epochs[1]] or tokens is None


def test_a_batch_holds_the_positions_asked_for_and_little_padding(
    tmp_path: Path, load: Load
) -> None:
    data = load(made(tmp_path, long_corpus()), languages="en-de", tokens=400)
    batches = [data.train_batch(step, 1, 0) for step in range(data.buckets.batches(1))]
    positions = [batch.tokens for batch in batches]
    assert max(positions) <= 400
    assert sum(positions) / len(positions) > 0.85 * 400
    assert min(positions) > 0.5 * 400
    real = sum(int(b.padding_mask.sum()) + b.scored for b in batches)  # type: ignore[union-attr]
    assert real / sum(positions) > 0.85


@pytest.mark.parametrize(("count", "size"), [(1, 32), (33, 32), (64, 32), (7, 3)])
def test_batches_by_sentences_differ_by_one_at_most(count: int, size: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 50, (count, 2))
    buckets = Buckets(lengths)
    rows = [len(buckets.rows(step, size, 0)) for step in range(buckets.batches(size))]
    assert sum(rows) == count
    assert max(rows) <= size
    assert max(rows) - min(rows) <= 1


def test_few_positions_are_cut_as_a_plain_reading_would(tmp_path: Path) -> None:
    """The least number of batches: by trying every way to cut a short row."""
    lengths = np.random.default_rng(1).integers(1, 9, (9, 2))
    buckets = Buckets(lengths, 40)
    rounded = buckets._sorted

    def fits(piece: np.ndarray) -> bool:
        return len(piece) * int(piece.max(0).sum()) <= 40

    least = next(
        pieces
        for pieces in itertools.count(1)
        if any(
            all(fits(rounded[a:b]) for a, b in itertools.pairwise((0, *cut, 9)))
            for cut in itertools.combinations(range(1, 9), pieces - 1)
        )
    )
    assert buckets.batches(1) == least


def test_long_pairs_are_left_out_of_training_and_kept_in_validation(
    tmp_path: Path, load: Load
) -> None:
    long = "x" * 40
    files = {
        "train.en": f"a\n{long}\nb\nc\n", "train.de": f"a\nb\n{long}\nc\n",
        "val.en": f"{long}\na\n", "val.de": "a\nb\n",
    }  # fmt: skip
    data = load(pack(tmp_path / "x.zip", files), length=20)
    assert data.train_rows.tolist() == [0, 3]
    assert "2 pairs longer than 20 tokens left out of training" in data.split
    assert len(data.validation_rows) == 2
    assert data.length == 41


def test_every_held_out_pair_counts_once_and_short_ones_come_first(
    tmp_path: Path, load: Load
) -> None:
    data = load(made(tmp_path, long_corpus()), languages="en-de")
    batches = list(data.validation_batches(16))
    assert sum(len(batch.targets) for batch in batches) == len(data.validation_rows) == 70
    assert sum(batch.scored for batch in batches) == data.lengths(data.validation_rows)[:, 1].sum()
    widths = [batch.targets.shape[1] for batch in batches]
    assert widths == sorted(widths)
    assert sum(len(batch.targets) for batch in data.validation_batches(16, limit=9)) == 9


def test_the_cache_is_read_again_until_a_file_changes(tmp_path: Path, load: Load) -> None:
    root = made(tmp_path, TWINS)
    first, again = (load(root) for _ in range(2))
    assert isinstance(first.tokens, np.memmap)
    assert first.tokens.filename == again.tokens.filename
    assert first.fingerprint == again.fingerprint
    write(root, {"x.de": "\n".join([*DE[:7], "anders als zuvor"])})
    assert load(root).fingerprint != first.fingerprint


def test_multi30k_is_read_as_it_lies(load: Load) -> None:
    data = load(corpus("text/multi30k-en-de.zip"), tokens=4096)
    assert data.languages == ("en", "de")
    assert "29,000 training and 1,014 validation pairs from en to de" in data.split
    assert data.held_out_pairs()[1][0].startswith("Eine Gruppe von Männern lädt Baumwolle")


def test_counting_is_of_the_targets_each_by_itself(tmp_path: Path, load: Load) -> None:
    one = {"train.de": "ab\n" * 6, "train.en": "xyxy\n" * 6, "val.de": "ab\n", "val.en": "xyxx\n"}
    data = load(made(tmp_path, one), "seq2seq", tokenizer="chars")
    train, held_out = (
        [data.tokens[data.bounds[2 * row + 1] : data.bounds[2 * row + 2]] for row in rows]
        for rows in (data.train_rows, data.validation_rows)
    )
    assert "".join(map(data.tokenizer.decode, held_out)).startswith("xyxx")
    assert data.counting == pytest.approx(counted_loss(train, held_out, data.vocabulary))


def test_sources_that_are_held_out_and_trained_on_are_told(tmp_path: Path, load: Load) -> None:
    pairs = [f"{EN[n % 8]}\t{n}" for n in range(20)]
    write(tmp_path, {"x.tsv": "\n".join(["en\tde", *pairs[:-1], "a new one\tnew", ""])})
    told = "1 of 2 held-out sources also stand in training: measures are partly of memory"
    assert f"; {told}; take them out" in load(tmp_path / "x.tsv").split
    assert "stand in training" not in load(tmp_path / "x.tsv", validation=1).split
