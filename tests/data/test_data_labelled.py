"""Labelled text: folders and tables, drawn within classes, padded on the right."""

from pathlib import Path

import pytest
import torch
from data_files import Files, Load, corpus, pack, write

from everyformer.core.errors import ConfigError, DataError

REVIEWS = {f"{c}/{n}.txt": f"{c} {n} " * (n + 1) for c in ("bad", "good") for n in range(10)}


@pytest.mark.parametrize("form", ["folder", "zip", "nested zip"])
def test_a_folder_for_each_class_is_labelled_text(form: str, tmp_path: Path, load: Load) -> None:
    if form == "folder":
        source = write(tmp_path / "x", REVIEWS)
    else:
        root = "" if form == "zip" else "reviews/"
        files = {root + name: text for name, text in REVIEWS.items()} | {f"{root}README": "notes"}
        source = pack(tmp_path / "x.zip", files)
    data = load(source, length=40)
    assert (data.task, data.classes, data.length) == ("classify-text", ("bad", "good"), 40)
    assert "18 training and 2 validation texts" in data.split
    assert "are cut to 40 tokens" in data.split
    batch = data.train_batch(0, 18, 0)
    for row, padding_mask, label in zip(
        batch.inputs, batch.padding_mask, batch.targets, strict=True
    ):
        text = data.tokenizer.decode(row[padding_mask].tolist())
        assert text.startswith(data.classes[label])
        assert not row[~padding_mask].any()
        assert torch.equal(padding_mask, padding_mask.sort(descending=True).values)


def test_an_epoch_shows_every_text_once_and_batches_are_full(tmp_path: Path, load: Load) -> None:
    data = load(write(tmp_path / "x", REVIEWS), length=40)
    batches = [data.train_batch(step, 6, 5) for step in range(6)]
    rows = [tuple(row.tolist()) for batch in batches for row in batch.inputs]
    assert len(set(rows[:18])) == len(set(rows[18:])) == 18
    assert rows[:18] != rows[18:]
    assert data.train_batch(0, 40, 5).inputs.shape == (40, 40)
    assert sum(b.scored for b in data.validation_batches(3)) == 2


def test_the_draw_has_the_data_seed_and_keeps_classes_even(tmp_path: Path, load: Load) -> None:
    source = write(tmp_path / "x", REVIEWS)
    one, same, other = (load(source, seed=seed, validation=0.5) for seed in (1, 1, 2))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    held = torch.cat([b.targets for b in one.validation_batches(4)])
    assert held.bincount().tolist() == [5, 5]


def test_tables_may_bring_their_split_and_number_their_classes(tmp_path: Path, load: Load) -> None:
    files = {
        "train.csv": "text,label\n" + "".join(f"row {n},{n % 11}\n" for n in range(33)),
        "test.csv": "text,label\nheld,10\n ,2\n",
    }
    data = load(write(tmp_path / "x", files))
    assert data.classes == tuple(map(str, range(11)))
    assert "33 training and 1 validation texts; 1 empty ones left out" in data.split


@pytest.mark.parametrize(
    ("files", "given", "message"),
    [
        ({"x/1.txt": "one", "x/2.txt": "two"}, "x", "no folders for classes"),
        ({"x/a/1.txt": "one", "x/b/1.txt": b"\0"}, "x", r"b/1\.txt' looks binary"),
        ({"x/a/1.txt": " ", "x/b/1.txt": ""}, "x", "holds no texts"),
        (
            {"x/train.csv": "text,label\na,0\nb,1\n", "x/test.csv": "text,label\nc,2\n"},
            "x",
            "class '2', which the training part lacks",
        ),
    ],
)
def test_bad_labels_are_refused_by_name(
    files: Files, given: str, message: str, tmp_path: Path, load: Load
) -> None:
    write(tmp_path, files)
    with pytest.raises(DataError, match=message):
        load(tmp_path / given, "classify-text")


@pytest.mark.parametrize("files", [{"x/1.txt": "one"}, {"x/a/1.txt": "one", "x/b/1.txt": "two"}])
def test_numbers_come_from_tables_and_arrays_not_from_files(
    files: Files, tmp_path: Path, load: Load
) -> None:
    write(tmp_path, files)
    said = r"no text has a number .* regress-text .*`data.label_column`, or .*targets .* an \.npz"
    with pytest.raises(DataError, match=said):
        load(tmp_path / "x", "regress")


def test_nothing_can_be_learned_where_everything_is_held_out(tmp_path: Path, load: Load) -> None:
    source = write(tmp_path / "x", REVIEWS)
    with pytest.raises(ConfigError, match="learn the tokenizer"):
        load(source, validation=1.0, tokenizer="chars")
    data = load(source, validation=1.0)
    assert sum(b.scored for b in data.validation_batches(8)) == 20
    with pytest.raises(DataError, match="everything is held out"):
        data.train_batch(0, 1, 0)


def test_movie_reviews_are_two_classes(load: Load) -> None:
    data = load(corpus("text/movie_reviews.zip"), length=2000)
    assert (data.classes, data.length) == (("neg", "pos"), 2000)
    assert "1,800 training and 200 validation" in data.split


def test_texts_that_are_held_out_and_trained_on_are_told(tmp_path: Path, load: Load) -> None:
    rows = [f"a tree {n % 6},{'xy'[n % 2]}" for n in range(60)]
    fresh = [f"a fox {n},{'xy'[n % 2]}" for n in range(60)]
    for name, lines in (("copies", rows), ("fresh", fresh), ("test", [*rows[:2], fresh[0]])):
        text = "\n".join(["text,label,place", *(f"{line},{n % 6}" for n, line in enumerate(lines))])
        write(tmp_path, {f"{name}.csv": text + "\n"})
    columns = {"text_column": "text", "label_column": "label"}
    told = "6 of 6 held-out texts also stand in training: measures are partly of memory"
    hint = "keep copies together with --data.split group COLUMN, or take them out"
    assert f"; {told}; {hint}" in load(tmp_path / "copies.csv", **columns).split
    grouped = load(tmp_path / "copies.csv", validation=0.4, split=("group", "place"), **columns)
    everything = load(tmp_path / "copies.csv", validation=1, **columns)
    for data in (grouped, everything, load(tmp_path / "fresh.csv", **columns)):
        assert "stand in training" not in data.split
    (tmp_path / "both").mkdir()
    (tmp_path / "copies.csv").rename(tmp_path / "both" / "train.csv")
    (tmp_path / "test.csv").rename(tmp_path / "both" / "test.csv")
    split = load(tmp_path / "both", **columns).split
    assert "2 of 3 held-out texts also stand in training" in split
    assert "of memory; take them out" in split
