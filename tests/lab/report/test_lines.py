"""Names at the ends of curves: apart from each other, near to the curves, of few members."""

import itertools

import pytest
from matplotlib.text import Text

from everyformer.lab.report.figures import draw_all
from everyformer.lab.report.lines import spread
from everyformer.lab.report.selection import baseline, styles_of
from everyformer.lab.show.style import styled
from report_results import made_up, many


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([], []),
        ([0.3], [0.3]),
        ([0.9, 0.1], [0.9, 0.1]),
        # two that want the same height part around it
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.2, 0.5, 0.5, 0.5], [0.2, 0.4, 0.5, 0.6]),
        # the order of the curves is kept
        ([0.52, 0.5, 0.51], [0.61, 0.41, 0.51]),
        # within the axes
        ([1.0, 1.0], [0.9, 1.0]),
        ([-5.0, 0.0], [0.0, 0.1]),
    ],
)
def test_heights_are_as_near_as_gaps_allow(wanted: list[float], found: list[float]) -> None:
    assert spread(wanted, 0.1) == pytest.approx(found)


@pytest.mark.parametrize(("count", "named"), [(8, 8), (32, 6)])
def test_up_to_eight_members_are_named_and_six_of_more(count: int, named: int) -> None:
    """Legends of 31 lines covered the curves."""
    results = many(count)
    drawings = {drawing.name: drawing.figure for drawing in draw_all(results)}
    for name in ("loss-seconds", "positions", "time"):
        figure = drawings[name]
        assert len(figure.axes[0].texts) == named
        assert not figure.legends
        assert figure.axes[0].get_legend() is None
    names = {text.get_text() for text in drawings["positions"].axes[0].texts}
    first = [row["member"] for row in results["rows"][:5]]
    assert names >= {*first[:named], "attention"}


@styled
def test_names_do_not_overlap() -> None:
    for drawing in draw_all(many(8)):
        drawing.figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in drawing.figure.axes[0].texts]
        overlapping = [a.overlaps(b) for a, b in itertools.combinations(boxes, 2)]
        assert not any(overlapping), drawing.name


def test_the_baseline_is_attention_or_the_first_that_was_named() -> None:
    results = made_up(("gmlp", "attention"), qualities=(2.0, 2.5))
    assert (baseline(results) or {})["member"] == "attention"
    results = made_up(("gmlp", "linear"), qualities=(2.5, 2.0))
    assert (baseline(results) or {})["member"] == "gmlp"
    assert baseline(made_up((), qualities=())) is None
    # it stands out wherever it ranks
    results = many(32)
    results["rows"].append(results["rows"].pop(0))
    styles = styles_of(results)
    assert styles["attention"].named
    assert sum(styles[row["member"]].named for row in results["rows"]) == 6
