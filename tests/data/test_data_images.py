"""Pictures: channels, sizes, splits, pixels as targets, and what is refused."""

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import Files, Load, corpus, pack, picture, write

from everyformer.core.errors import ConfigError, DataError, MissingExtraError, ResourceError
from everyformer.data import DataConfig, load_dataset
from everyformer.data.images import read_images, reshaped, shrunk

SHADES = {f"{c}/{n}.png": picture(100 * i + n) for i, c in enumerate("ab") for n in range(10)}


@pytest.mark.parametrize("packed", [False, True])
def test_a_folder_for_each_class_is_pictures_to_classify(
    packed: bool, tmp_path: Path, load: Load
) -> None:
    source = pack(tmp_path / "x.zip", SHADES) if packed else write(tmp_path / "x", SHADES)
    data = load(source)
    assert (data.task, data.kind, data.classes) == ("classify-image", "images", ("a", "b"))
    assert (data.image, data.length) == ((1, 4, 4), 16)
    assert "18 training and 2 validation pictures" in data.split
    batch = data.train_batch(0, 18, 0)
    assert batch.inputs.shape == (18, 1, 4, 4)
    assert batch.inputs.dtype == torch.uint8
    assert torch.equal(batch.targets, (batch.inputs[:, 0, 0, 0] >= 100).long())
    assert sum(b.scored for b in data.validation_batches(3)) == 2


def test_pixels_are_targets_in_raster_order_with_channels_last(tmp_path: Path, load: Load) -> None:
    array = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    source = write(tmp_path / "x", {f"{n}.png": picture(array + n) for n in range(4)})
    data = load(source, validation=0.25)
    assert (data.task, data.image, data.length, data.bytes_per_token) == (
        "pixels",
        (3, 2, 3),
        18,
        1.0,
    )
    batch = next(data.validation_batches(1))
    assert batch.targets.dtype == torch.int64
    assert (batch.targets[0] - batch.targets[0, 0]).tolist() == list(range(18))
    assert int(batch.inputs[0, 2, 1, 0]) == int(batch.targets[0, (1 * 3 + 0) * 3 + 2])


def test_folders_of_a_split_are_used_and_named(tmp_path: Path, load: Load) -> None:
    files = {
        f"{part}/{name}": content for part in ("train", "test") for name, content in SHADES.items()
    }
    data = load(pack(tmp_path / "x.zip", files | {"train.csv": "name,label"}))
    assert data.split == (
        "40 pictures of 2 classes: a (20), b (20); always answering 'a' is right for 50.0% of "
        "those held out; the source's own train/ and test/: 20 training and 20 validation "
        "pictures; 1 file that is no picture left aside"
    )


def test_pictures_that_answer_nothing_have_no_classes_to_tell(tmp_path: Path, load: Load) -> None:
    data = load(write(tmp_path / "x", SHADES), "pixels")
    assert (
        data.split
        == "a draw of 10% of the pictures (seed 0): 18 training and 2 validation pictures"
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({f"a/{n}.txt": "text" for n in range(9)}, "; 9 files that are no pictures left aside"),
        ({"a/0.txt": "text", "README.md": "read"}, "; 1 file that is no picture left aside"),
        ({"README.md": "read", "a/LICENSE": "free"}, "18 training and 2 validation pictures"),
    ],
)
def test_files_among_pictures_are_left_aside_and_told_of(
    files: Files, said: str, tmp_path: Path, load: Load
) -> None:
    assert load(write(tmp_path / "x", SHADES | files)).split.endswith(said)


def test_mixed_sizes_take_the_commonest_and_say_so(tmp_path: Path, load: Load) -> None:
    files = SHADES | {"a/wide.png": picture(9, (8, 2))}
    source = write(tmp_path / "x", files)
    data = load(source)
    assert data.image == (1, 4, 4)
    assert "1 pictures resized to 4x4" in data.split
    assert load(source, size=6).image == (1, 6, 6)


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)]
)
def test_every_mode_of_picture_becomes_grey_or_colour(
    mode: str, channels: int, tmp_path: Path, load: Load
) -> None:
    files = {f"{n}.png": picture(255, mode=mode) for n in range(3)}
    data = load(write(tmp_path / "x", files))
    assert data.image == (channels, 4, 4)
    assert int(data.train_batch(0, 1, 0).inputs.min()) == 255


def test_sixteen_bit_greys_keep_their_upper_bits(tmp_path: Path, load: Load) -> None:
    deep = np.full((4, 4), 0x8040, dtype=np.uint16)
    data = load(write(tmp_path / "x", {f"{n}.png": picture(deep) for n in range(3)}))
    assert data.image == (1, 4, 4)
    assert data.train_batch(0, 1, 0).inputs.unique().tolist() == [0x80]


def test_transparent_palettes_are_seen_on_white(tmp_path: Path, load: Load) -> None:
    from PIL import Image

    shades = np.zeros((4, 4, 4), np.uint8)
    shades[:, :, 0], shades[:, :, 3] = 200, np.arange(0, 160, 10).reshape(4, 4)
    for n in range(3):
        Image.fromarray(shades).quantize(16).save(tmp_path / f"{n}.png")
    with Image.open(tmp_path / "0.png") as written:
        assert "transparency" in written.info
        shades = np.asarray(written.convert("RGBA"))  # fewer than were drawn
    inputs = load(tmp_path).train_batch(0, 1, 0).inputs[0].numpy()
    share = shades[:, :, 3] / 255
    expected = shades[:, :, :3] * share[..., None] + 255 * (1 - share[..., None])
    assert np.abs(inputs - expected.transpose(2, 0, 1)).max() <= 1
    assert len(np.unique(inputs)) > 3


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_colours_under_what_is_transparent_are_not_read(
    mode: str, tmp_path: Path, load: Load
) -> None:
    from PIL import Image

    hidden = np.random.default_rng(0).integers(0, 255, (4, 4, len(mode)), dtype=np.uint8)
    hidden[:, :2, -1], hidden[:, 2:, -1] = 0, 255
    for n in range(3):
        Image.fromarray(hidden, mode).save(tmp_path / f"{n}.png")
    inputs = load(tmp_path).train_batch(0, 1, 0).inputs[0].numpy()
    assert (inputs[:, :, :2] == 255).all()
    assert (inputs[:, :, 2:] == hidden[:, 2:, :-1].transpose(2, 0, 1)).all()


def held(orientation: int, mode: str = "RGB", kind: str = "jpeg") -> bytes:
    """A picture of 8 columns and 16 rows, its upper left quarter white, as a camera keeps it that
    was held so: pillow writes both the pixels and what EXIF says of them."""
    from PIL import Image

    upright = np.zeros((16, 8), dtype=np.uint8)
    upright[:8, :4] = 255
    kept = {1: upright, 3: upright[::-1, ::-1], 6: np.rot90(upright), 8: np.rot90(upright, -1)}
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(kept[orientation].copy()).convert(mode).save(file, kind, exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_pictures_are_upright_however_the_camera_was_held(
    kind: str, tmp_path: Path, load: Load
) -> None:
    files = {f"{n}.{kind}": held(n, kind=kind) for n in (1, 3, 6, 8)}
    source = write(tmp_path / "x", files)
    data = load(source, validation=0.25)
    assert data.image == (3, 16, 8)
    assert "resized" not in data.split
    for images in (torch.from_numpy(np.array(data.pixels)), read_images(source, [(3, 16, 8)], 4)):
        assert (images[:, :, :8, :4] > 200).all()
        assert (images[:, :, 8:] < 50).all()
        assert (images[:, :, :, 4:] < 50).all()


def test_a_picture_is_whole_although_its_exif_is_not(tmp_path: Path, load: Load) -> None:
    whole = held(6)
    at = whole.index(b"Exif\0\0") + 6
    files = {f"{n}.jpg": whole[:at] + b"XX*\0" + whole[at + 4 :] for n in range(2)}
    assert load(write(tmp_path / "x", files)).image == (3, 8, 16)


def test_pictures_of_fractions_are_refused(tmp_path: Path, load: Load) -> None:
    from PIL import Image

    for n in range(3):
        Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / f"{n}.tif")
    with pytest.raises(DataError, match=r"0\.tif' holds fractions.*8 or 16 bits"):
        load(tmp_path)


def test_digits_are_spread_over_a_byte(load: Load) -> None:
    data = load("digits")
    assert (data.image, data.classes, data.length) == ((1, 8, 8), tuple("0123456789"), 64)
    assert "1,618 training and 179 validation pictures" in data.split
    assert int(data.train_batch(0, 100, 0).inputs.max()) == 255
    assert load("digits", "pixels", size=4, colour="rgb").image == (3, 4, 4)


@pytest.mark.parametrize(
    ("files", "task", "message"),
    [
        (SHADES | {"a/bad.png": b"no picture"}, None, r"a/bad\.png' is damaged"),
        (SHADES | {"a/cut.png": picture(3, (64, 64))[:60]}, None, r"a/cut\.png' is damaged"),
        ({"1.png": picture(), "2.png": picture()}, "classify-image", "no folders for classes"),
        ({"1.png": picture()}, None, "has one picture"),
        (SHADES, "lm", "holds pictures, which the task lm cannot use"),
    ],
)
def test_bad_pictures_are_refused_by_name(
    files: Files, task: str | None, message: str, tmp_path: Path, load: Load
) -> None:
    with pytest.raises(DataError, match=message):
        load(write(tmp_path / "x", files), task)
    assert not list(tmp_path.glob("cache/*.tmp"))


def test_a_picture_that_would_fill_the_memory_is_refused(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    source = write(tmp_path / "x", SHADES)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match=r"a/0\.png' is too large"):
        load(source)


def test_missing_packages_name_their_extra(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = __import__("sys").modules
    monkeypatch.setitem(modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pillow.*everyformer\[images\]"):
        load(write(tmp_path / "x", SHADES))
    monkeypatch.setitem(modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r"scikit-learn.*everyformer\[images\]"):
        load("digits")


@pytest.mark.full("seconds each", parts=3)
def test_mnist_keeps_its_split_and_is_decoded_once(tmp_path: Path, load: Load) -> None:
    source = corpus("images/mnist-png.zip")
    data = load(source)
    assert (data.image, len(data.train_rows), len(data.validation_rows)) == (
        (1, 28, 28),
        15000,
        3000,
    )
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert load(source, "pixels").length == 784
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_grey_is_brightness_as_televisions_weigh_it() -> None:
    """0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), rounded."""
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 200, 100]], np.uint8)
    grey = reshaped(colours[:, :, None, None], DataConfig(colour="grey"))
    assert grey.flatten().tolist() == [76, 150, 29, 132]


# pictures that are drawn: classes that are told, small pictures, pictures read by themselves

LARGER = {f"{c}/{n}.png": picture(100 * i + n, (8, 8)) for i, c in enumerate("ab") for n in (1, 9)}


def noise(size: tuple[int, int, int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, size, generator=generator).to(torch.uint8)


@pytest.mark.parametrize("task", ["pixels", "super-resolution"])
def test_classes_are_told_with_every_batch_where_they_are_asked_for(
    task: str, tmp_path: Path, load: Load
) -> None:
    source = write(tmp_path / "x", LARGER)
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
    source = write(tmp_path / "x", LARGER)
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
    with pytest.warns(UserWarning, match="2 of the 2 pictures in .* are in colour"):
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


@pytest.mark.parametrize("faded", [0, 1, 3])
def test_colours_that_a_grey_model_does_not_take_are_told_of(faded: int, tmp_path: Path) -> None:
    red = np.tile(np.array([200, 0, 0], dtype=np.uint8), (4, 4, 1))
    grey = np.full((4, 4, 3), 7, dtype=np.uint8)
    files = {f"{n}.png": picture(red if n < faded else grey) for n in range(3)}
    source = write(tmp_path / "x", files)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read_images(str(source), [(1, 4, 4)], 3)
        read_images(str(source), [(3, 4, 4)], 3)
    expected = {0: [], 1: ["1 of the 3 pictures in"], 3: ["3 of the 3 pictures in"]}[faded]
    assert [str(one.message)[:22] for one in told] == expected


def test_pictures_are_not_made_larger_than_there_is_memory_for(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 1,797 digits, of 20 x 20 bytes each."""
    room = 1797 * 20 * 20
    monkeypatch.setattr("sequence_laws.memory.LARGE", 1)
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: room - 1)
    with pytest.raises(ResourceError, match=r"pictures of 20 x 20 pixels.*smaller `data.size`"):
        load("digits", size=20)
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: room)
    assert load("digits", size=20).image == (1, 20, 20)


def test_pictures_of_one_of_a_runs_classes_are_given_its_id(tmp_path: Path) -> None:
    write(tmp_path / "x", {f"dog/{n}.png": picture(n) for n in range(3)})
    config = DataConfig(source=str(tmp_path / "x"), validation=1, cache=str(tmp_path / "cache"))
    data: Any = load_dataset(config, "classify", classes=("cat", "dog"))
    assert (data.classes, data.labels.tolist()) == (("cat", "dog"), [1, 1, 1])
    with pytest.raises(DataError, match="has the label dog, but the model knows cat and cow"):
        load_dataset(config, "classify", classes=("cat", "cow"))
