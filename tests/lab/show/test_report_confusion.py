"""The pictures of an evaluation: what was answered to each class, and how sure it was."""

from pathlib import Path

import numpy as np
import pytest
import torch

from everyformer.cli import main
from everyformer.core.errors import UnsupportedError
from everyformer.lab.show.confusion import Measured, draw_calibration, draw_confusion
from everyformer.tasks.classify.scores import ClassErrors


def measured(classes: int, seed: int = 0) -> Measured:
    """Of 300 random rows."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (300,), generator=generator)
    errors = ClassErrors(classes, 0, details=True)
    errors.add(torch.randn(300, classes, generator=generator), y)
    found = errors.summary() | {"accuracy": 0.5}
    return Measured(found, tuple(f"class {index}" for index in range(classes)))


@pytest.mark.parametrize(
    ("classes", "counted", "named"), [(3, True, True), (13, False, True), (31, False, False)]
)
def test_lines_of_a_confusion_matrix_are_shares_and_few_cells_hold_counts(
    classes: int, counted: bool, named: bool
) -> None:
    one = measured(classes)
    figure = draw_confusion(one)
    axes = figure.axes[0]
    counts = np.array(one.evaluation["confusion"])
    shares = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(shares, counts / counts.sum(1, keepdims=True))
    cells = [text.get_text() for text in axes.texts]
    assert cells == ([str(count) for count in counts.flatten()] if counted else [])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert (labels == list(one.classes)) == named


def test_very_many_classes_have_no_matrix_to_draw() -> None:
    one = measured(3)
    with pytest.raises(UnsupportedError, match="too many"):
        draw_confusion(
            Measured({k: v for k, v in one.evaluation.items() if k != "confusion"}, one.classes)
        )


def test_the_curve_goes_through_the_bins_that_have_rows() -> None:
    one = measured(4)
    curve = draw_calibration(one).axes[0].lines[1].get_xydata()
    bins = [row for row in one.evaluation["calibration"] if row["rows"]]
    np.testing.assert_allclose(curve, [(row["confidence"], row["accuracy"]) for row in bins])


@pytest.mark.full("seconds each", parts=3)
def test_show_draws_them_of_runs_that_classify_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    lines = "".join(f"a {word} day,{word}\n" for word in ("warm", "cold") * 20)
    (tmp_path / "days.csv").write_text(f"text,label\n{lines}")
    sizes = ("--width", "8", "--layers", "1", "--heads", "1", "--batch", "4", "--steps", "1")
    words = ("--out", "run", "--training.threads", "1")
    assert main(["train", "aft-simple", "--data", "days.csv", *sizes, *words]) == 0
    for picture in ("confusion", "calibration"):
        assert main(["show", "run", picture]) == 0
        assert (tmp_path / "run" / "pictures" / f"{picture}.png").stat().st_size > 5000
    capsys.readouterr()
    assert main(["show", "run", "clusters"]) == 2
    assert "confusion and calibration" in capsys.readouterr().err
    assert main(["show", "run", "all"]) == 0
    assert "confusion.png" in capsys.readouterr().out
    (tmp_path / "days.csv").unlink()
    assert main(["show", "run", "confusion"]) == 2
    assert "days.csv" in capsys.readouterr().err
    assert main(["show", "run", "all"]) == 0
    assert main(["show", "attention", "confusion"]) == 2
    assert "attention has no confusion to show" in capsys.readouterr().err
