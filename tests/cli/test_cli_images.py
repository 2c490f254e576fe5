"""Runs that draw: whole images, completions, enlargements, classes, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from commands import Refused, Say
from matplotlib.image import imread
from PIL import Image

FEW = ("--steps", "2", "--batch", "4", "--width", "16", "--layers", "1", "--heads", "2")
FAST = (*FEW, "--training.threads", "1", "--training.evaluate-sequences", "4")


@pytest.fixture
def pictures(tree: Path) -> Path:
    """Folders 'cat', 'dog' and 'cow' of six 4x4 pictures in colours each."""
    for shade, name in enumerate(("cat", "dog", "cow")):
        (tree / "pictures" / name).mkdir(parents=True)
        for n in range(6):
            array = np.full((4, 4, 3), 60 * shade + n, dtype=np.uint8)
            Image.fromarray(array).save(tree / "pictures" / name / f"{n}.png")
    return tree / "pictures"


def cells(path: str, side: int) -> tuple[int, int]:
    """Rows and columns of a grid of pictures that are shown ``side`` pixels wide."""
    high, wide = imread(path).shape[:2]
    return (high + 2) // (side + 2), (wide + 2) // (side + 2)


def test_digits_are_completed_and_measured(say: Say, tree: Path, refused: Refused) -> None:
    order = ("--model.pixels.order", "blocks", "--model.pixels.tile", "4", "4")
    words = ("train", "aft-simple", "--data", "digits", "--task", "pixels", *FAST, *order)
    code, out, err = say(*words, "--out", "run")
    assert code == 0, err
    assert "bits_per_dim" in out
    assert "everyformer generate run" in out
    assert "bits_per_dim" in say("eval", "run", "--sequences", "4")[1]
    code, out, err = say("generate", "run", "--complete", "held-out", "--images", "2")
    assert (code, out) == (0, "run/completed.png\n"), err
    assert "64 tokens an image, with a state" in err
    assert cells("run/completed.png", 64) == (2, 4)
    shown = np.round(255 * imread("run/completed.png")[..., 0])
    for top in (0, 66):
        given, *drawn, true = (
            shown[top : top + 64, left : left + 64] for left in range(0, 264, 66)
        )
        for image in (given, *drawn):
            assert np.array_equal(image[:32], true[:32])
        assert (given[32:] == 128).all()
    Image.fromarray(np.full((8, 8), 9, np.uint8)).save("one.png")
    code, _, err = say("generate", "run", "--complete", "one.png", "--draws", "1", "--out", "a.png")
    assert code == 0, err
    assert cells("a.png", 64) == (1, 3)
    Image.fromarray(np.full((8, 6), 9, np.uint8)).save("narrow.png")
    complaint = refused("generate", "run", "--complete", "narrow.png")
    assert "is 6x8, but 8x8 is needed" in complaint
    assert "holds no pictures" in refused("generate", "run", "--complete", "text.txt")
    assert "trained without classes" in refused("generate", "run", "--class", "7")
    assert "super-resolution" in refused("generate", "run", "--enlarge", "held-out")
    assert "--tokens is for texts" in refused("generate", "run", "--tokens", "3")
    assert "x.txt: give a name that ends in .png" in refused("generate", "run", "--out", "x.txt")
    assert "no file or folder 'gone'" in refused("generate", "run", "--complete", "gone")
    assert "--draws is of completions" in refused("generate", "run", "--draws", "3")
    complaint = refused("generate", "run", "--complete", "held-out", "--draws", "0")
    assert "'--draws' must be at least 1" in complaint


def test_pictures_of_a_class_are_drawn(say: Say, pictures: Path, refused: Refused) -> None:
    data = ("--data", str(pictures), "--data.labels", "--task", "pixels")
    mixture = ("--model.pixels.output", "mixture", "--model.pixels.mixtures", "2")
    code, out, err = say("train", "gmlp", *data, *mixture, *FAST, "--out", "run")
    assert code == 0, err
    assert "accuracy" not in out
    code, out, err = say("generate", "run", "--images", "3")
    assert (code, out) == (0, "run/samples.png\n"), err
    assert "cat, cow, dog" in err
    words = ("generate", "run", "--images", "4", "--class", "dog", "--class", "cat")
    assert say(*words)[0] == 0
    assert cells("run/samples.png", 64) == (2, 2)
    assert "did you mean 'cow'" in refused("generate", "run", "--class", "coww")
    complaint = refused("eval", "run", "--data", str(pictures), "--data.no-labels")
    assert "was trained with the classes cat, cow, dog" in complaint
    assert "has none" in complaint
    complaint = refused("train", "gmlp", *data[:3], "--task", "classify-image", *FAST)
    assert "a classifier is to find it" in complaint


def test_pictures_are_enlarged(say: Say, pictures: Path, refused: Refused) -> None:
    data = ("--data", str(pictures), "--task", "super-resolution", "--data.small", "2")
    code, out, err = say("train", "aft-full", *data, *FAST, "--out", "run")
    assert code == 0, err
    assert "bits_per_dim" in out
    assert "each is drawn from 2x2" in err
    code, out, err = say("generate", "run")
    assert (code, out) == (0, "run/enlarged.png\n"), err
    assert cells("run/enlarged.png", 64) == (2, 4)
    code, _, err = say("generate", "run", "--enlarge", str(pictures / "cat" / "0.png"))
    assert code == 0, err
    assert cells("run/enlarged.png", 64) == (1, 4)
    Image.fromarray(np.full((2, 2, 3), 9, np.uint8)).save("small.png")
    code, _, err = say("generate", "run", "--enlarge", "small.png", "--draws", "1")
    assert code == 0, err
    assert cells("run/enlarged.png", 64) == (1, 2)
    Image.fromarray(np.full((3, 3, 3), 9, np.uint8)).save("other.png")
    assert "2x2 or 4x4 is needed" in refused("generate", "run", "--enlarge", "other.png")
    assert "with --enlarge, not --complete" in refused("generate", "run", "--complete", "held-out")
    assert "choose with --data.small" in refused("eval", "run", "--data.small", "1")
    complaint = refused("train", "aft-full", *data[:-1], "4", *FAST, "--out", "other")
    assert "small ones have fewer pixels" in complaint


def test_options_of_images_are_refused_for_texts(say, trained, refused):
    run = str(trained("aft-simple"))
    for words in (("--images", "2"), ("--class", "cat"), ("--complete", "held-out")):
        assert f"{words[0]} is for runs that draw images" in refused("generate", run, *words)
    complaint = refused("train", "aft-simple", "--data", "text.txt", "--data.labels")
    assert "for pictures that are drawn" in complaint


def test_a_saved_model_draws_classes_and_asks_for_pictures(say, tree, refused):
    import everyformer as ef

    sizes = {"width": 8, "heads": 1, "layers": 1, "image": (1, 3, 3)}
    model = ef.create_model("attention", "pixels", class_names=("a", "b"), **sizes)
    ef.save(model, "saved")
    assert say("generate", "saved", "--class", "b", "--images", "1")[0] == 0
    complaint = refused("generate", "saved", "--complete", "held-out")
    assert "a saved model in saved does not say where its data is" in complaint
