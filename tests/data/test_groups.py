"""Rows split by groups: all of one value of a column stay on one side."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import Load, delimited, picture, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.config import DataConfig
from everyformer.data.selection import held_out_draw

PATIENTS = [f"p{n % 13}" for n in range(104)]
CLASSES = [("well", "ill")[n % 2] for n in range(104)]
ROWS = [
    (f"note {n} of a day", c, p) for n, (c, p) in enumerate(zip(CLASSES, PATIENTS, strict=True))
]


def table(rows: Any = ROWS, header: tuple[str, ...] = ("text", "label", "patient")) -> str:
    return delimited([header, *rows])


def sides(data: Any, groups: Any) -> tuple[set[str], set[str]]:
    """The groups of the training and of the held-out part."""
    train, held_out = (np.array(groups)[rows] for rows in (data.train_rows, data.validation_rows))
    return set(train.tolist()), set(held_out.tolist())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("source", ["table", "numbers", "by number", "pictures", "arrays"])
def test_no_group_is_on_both_sides(source: str, seed: int, tmp_path: Path, load: Load) -> None:
    options: dict[str, Any] = {"split": ("group", "patient"), "seed": seed, "validation": 0.2}
    if source == "arrays":
        x = np.random.default_rng(0).standard_normal((104, 5, 2))
        np.savez(tmp_path / "a.npz", x=x, y=np.array(CLASSES), patient=np.array(PATIENTS))
        data = load(tmp_path / "a.npz", **options)
    elif source == "pictures":
        files: dict[str, Any] = {f"{n}.png": picture(n) for n in range(104)}
        files["metadata.csv"] = table(
            [(f"{n}.png", *row[1:]) for n, row in enumerate(ROWS)], ("image", "label", "patient")
        )
        data = load(write(tmp_path / "x", files), "classify", **options)
        order = [int(name.removesuffix(".png")) for name in sorted(n for n in files if "png" in n)]
        assert set.isdisjoint(*sides(data, np.array(PATIENTS)[order]))
        return
    else:
        task = "regress" if source == "numbers" else "classify"
        rows = [(t, n, p) for n, (t, _, p) in enumerate(ROWS)] if task == "regress" else ROWS
        if source == "by number":
            options["split"] = ("group", "3")
        data = load(write(tmp_path, {"a.csv": table(rows)}) / "a.csv", task, **options)
    train, held_out = sides(data, PATIENTS)
    assert train.isdisjoint(held_out)
    assert train | held_out == set(PATIENTS)
    assert len(held_out) == 2  # 16 of 104 rows; a third would make it 23%
    column = "3" if source == "by number" else "patient"
    assert f"a draw of 2 of the 13 values of '{column}' with all of their rows, 15%" in data.split


def test_another_seed_draws_other_groups() -> None:
    labels, groups = np.arange(60) % 2, np.arange(60) // 4
    drawn = {held_out_draw(labels, 0.2, seed, groups).tobytes() for seed in range(8)}
    assert len(drawn) > 4
    once = held_out_draw(labels, 0.2, 3, groups)
    assert (once == held_out_draw(labels, 0.2, 3, groups)).all()
    assert once.sum() == 12


def test_as_many_whole_groups_are_held_out_as_fit_or_else_the_smallest() -> None:
    labels, groups = np.zeros(60, dtype=np.int64), np.arange(60) // 4
    for fraction, held_out in ((1.0, 60), (0.5, 28), (0.01, 4)):
        assert held_out_draw(labels, fraction, 0, groups).sum() == held_out
    groups = np.repeat([0, 1, 2], [40, 7, 50])
    drawn = held_out_draw(np.zeros(97, dtype=np.int64), 0.01, 0, groups)
    assert set(groups[drawn].tolist()) == {1}


def test_all_of_a_class_in_one_group_are_trained_on_and_told_by_name(
    tmp_path: Path, load: Load
) -> None:
    rows = [*ROWS, *((f"a rare note {n}", "rare", "p1") for n in range(3)), ("x", "single", "p2")]
    path = write(tmp_path, {"a.csv": table(rows)}) / "a.csv"
    for seed in range(6):
        data = load(path, split=("group", "patient"), seed=seed, validation=0.3)
        held = set(data.labels[data.validation_rows].tolist())
        assert {data.classes[label] for label in held} == {"ill", "well"}
        assert "no row of the classes 'rare' and 'single' is held out: of one in a" in data.split
    assert (
        "no row"
        not in load(write(tmp_path, {"b.csv": table()}) / "b.csv", split=("group", "3")).split
    )


def test_no_row_is_left_where_every_group_is_a_class_of_its_own(tmp_path: Path, load: Load) -> None:
    rows = [(f"text {n}", f"c{n % 4}", f"g{n % 4}") for n in range(40)]
    path = write(tmp_path, {"a.csv": table(rows)}) / "a.csv"
    with pytest.raises(DataError, match=r"4 values of 'patient': none can .* rows of its classes"):
        load(path, split=("group", "patient"))
    same = write(tmp_path, {"b.csv": table([(*row[:2], "g") for row in ROWS])}) / "b.csv"
    with pytest.raises(
        DataError, match=r"1 value of 'patient': none can be held out and leave any"
    ):
        load(same, split=("group", "patient"))


@pytest.mark.parametrize(
    ("files", "split", "said"),
    [
        ({"a.csv": table()}, ("group", "patent"), "no column 'patent' for `data.split=group`.*did"),
        ({"a.csv": table()}, ("group", "label"), "'label' of .* is read itself"),
        ({"a.csv": table([*ROWS, ("a", "ill", "")])}, ("group", "patient"), "line 106.*is empty"),
        (
            {"train.csv": table(), "test.csv": table()},
            ("group", "patient"),
            "is split already .the source's own train files",
        ),
        (
            {f"{c}/{n}.txt": "a text" for c in "ab" for n in range(4)},
            ("group", "patient"),
            "no table and has no columns",
        ),
        (
            {f"{c}/{n}.png": picture(n) for c in "ab" for n in range(4)},
            ("group", "patient"),
            "no table is read",
        ),
    ],
)
def test_groups_that_cannot_be_had_are_refused(
    files: dict[str, Any], split: tuple[str, ...], said: str, tmp_path: Path, load: Load
) -> None:
    folder = write(tmp_path / "x", files)
    with pytest.raises((ConfigError, DataError), match=said):
        load(folder / "a.csv" if "a.csv" in files else folder, split=split)


def test_arrays_need_a_group_for_each_row(tmp_path: Path, load: Load) -> None:
    x, y = np.zeros((6, 3), dtype=np.float32), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, groups=np.arange(5))
    with pytest.raises(DataError, match="6 rows of inputs but 5 groups"):
        load(tmp_path / "a.npz", split=("group", "groups"))
    with pytest.raises(DataError, match=r"no array 'g'.*it has x, y, groups"):
        load(tmp_path / "a.npz", split=("group", "g"))
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y, x_test=x, y_test=y, g=np.arange(12))
    with pytest.raises(ConfigError, match="is split already"):
        load(tmp_path / "b.npz", split=("group", "g"))
    np.savez(tmp_path / "c.npz", x=np.arange(600), g=np.arange(600))
    with pytest.raises(ConfigError, match="one text of tokens"):
        load(tmp_path / "c.npz", split=("group", "g"))


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (("group",), "'group', but it takes random alone, or group and"),
        (("group", "a", "b"), "'group a b', but it takes"),
        (("random", "a"), "'random a', but it takes"),
        (("groups", "a"), "cannot be 'groups'; did you mean 'group'"),
        ((), "cannot be ''"),
    ],
)
def test_a_split_is_random_or_a_group_with_its_column(split: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DataConfig(split=split)
    assert DataConfig(split=("group", "a")).group_column == "a"
    assert DataConfig().group_column is None
