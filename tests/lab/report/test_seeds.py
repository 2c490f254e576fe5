"""Curves over seeds: means and intervals stand where the seeds have been."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.cli import main
from everyformer.core.errors import ConfigError
from everyformer.lab.compare.files import RECORD
from everyformer.lab.compare.summary import mean_interval
from everyformer.lab.report.curves import Quantity, draw_seeds
from everyformer.system.sealed import write_json
from report_results import made_up

PLAIN, LOSS = Quantity("nats per token", 1.0), Quantity("nats per token", 2.0)


def training(*told: tuple[int, float]) -> Any:
    """A curve of training steps, after one line without a loss, and one evaluation."""
    rows = [{"tokens": at, "loss": value} for at, value in told]
    evaluation = {"tokens": told[-1][0], "evaluation": {"loss": 7.0}}
    return {"training": [{"tokens": 1}, *rows], "evaluations": [evaluation]}


def reading(*losses: float) -> Any:
    """A curve of evaluations every 10 tokens, and one training step with another loss."""
    rows = [{"tokens": 10 * n, "evaluation": {"loss": loss}} for n, loss in enumerate(losses, 1)]
    return {"training": [{"tokens": 10, "loss": 50.0}], "evaluations": rows}


def test_the_mean_over_seeds_stands_where_all_have_been_with_students_interval() -> None:
    """Losses t, 3 t and 8 t are 4 t on average, from the last beginning to the first end."""
    slopes, spans = (1.0, 3.0, 8.0), ((10, 50), (0, 40), (5, 60))
    curves = [training(*((t, a * t) for t in span)) for a, span in zip(slopes, spans, strict=True)]
    figure = draw_seeds({"gtrxl": curves}, PLAIN, "tokens")
    [axes] = figure.axes
    *thin, mean, end = axes.lines
    assert [line.get_xydata().tolist() for line in thin] == [  # type: ignore[union-attr]
        [[t, a * t] for t in span] for a, span in zip(slopes, spans, strict=True)
    ]
    x, y = np.asarray(mean.get_xydata()).T
    assert (x[0], x[-1]) == (10, 40)
    np.testing.assert_allclose(y, 4 * x)
    assert np.asarray(end.get_xydata()).tolist() == [[40, 160]]
    [band] = axes.collections
    corners = band.get_paths()[0].vertices
    around = [mean_interval([a * t for a in slopes]) for t in (10, 40)]
    for t, (low, high) in zip((10, 40), around, strict=True):
        at = np.asarray(corners)[np.asarray(corners)[:, 0] == t, 1]
        np.testing.assert_allclose([at.min(), at.max()], [low, high])
    low, high = around[1]
    assert figure.get_label() == (
        "Loss (nats per token) of training, against training tokens: mean over seeds with its 95% "
        f"interval, and thin every seed. gtrxl 160 ({low:.4g} to {high:.4g}, 3 seeds) after 40 "
        "training tokens."
    )


def test_one_seed_is_its_own_curve() -> None:
    figure = draw_seeds({"gtrxl": [training((10, 1.0), (20, 5.0), (30, 2.0))]}, PLAIN, "tokens")
    [axes] = figure.axes
    curve, _ = axes.lines
    assert np.asarray(curve.get_xydata()).tolist() == [[10, 1], [20, 5], [30, 2]]
    assert not axes.collections
    assert figure.get_label() == (
        "Loss (nats per token) of training, against training tokens. gtrxl 2 after 30 training "
        "tokens."
    )


@pytest.mark.parametrize(
    ("other", "what", "ends"),
    [
        (reading(40.0, *[3.0] * 9), "evaluations", (4.0, 6.0)),
        (reading(3.0), "training", (100.0, 100.0)),
    ],
)
def test_losses_are_those_of_evaluations_where_all_have_several(
    other: Any, what: str, ends: tuple[float, float]
) -> None:
    figure = draw_seeds({"gpt": [reading(3.0, 2.0)], "alibi": [other]}, LOSS, "tokens")
    low, high = figure.axes[0].get_ylim()
    assert low < min(ends)
    assert high > (80.0 if what == "evaluations" else max(ends))
    reached = [np.asarray(line.get_ydata())[-1] for line in figure.axes[0].lines[::2]]
    assert tuple(reached) == ends
    assert figure.get_label().startswith(f"Loss (nats per token) of {what}, against training")


@pytest.mark.parametrize(
    ("curves", "sentence"),
    [
        ([training((10, 1.0)), training((20, 1.0))],
         "the trainings of gtrxl never spent the same, so they have no mean: one ends after 10 "),
        ([{"training": [{"tokens": 1}], "evaluations": []}],
         "a training of gtrxl has reported no loss yet"),
    ],
)  # fmt: skip
def test_curves_without_a_mean_are_refused(curves: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        draw_seeds({"gtrxl": curves}, PLAIN, "tokens")
    assert str(caught.value).startswith(sentence)


def test_all_seeds_of_comparisons_on_the_same_data_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = made_up(("gmlp", "alibi"), seeds=3)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / RECORD, {"format": "begun"})
        write_json(tmp_path / name / "results.json", results)
        results["data"]["name"] = "letters"
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    assert main(("show", one, "curves")) == 0
    out = capsys.readouterr().out
    for row in results["rows"]:
        assert f"{row['member']} {sum(row['values']) / 3 / math.log(2):.4g} (" in out
    assert out.count("3 seeds) after 60,000 training tokens") == 2
    assert main(("show", one, "curves", "--others", other)) == 2
    said = f"{one} and {other} learned from other data (stdlib and letters)"
    assert said in capsys.readouterr().err
