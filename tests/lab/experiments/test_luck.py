"""The comparison of a member with itself: its rates, its judgement, and what it foresees."""

from typing import Any

import numpy as np
import pytest

from everyformer.lab.experiments import luck
from everyformer.lab.experiments.study import Study, StudySetting


@pytest.mark.parametrize(("hits", "trials"), [(0, 200), (8, 200), (10, 20), (200, 200)])
def test_a_share_lies_within_wilsons_interval(hits: int, trials: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    known = stats.binomtest(hits, trials).proportion_ci(method="wilson")
    study = Study(StudySetting(seeds=1, say=lambda text: None), "luck")
    study.numbers |= {"found": [hits / trials], "trials: found": [trials]}
    share, low, high = luck.rate(study, "found")
    assert (share, low, high) == pytest.approx((hits / trials, known.low, known.high), abs=1e-12)
    assert 0 <= low <= high <= 1


def made(member: str, values: Any, **more: Any) -> Any:
    return {
        "member": member, "status": "done", "seeds": len(values), "values": [*values],
        "quality": float(np.mean(values)), "steps": 60, "beats_baseline": True, "same_as": [],
        **more,
    }  # fmt: skip


def bench(kind: str) -> luck.Bench:
    none: Any = None
    return luck.Bench(luck.KINDS[kind][1], none, none, {})


@pytest.mark.parametrize(
    ("kind", "better", "seeds", "more", "judged"),
    [
        ("text", "a", 3, {}, (True, ["a"])),
        ("classes", "b", 3, {}, (True, ["b"])),
        ("text", "", 1, {}, (False, [])),
        ("text", "", 3, {"steps": 49}, (True, [])),
    ],
)
def test_rows_are_judged_as_a_comparison_judges_them(
    kind: str, better: str, seeds: int, more: Any, judged: Any
) -> None:
    rows = [made("a", [1.0, 1.1, 1.2], **more), made("b", [2.0, 2.11, 2.2], **more)]
    assert bench(kind).judged(rows, seeds) == judged
    assert rows[0]["values"] == [1.0, 1.1, 1.2]


@pytest.mark.full("a quarter of a minute", parts=3)
def test_trials_of_equal_draws_hold_and_of_unequal_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what is foreseen of a worse one is about what is found."""

    def outcome(again: float, slow: float, half: float = 2.0) -> Any:
        draw = np.random.default_rng(0)
        shifts = {"attention": 0.0, "attention@again": again, "attention@half": half}

        def row(self: Any, name: str, seed: int) -> Any:
            luckless = shifts.get(name, slow)
            sign = -1 if self.metric == "accuracy" else 1
            return made(name, 0.1 * (sign * luckless + draw.normal(size=3)))

        monkeypatch.setattr(luck.Bench, "row", row)
        study = Study(StudySetting(seeds=1, scale=3.0, say=lambda text: None), "luck")
        study.seed = 0
        luck.trials(study, {kind: bench(kind) for kind in luck.KINDS})
        return luck.outcome_of(study)

    equal = outcome(0.0, 4.0)
    assert equal.holds
    numbers = {name: values[0] for name, values in equal.numbers.items()}
    assert numbers["trials: named, 3 seeds"] == 600
    for arm in ("attention@half, text", "attention@slow, classes", "attention@half, numbers"):
        assert numbers[f"found, {arm}"] == pytest.approx(numbers[f"foreseen, {arm}"], abs=0.25)
    assert numbers["foreseen, attention@half, text"] < numbers["foreseen, attention@slow, text"]
    study = Study(StudySetting(seeds=1, say=lambda text: None), "luck")
    study.numbers = equal.numbers | {"named, 1 seed": [0.01]}
    assert not luck.outcome_of(study).holds
    # twins that differ, however much more often what is worse is found
    assert not outcome(1.5, 9.0, 9.0).holds
    # what is worse is found no more often than twins are told apart
    assert not outcome(0.0, 0.0).holds
    assert set(equal.figures) == {"rates"}


def test_trials_with_other_work_have_it_while_they_last() -> None:
    with luck.spinning(True) as process:
        assert process is not None
        assert process.poll() is None
    assert process.poll() is not None
    with luck.spinning(False) as process:
        assert process is None
