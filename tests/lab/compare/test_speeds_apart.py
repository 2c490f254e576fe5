"""One function under two names is hardly ever told apart in speed, whatever its times are like."""

from typing import Any

import numpy as np
import pytest

from everyformer.lab.bench import measure
from everyformer.lab.bench.measure import layers_in_turn, with_times
from everyformer.lab.bench.points import Point, Setting, crossover, is_settled
from everyformer.lab.bench.timing import LEAST_SAMPLES, Times, is_steady, summary
from everyformer.lab.report.table import Column, best_of

TRIALS = 1500
BOUND = 0.05 + 4 * (0.05 * 0.95 / TRIALS) ** 0.5
DRAWS: dict[str, Any] = {
    "normal": lambda draw, n: 1 + 0.03 * draw.normal(size=n),
    "lognormal": lambda draw, n: np.exp(0.3 * draw.normal(size=n)),
    "a tail": lambda draw, n: 1 + draw.exponential(size=n),
}
SPEED = Column(
    "speed", "", lambda row: dict(row)["speed"], better="higher",
    spread=lambda row: dict(row)["spread"],
)  # fmt: skip


@pytest.mark.full("a rate over many draws")
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("most", [LEAST_SAMPLES, 9, 25])
def test_layers_of_equal_times_are_told_apart_in_less_than_one_of_twenty(
    kind: str, most: int
) -> None:
    """Also where they are measured until both are steady."""
    draw, apart, faster = np.random.default_rng(most), 0, 0
    for _ in range(TRIALS):
        times = [DRAWS[kind](draw, most).tolist() for _ in "ab"]
        n = LEAST_SAMPLES
        while n < most and not all(is_steady(each[:n]) for each in times):
            n += 1
        names = ("attention", "attention@again")
        points = [
            with_times(Point(name, 64), Times(each[:n], True))
            for name, each in zip(names, times, strict=True)
        ]
        apart += bool(is_settled(points, "attention@again"))
        faster += crossover(points, "attention@again") is not None
    assert apart / TRIALS < BOUND
    assert faster / TRIALS < BOUND / 2


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("members", [2, 3, 6])
def test_members_of_equal_speed_have_a_fastest_in_less_than_one_of_twenty(
    kind: str, members: int
) -> None:
    draw, named = np.random.default_rng(members), 0
    for _ in range(TRIALS):
        rows: list[Any] = []
        for n in range(members):
            speed, spread = summary(DRAWS[kind](draw, LEAST_SAMPLES).tolist())
            rows.append({"member": f"m{n}", "same_as": [], "speed": speed, "spread": spread})
        named += len(best_of(rows, SPEED)) == 1
    assert named / TRIALS < BOUND


def test_layers_of_twins_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def in_turn(points: Any, setting: Any, make: Any) -> Any:
        measured.extend(point.member for point in points)
        return [with_times(point, Times([1.0] * 5, True)) for point in points]

    monkeypatch.setattr(measure, "in_turn", in_turn)
    names = ("attention", "attention@again", "gmlp", "attention@narrow")
    points = [Point(name, 16) for name in names]
    made = layers_in_turn(points, Setting(width=16, heads=2), {"attention@narrow": {"window": 3}})
    assert measured == ["attention", "gmlp", "attention@narrow"]
    assert [point.member for point in made] == [*names]
    assert is_settled(made, "attention@again") is False
