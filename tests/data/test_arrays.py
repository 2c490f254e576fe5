"""Arrays of tokens, pictures and series: what they are taken for, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from everyformer.core.errors import DataError
from everyformer.data import DataConfig, load_dataset
from everyformer.data.counting import counted_loss
from everyformer.data.dataset import Spread

DRAW = np.random.default_rng(0)
PIXELS = DRAW.integers(0, 256, (20, 6, 6), dtype=np.uint8)
SERIES = DRAW.standard_normal((20, 5, 3))
TOKENS = DRAW.integers(0, 9, (20, 5))
CLASSES = np.arange(20) % 3
NUMBERS = np.arange(20) * 1.5


def load(folder: Path, task: str | None = None, *, config: Any = None, **arrays: Any) -> Any:
    """The data in an .npz of these arrays."""
    np.savez(folder / "a.npz", **arrays)
    options = {"length": 4, **(config or {})}
    return load_dataset(DataConfig(source=str(folder / "a.npz"), **options), task)


@pytest.mark.parametrize(
    ("arrays", "task"),
    [
        ({"x": SERIES, "y": CLASSES}, "classify-series"),
        ({"x": SERIES[:, :, 0], "y": CLASSES}, "classify-series"),
        ({"x": SERIES, "y": NUMBERS}, "regress-series"),
        ({"images": PIXELS, "labels": CLASSES}, "classify-image"),
        ({"images": PIXELS, "labels": NUMBERS}, "regress-image"),
        ({"images": PIXELS}, "pixels"),
        ({"images": np.stack((PIXELS,) * 3, -1), "labels": CLASSES}, "classify-image"),
        ({"tokens": TOKENS, "targets": CLASSES}, "classify-text"),
        ({"tokens": TOKENS, "targets": NUMBERS}, "regress-text"),
        ({"tokens": TOKENS}, "lm"),
        ({"x": np.repeat(SERIES, 2, 0), "y": np.arange(40) // 2}, "classify-series"),
        ({"x": np.repeat(SERIES, 2, 0), "y": np.arange(40)}, "regress-series"),
        ({"X": SERIES, "Y": np.array(["a", "b"] * 10)}, "classify-series"),
    ],
)
def test_shape_and_dtype_tell_what_an_array_is(
    arrays: dict[str, Any], task: str, tmp_path: Path
) -> None:
    dataset = load(tmp_path, **arrays)
    assert dataset.task == task
    batch = dataset.train_batch(0, 4, 0)
    assert len(batch.inputs) == 4
    assert sum(len(b.targets) for b in dataset.validation_batches(8)) > 0


@pytest.mark.parametrize(
    ("word", "arrays", "task"),
    [
        ("regress", {"x": SERIES, "y": CLASSES}, "regress-series"),
        ("classify", {"x": np.repeat(SERIES, 2, 0), "y": np.arange(40) // 2}, "classify-series"),
        ("regress", {"x": TOKENS, "y": CLASSES}, "regress-text"),
        ("classify-image", {"x": SERIES[..., 0:1] ** 2 / 99, "y": CLASSES}, "classify-image"),
        ("pixels", {"x": PIXELS, "y": CLASSES}, "pixels"),
    ],
)
def test_the_task_decides_where_it_is_given(
    word: str, arrays: dict[str, Any], task: str, tmp_path: Path
) -> None:
    assert load(tmp_path, word, **arrays).task == task


def test_a_single_array_is_a_text_of_tokens(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(100) % 7)
    dataset: Any = load_dataset(DataConfig(source=str(tmp_path / "t.npy"), length=4))
    assert (dataset.task, dataset.vocabulary) == ("lm", 7)
    assert dataset.train.tolist() == [n % 7 for n in range(90)]
    assert dataset.validation.tolist() == [n % 7 for n in range(90, 100)]


def test_rows_and_their_targets_stay_together(tmp_path: Path) -> None:
    x = np.arange(20.0)[:, None, None] + np.zeros((20, 5, 1))
    dataset = load(tmp_path, x=x, y=np.arange(20) * 2.0)
    for batch in (dataset.train_batch(0, 18, 0), *dataset.validation_batches(8)):
        assert torch.equal(batch.inputs[:, 0] * 2, batch.targets)


def test_the_sources_own_split_holds(tmp_path: Path) -> None:
    arrays = {"x_train": SERIES[:15], "y_train": NUMBERS[:15]}
    dataset = load(tmp_path, x_test=SERIES[15:], y_test=NUMBERS[15:], **arrays)
    [batch] = dataset.validation_batches(8)
    assert batch.targets[:, 0].tolist() == NUMBERS[15:].tolist()
    assert "own held-out arrays: 15 training and 5 validation" in dataset.split


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (SERIES, CLASSES, "20 series of 3 classes: 0 (7), 1 (7), 2 (6); always answering '0' is "
         "right for 40.0% of those held out"),
        (TOKENS, CLASSES, "20 rows of 3 classes: 0 (7), 1 (7), 2 (6); always answering '0' is "
         "right for 40.0% of those held out"),
        (PIXELS, CLASSES, "20 pictures of 3 classes: 0 (7), 1 (7), 2 (6); always answering '0' is "
         "right for 40.0% of those held out"),
        (SERIES, NUMBERS, "20 series with numbers from 0 to 28.5; always answering their mean 10.5 "
         "has an RMSE of 15.15 over those held out"),
        (PIXELS, NUMBERS, "20 pictures with numbers from 0 to 28.5; always answering their mean "
         "10.5 has an RMSE of 15.15 over those held out"),
        (SERIES, np.stack((NUMBERS, -2 * NUMBERS), 1), "20 series with 2 numbers each from -57 to "
         "28.5; always answering their means 10.5, -21 has RMSEs of 15.15, 30.3 over those held "
         "out"),
    ],
)  # fmt: skip
def test_the_first_line_says_what_the_rows_answer_and_what_a_constant_would_reach(
    x: np.ndarray, y: np.ndarray, said: str, tmp_path: Path
) -> None:
    """Of the numbers 0, 1.5 ... 28.5 the last five are held out: 22.5 to 28.5, 15 off the mean."""
    parts = {"x_train": x[:15], "x_test": x[15:], "y_train": y[:15], "y_test": y[15:]}
    assert load(tmp_path, **parts).split.startswith(f"{said}; the source's own held-out arrays: ")


def test_means_and_deviations_are_those_of_the_training_rows(tmp_path: Path) -> None:
    arrays = {"x_train": SERIES[:15], "y_train": NUMBERS[:15]}
    dataset = load(tmp_path, x_test=SERIES[15:] + 99, y_test=NUMBERS[15:], **arrays)
    steps = SERIES[:15].astype(np.float32).reshape(-1, 3)
    assert dataset.features.mean == pytest.approx(steps.mean(0), abs=1e-6)
    assert dataset.features.std == pytest.approx(steps.std(0), abs=1e-6)
    assert dataset.numbers == Spread((10.5,), (pytest.approx(NUMBERS[:15].std()),))
    options = dataset.model_options
    assert (options["series"], options["target_mean"]) == (3, (10.5,))


def test_lengths_mark_the_padding_and_leave_it_out_of_the_means(tmp_path: Path) -> None:
    lengths = 1 + np.arange(20) % 5
    x = np.where(np.arange(5) < lengths[:, None], 1.0, np.nan)[..., None]
    dataset = load(tmp_path, x=x, y=CLASSES, lengths=lengths)
    batch = dataset.train_batch(0, 18, 0)
    assert batch.padding_mask is not None
    assert torch.equal(batch.inputs[..., 0] == 1, batch.padding_mask)
    assert dataset.features == Spread((1.0,), (1.0,))


@pytest.mark.parametrize(
    ("images", "first"),
    [
        (np.full((20, 2, 2), 0.5), 128),
        (np.full((20, 2, 2), 7, dtype=np.int64), 7),
        (np.full((20, 2, 2, 4), 9, dtype=np.uint8), 9),
        (np.full((20, 3, 2, 2), 9, dtype=np.uint8), 9),
    ],
)
def test_pictures_of_any_scale_and_layout_are_bytes(
    images: np.ndarray, first: int, tmp_path: Path
) -> None:
    dataset = load(tmp_path, "classify-image", images=images, y=CLASSES)
    assert dataset.image == (3 if images.ndim == 4 else 1, 2, 2)
    assert int(dataset.train_batch(0, 1, 0).inputs[0, 0, 0, 0]) == first


@pytest.mark.parametrize(
    ("arrays", "task", "said"),
    [
        ({"a": SERIES, "y": CLASSES}, None, "none of which is called x, inputs"),
        ({"x": SERIES, "y": CLASSES[:7]}, None, "20 rows of inputs but 7 targets"),
        ({"x": SERIES, "y": CLASSES, "lengths": CLASSES}, None, "whole numbers from 1 to 5"),
        *(
            ({"x": SERIES, "y": CLASSES, "lengths": lengths}, None, "whole numbers from 1 to 5")
            for lengths in (np.full(20, 3.9), np.full(20, np.nan), np.full(20, "3"))
        ),
        ({"x": np.array(5), "y": np.array(1)}, None, "no array of rows, but single numbers"),
        ({"x": SERIES, "y": np.array(1)}, "classify", "no targets"),
        ({"x": SERIES, "y": np.array([b"\xff", b"b"] * 10)}, None, "no file of plain arrays"),
        (
            {"x": SERIES},
            None,
            "no targets: name them y, targets or labels .*label_column=NAME`, for "
            "classify-series or regress-series; without them it serves no task",
        ),
        ({"x": PIXELS}, "regress", "no targets: .* for regress-image; without .* serve pixels$"),
        (
            {"x": TOKENS, "y": CLASSES},
            "mlm",
            "holds tokens, which the task mlm cannot use; it can "
            "serve classify-text, regress-text, lm",
        ),
        ({"x": SERIES, "y": CLASSES}, "lm", "tokens in .* must be integers"),
        ({"x": SERIES, "y": NUMBERS}, "classify", "take `task=regress`"),
        ({"x": SERIES, "y": np.arange(20)}, "classify", "one row alone"),
        ({"x": SERIES, "y": np.eye(20)}, "classify", "one class a row is needed"),
        ({"x": SERIES, "y": np.array(["a", "b"] * 10)}, "regress", "numbers, one or some a row"),
        ({"x": np.where(SERIES > 2, np.nan, SERIES), "y": CLASSES}, None, "NaN or infinity"),
        ({"x": SERIES, "y": np.full(20, np.inf)}, None, "NaN or infinity, the first is row 0"),
        ({"x": TOKENS - 1, "y": CLASSES}, None, "they count from 0"),
        ({"x": SERIES[..., None, None], "y": CLASSES}, None, "which may be several things"),
        ({"x": PIXELS.astype(float) * 2, "y": CLASSES}, "classify-image", "go from 0 to"),
        ({"x": PIXELS[:, :, :, None].repeat(5, 3), "y": CLASSES}, None, "1 or 3 channels"),
        ({"x": SERIES[:1], "y": CLASSES[:1]}, None, "fewer than two rows"),
    ],
)
def test_arrays_that_fit_nothing_are_refused(
    arrays: dict[str, Any], task: str | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        load(tmp_path, task, **arrays)


@pytest.mark.parametrize("labels", ["U", "S"])
def test_labels_in_bytes_are_texts(labels: str, tmp_path: Path) -> None:
    names = np.array(["b", "\u00e4"] * 10)
    given = names if labels == "U" else np.char.encode(names, "utf-8")
    assert load(tmp_path, x=SERIES, y=given).classes == ("b", "\u00e4")


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="nothing is unpickled"):
        load_dataset(DataConfig(source=str(tmp_path / "o.npy")))


def test_a_label_column_names_the_array_of_targets(tmp_path: Path) -> None:
    dataset = load(tmp_path, x=SERIES, y=CLASSES, age=NUMBERS, config={"label_column": "age"})
    assert dataset.task == "regress-series"
    with pytest.raises(DataError, match="no array 'agee'; it has x, y, age"):
        load(tmp_path, x=SERIES, y=CLASSES, age=NUMBERS, config={"label_column": "agee"})


def test_a_table_gives_numbers(tmp_path: Path) -> None:
    lines = ["text,price", *(f"word {n},{n}.5" for n in range(20))]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    config = DataConfig(source=str(tmp_path / "t.csv"), length=16, label_column="price")
    dataset = load_dataset(config, "regress")
    assert dataset.task == "regress-text"
    values = [b.targets for b in dataset.validation_batches(8)]
    assert values[0].dtype == torch.float32
    assert {float(v) % 1 for v in torch.cat(values)} == {0.5}
    assert "numbers from 0.5 to 19.5" in dataset.split
    assert "always answering their mean" in dataset.split
    for cell in ("cheap", "1_000"):
        (tmp_path / "t.csv").write_text("\n".join([*lines, f"word,{cell}"]), encoding="utf-8")
        with pytest.raises(DataError, match=f"'price' of .* holds '{cell}', where `task=regress`"):
            load_dataset(config, "regress")


def test_numbers_far_from_zero_are_kept_apart(tmp_path: Path) -> None:
    """Times in seconds: float32 has one number for all of these."""
    times = [1_700_000_000 + n for n in range(20)]
    lines = ["text,target", *(f"word {n},{n}" for n in times)]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    table = load_dataset(DataConfig(source=str(tmp_path / "t.csv"), length=16), "regress")
    far = SERIES.astype(np.float64) / 7 + 1e9
    arrays = load(tmp_path, "regress", x=far, y=np.array(times))
    for dataset in (table, arrays):
        read = [batch.targets for batch in dataset.validation_batches(8)]
        assert {float(y) for y in torch.cat(read)} <= set(map(float, times))
        assert "numbers from 1700000000 to 1700000019; always answering" in dataset.split
    assert arrays.inputs.dtype == np.float64
    np.testing.assert_array_equal(arrays.inputs.reshape(far.shape), far)
    assert load(tmp_path, x=SERIES.astype(np.float64), y=NUMBERS).inputs.dtype == np.float32


@pytest.mark.parametrize("note", ["own split", "none"])
def test_held_out_rows_of_tokens_are_those_that_are_validated(note: str, tmp_path: Path) -> None:
    train, held_out = np.arange(35).reshape(7, 5), 100 + np.arange(15).reshape(3, 5)
    if note == "own split":
        dataset = load(tmp_path, "lm", x_train=train, x_test=held_out)
    else:
        both = np.concatenate((train, held_out))
        dataset = load(tmp_path, "lm", config={"validation": 0.3}, x=both)
    assert dataset.train.tolist() == [*range(35)]
    assert dataset.validation.tolist() == [*range(100, 115)]
    scored = [batch.targets for batch in dataset.validation_batches(2)]
    assert sorted(int(t) for each in scored for t in each.flatten() if t >= 0) == [*range(101, 115)]


def test_counting_is_the_cost_of_the_training_tokens_frequencies(tmp_path: Path) -> None:
    train, held_out = np.array([[0, 0, 0], [1, 2, 2]]), np.array([[0, 1, 3]])
    dataset = load(tmp_path, "lm", config={"length": 2}, x_train=train, x_test=held_out)
    assert dataset.counting == counted_loss([train.ravel()], [held_out.ravel()], 4)


@pytest.mark.parametrize("arrays", [{"x": SERIES}, {"images": PIXELS}, {"tokens": TOKENS}])
def test_rows_of_some_of_a_runs_classes_are_given_its_ids(arrays: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.where(CLASSES > 0, 7, 5), **arrays)
    config = DataConfig(source=str(tmp_path / "a.npz"), length=4, validation=1)
    data: Any = load_dataset(config, "classify", classes=("3", "5", "6", "7"))
    assert data.classes == ("3", "5", "6", "7")
    assert data.labels.tolist() == np.where(CLASSES > 0, 3, 1).tolist()
    with pytest.raises(DataError, match="has the label 7, but the model knows 5 and 6 alone"):
        load_dataset(config, "classify", classes=("5", "6"))
