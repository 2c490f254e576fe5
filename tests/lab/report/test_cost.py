"""Quality against cost: the front is what none beats in both, and better is where the axes say."""

import itertools
import random
from typing import Any

import numpy as np
import pytest

from everyformer.lab.report.cost import draw_cost, front
from everyformer.lab.report.selection import styles_of
from report_results import made_up, many


def test_the_front_is_all_that_no_other_dominates() -> None:
    drawn = random.Random(0)
    for _ in range(50):
        places = {str(n): (drawn.randrange(6), drawn.randrange(6)) for n in range(12)}
        beaten = {
            a for (a, one), (b, two) in itertools.permutations(places.items(), 2)
            if one != two and two[0] <= one[0] and two[1] <= one[1]
        }  # fmt: skip
        found = front(places)
        assert set(found) == places.keys() - beaten
        assert [places[name][0] for name in found] == sorted(places[name][0] for name in found)


def _line(results: Any, what: str) -> list[list[float]]:
    drawing = draw_cost(results, styles_of(results), what)
    assert drawing is not None
    [line] = [line for line in drawing.figure.axes[0].lines if line.get_zorder() == 1]
    return np.asarray(line.get_xydata()).tolist()


def _three(metric: str = "bits_per_byte") -> Any:
    """Speeds 1000, 2000, 3000 tokens per second; 0.6, 1.6, 2.6 ms a token."""
    return made_up(("attention", "gmlp", "linear"), metric=metric, qualities=(0.3, 0.2, 0.4))


@pytest.mark.parametrize(
    ("metric", "training", "writing"),
    [
        ("bits_per_byte", [[3000, 0.4], [2000, 0.2]], [[0.6, 0.3], [1.6, 0.2]]),
        ("accuracy", [[3000, 40]], [[0.6, 30], [2.6, 40]]),
    ],
)
def test_better_is_fast_to_train_quick_to_write_and_good(
    metric: str, training: list[list[float]], writing: list[list[float]]
) -> None:
    np.testing.assert_allclose(_line(_three(metric), "training"), training)
    np.testing.assert_allclose(_line(_three(metric), "writing"), writing)


def test_the_caption_names_the_front_where_the_order_is_settled() -> None:
    results = _three()
    captions = []
    for doubts in ([], ["the machine had other work"]):
        results["verdict"]["doubts"] = doubts
        drawing = draw_cost(results, styles_of(results), "training")
        captions.append(drawing.caption if drawing else "")
    line, bars = "Line: what no other member beats in both, by these numbers", "Bars: 95% inter"
    assert captions[0].startswith(f"{line}: linear and gmlp. {bars}")
    assert captions[1].startswith(f"{line}. {bars}")
    # a cost that one member alone has is not drawn
    for row in results["rows"][1:]:
        row["decode_ms"] = {}
    assert draw_cost(results, styles_of(results), "writing") is None


def test_of_many_colours_are_the_families_and_the_front_is_named() -> None:
    results = many(32)
    styles = styles_of(results)
    drawing = draw_cost(results, styles, "training")
    assert drawing is not None
    [legend] = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*styles.families]
    rows = {row["member"]: row for row in results["rows"]}
    costs = {name: (-row["tokens_per_second"], row["quality"]) for name, row in rows.items()}
    named = {text.get_text() for text in drawing.figure.axes[0].texts}
    assert named == {*front(costs), "attention"}
