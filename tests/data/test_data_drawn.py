"""Pictures that are drawn: classes that are told, small pictures, pictures read by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from data_files import Files, Load, pack, picture, write

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.images import read_images, shrunk

SHADES = {f"{c}/{n}.png": picture(100 * i + n, (8, 8)) for i, c in enumerate("ab") for n in (1, 9)}


def noise(size: tuple[int, int, int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, size, generator=generator).to(torch.uint8)


@pytest.mark.parametrize("task", ["pixels", "super-resolution"])
def test_classes_are_told_with_every_batch_where_they_are_asked_for(
    task: str, tmp_path: Path, load: Load
) -> None:
    source = write(tmp_path / "x", SHADES)
    data = load(source, task, labels=True)
    assert data.classes == data.model_options["class_names"] == ("a", "b")
    for batch in (data.train_batch(0, 2, 0), next(data.validation_batches(2))):
        assert torch.equal(batch.labels, (batch.targets[:, 0] >= 100).long())
        assert torch.equal(batch.rows(1, 2).labels, batch.labels[1:])
    held, told = data.held_out_pictures(2)
    assert torch.equal(told, (held[:, 0, 0, 0] >= 100).long())
    assert told.tolist() == [0, 1]
    plain = load(source, task)
    assert plain.classes == ()
    assert plain.held_out_pictures(2)[1] is None
    assert plain.train_batch(0, 2, 0).labels is None
    assert plain.fingerprint != data.fingerprint


def test_labels_make_pictures_of_classes_data_to_draw(tmp_path: Path, load: Load) -> None:
    source = write(tmp_path / "x", SHADES)
    assert load(source, labels=True).task == "pixels"
    assert load(source).task == "classify-image"
    assert load("digits", "pixels", labels=True).classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("size", "small", "expected"),
    [((8, 8), None, (2, 2)), ((8, 8), 3, (3, 3)), ((9, 6), 4, (4, 6)), ((3, 3), None, (1, 1))],
)
def test_the_shorter_side_of_small_pictures(
    size: tuple[int, int], small: int | None, expected: tuple[int, int], tmp_path: Path, load: Load
) -> None:
    files = {f"{n}.png": picture(n, size) for n in range(4)}
    data = load(write(tmp_path / "x", files), "super-resolution", small=small)
    assert data.source_image == (1, *expected)
    batch = data.train_batch(0, 2, 0)
    assert batch.inputs.shape == (2, 1, *expected)
    assert batch.targets.shape == (2, size[0] * size[1])
    assert batch.tokens == batch.inputs.numel() + batch.targets.numel()
    assert f"drawn from {expected[1]}x{expected[0]}" in data.split


def test_small_pictures_are_means_over_areas() -> None:
    images = noise((2, 3, 8, 12))
    pooled = torch.nn.functional.adaptive_avg_pool2d(images.double(), (2, 3))
    made = shrunk(images, (2, 3)).double()
    # rows and columns are averaged one after the other, and rounded each time
    assert (made - pooled).abs().max() <= 1


def test_other_small_pictures_are_other_data(load: Load) -> None:
    prints = {load("digits", "super-resolution", small=n).fingerprint for n in (1, 2, 4)}
    assert len(prints) == 3


@pytest.mark.parametrize("packed", [False, True])
def test_pictures_are_read_as_they_are_up_to_a_number(packed: bool, tmp_path: Path) -> None:
    images = noise((5, 3, 4, 6))
    files = {f"{n}.png": picture(i.permute(1, 2, 0).numpy()) for n, i in enumerate(images)}
    place = pack(tmp_path / "x.zip", files) if packed else write(tmp_path / "x", files)
    shapes = [(3, 2, 3), (3, 4, 6)]
    assert torch.equal(read_images(str(place), shapes, 3), images[:3])
    if not packed:
        assert torch.equal(read_images(str(place / "4.png"), shapes, 9), images[4:])
    assert read_images(str(place), [(1, 4, 6)], 2).shape == (2, 1, 4, 6)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": "text"}, "holds no pictures"),
        ({"a.png": picture(1, (4, 4)), "b.png": picture(1, (2, 2))}, r"b\.png' is 2x2, but 4x4"),
        ({"a.png": picture(1, (5, 4))}, r"a\.png' is 5x4, but 2x2 or 4x4 is needed"),
    ],
)
def test_pictures_that_do_not_fit_are_named(files: Files, message: str, tmp_path: Path) -> None:
    place = write(tmp_path / "x", files)
    with pytest.raises(DataError, match=message):
        read_images(str(place), [(1, 2, 2), (1, 4, 4)], 9)


@pytest.mark.parametrize(
    ("source", "task", "options", "message"),
    [
        ("digits", "classify-image", {"labels": True}, "a classifier is to find it"),
        ("digits", "pixels", {"small": 2}, "it is for super-resolution"),
        ("digits", "super-resolution", {"small": 8}, "the pictures are 8x8"),
    ],
)
def test_options_out_of_place_are_refused(
    source: str, task: str, options: dict[str, Any], message: str, load: Load
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(source, task, **options)
