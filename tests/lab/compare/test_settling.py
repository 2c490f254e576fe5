"""Seeds until a comparison is settled: looks that were planned, which err in 5% together."""

import itertools
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from everyformer.core.errors import ConfigError
from everyformer.core.tasks import TASKS
from everyformer.lab.compare import launchers, worker
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.contrasts import contrasts, letters, within_margin
from everyformer.lab.compare.estimate import Estimate
from everyformer.lab.compare.plan import Candidate, check_design
from everyformer.lab.compare.summary import rank
from everyformer.lab.compare.verdict import verdict
from everyformer.models.build import configure

Compare = Callable[..., Any]


def planned(*looks: int, margin: float | None = None) -> CompareConfig:
    """A comparison that doubles its seeds from the first of ``looks`` to the last."""
    if not looks:
        return CompareConfig()
    design = CompareConfig(seeds=looks[0], until_settled=looks[-1], margin=margin)
    assert design.looks == looks
    return design


def row(member: str, values: Any) -> Any:
    known = {"member": member, "status": "done", "values": [*values], "same_as": []}
    own = {"seeds": len(known["values"]), "quality": float(np.mean(values)), "steps": 99.0}
    return known | own | {"beats_baseline": None}


def judged(values: dict[str, Any], design: CompareConfig) -> tuple[Any, Any]:
    """Contrasts and verdict of members, as `collect` comes to them."""
    rows: Any = rank([row(name, own) for name, own in values.items()], "loss")
    told = contrasts(rows, "loss", design.looks)
    for each, own in zip(rows, letters(rows, told), strict=True):
        each["letters"] = own
    return told, verdict(rows, "loss", in_seconds=False, cores=2, design=design)


def settled(draws: dict[str, Any], design: CompareConfig) -> tuple[Any, Any]:
    """Contrasts and verdict at the end of the design, each member with as many of its draws as it
    was given."""
    seeds = dict.fromkeys(draws, design.looks[0])
    for look in itertools.chain(design.looks[1:], itertools.repeat(design.looks[-1])):
        told, said = judged({n: draws[n][:count] for n, count in seeds.items()}, design)
        if said["ended"]:
            return told, said
        seeds |= dict.fromkeys(said["best"], look)
    raise AssertionError


@pytest.mark.parametrize(
    ("seeds", "most", "looks"),
    [
        (1, None, ()),
        (1, 2, (2,)),
        (1, 3, (3,)),
        (1, 12, (3, 6, 12)),
        (1, 13, (3, 6, 12, 13)),
        (2, 12, (3, 6, 12)),
        (5, 12, (5, 10, 12)),
        (12, 12, (12,)),
    ],
)
def test_seeds_double_from_look_to_look(
    seeds: int, most: int | None, looks: tuple[int, ...]
) -> None:
    config = CompareConfig(seeds=seeds, until_settled=most)
    assert config.looks == looks
    assert config.first_seeds == (looks or (seeds,))[0]


@pytest.mark.full("a rate over many draws")
@pytest.mark.parametrize(("members", "looks", "trials"), [(2, (3, 6, 12), 1000), (4, (3, 6), 200)])
def test_equal_members_are_told_apart_in_one_of_twenty_comparisons_of_all_looks_together(
    members: int, looks: tuple[int, ...], trials: int
) -> None:
    """Although the seeds end as soon as a winner seems to be there."""
    draw, wrong = np.random.default_rng(len(looks) * members), 0
    for _ in range(trials):
        luck = draw.normal(size=looks[-1])
        draws = {f"m{n}": luck + draw.normal(size=looks[-1]) for n in range(members)}
        told, _ = settled(draws, planned(*looks))
        wrong += any(one["apart"] for one in told)
    assert wrong / trials < 0.05 + 4 * (0.05 * 0.95 / trials) ** 0.5
    assert wrong > 0


@pytest.mark.full("a rate over many draws")
@pytest.mark.parametrize("scatter", [0.05, 0.2, 1.0])
def test_members_that_differ_by_the_margin_are_called_equal_in_one_of_twenty(
    scatter: float,
) -> None:
    draw, trials, looks = np.random.default_rng(1), 300, (3, 6, 12)
    design, ends = planned(*looks, margin=0.3), []
    for _ in range(trials):
        a, b = draw.normal(size=(2, looks[-1])) * scatter
        ends.append(settled({"a": a, "b": b + 0.3}, design)[1]["ended"])
    assert ends.count("margin") / trials < 0.05 + 4 * (0.05 * 0.95 / trials) ** 0.5
    assert set(ends) <= {"winner", "margin", "seeds"}


@pytest.mark.parametrize(
    ("difference", "margin", "ended", "best"),
    [(5.0, None, "winner", 1), (0.0, 0.5, "margin", 2), (0.0, None, "seeds", 2)],
)
def test_one_of_three_things_ends_it(
    difference: float, margin: float | None, ended: str, best: int
) -> None:
    ones = np.array([0.1, -0.1, 0.05, 0.02, -0.08, 0.01])
    _, said = settled({"a": ones, "b": ones[::-1] + difference}, planned(3, 6, margin=margin))
    assert (said["ended"], len(said["best"])) == (ended, best)
    # members of one function need no more seeds
    rows = [
        row(name, [1.0, 1.1, 1.2]) | {"letters": ["a"], "same_as": [other]}
        for name, other in ("ab", "ba")
    ]
    said = verdict(rows, "loss", in_seconds=False, cores=2, design=planned(3, 6))
    assert said["ended"] == "winner"


def test_a_pair_that_was_told_apart_stays_so() -> None:
    """Each look has its part of what may be erred, whatever the next ones show."""
    early = {"a": [1.0, 1.01, 1.0], "b": [2.0, 2.0, 2.01]}
    late = {"a": [*early["a"], 9.0, -9.0, 3.0], "b": [*early["b"], 1.0, 1.0, 1.0]}
    for values in (early, late):
        (one,), _ = judged(values, planned(3, 6))
        assert (one["better"], one["apart"]) == ("a", True)
    (one,), _ = judged(late, planned())
    assert not one["apart"]
    # looks share what may be erred
    values = {"a": [1.0, 1.1, 1.0], "b": [1.3, 1.3, 1.35]}
    (once,), (first,) = (judged(values, planned(*looks))[0] for looks in ((), (3, 6, 12)))
    assert first["probability"] == pytest.approx(3 * once["probability"])
    widths = [one["interval"][1] - one["interval"][0] for one in (once, first)]
    assert widths[1] > widths[0]


def test_the_better_is_so_in_the_seeds_that_both_have() -> None:
    """Later seeds were hard for all: those who were left behind did not have them."""
    rows: Any = rank([row("left", [1.5, 1.6, 1.5]), row("kept", [1, 1.1, 1, 9, 9, 9])], "loss")
    assert [each["member"] for each in rows] == ["kept", "left"]
    (one,) = contrasts(rows, "loss", (3, 6))
    assert (one["better"], one["difference"]) == ("kept", pytest.approx(0.5))
    turned: Any = [row("left", [1.5, 1.6, 1.5]), row("kept", [1.0, 1.1, 1.0])]
    assert contrasts(turned, "loss")[0] == one | {"probability": one["probability"] / 2} | {
        "interval": contrasts(turned, "loss")[0]["interval"]
    }


def test_within_a_margin_is_an_interval_of_two_one_sided_tests() -> None:
    """Of 5% on either side it is the 90% interval (scipy's)."""
    stats = pytest.importorskip("scipy.stats")
    a, b = [2.1, 2.3, 2.2, 2.6], [2.2, 2.3, 2.35, 2.65]
    ends = stats.ttest_rel(b, a).confidence_interval(0.9)
    rows: Any = [row("a", a), row("b", b), row("c", [9.0] * 4)]
    pair = rows[:2]
    for margin, shown in ((ends.high + 1e-6, True), (ends.high - 1e-6, False)):
        assert within_margin(pair, ["a", "b"], "loss", margin) is shown
        # all pairs and all looks share the 5%
        assert not within_margin(rows, ["a", "b"], "loss", margin)
        assert not within_margin(pair, ["a", "b"], "loss", margin, looks=2)
    assert not within_margin(rows, ["a", "b", "c"], "loss", 5.0)
    assert not within_margin([row("a", [1.0]), row("b", [1.0])], ["a", "b"], "loss", 5.0)


def test_the_margin_of_a_look_has_its_part_of_the_error() -> None:
    """What one look alone would call equal, the first of two does not yet."""
    a, b = [1.0, 1.1, 1.0], [1.05, 1.1, 1.04]
    rows = [row("a", a), row("b", b)]
    once = next(m / 1000 for m in range(999) if within_margin(rows, ["a", "b"], "loss", m / 1000))
    twice = next(
        m / 1000 for m in range(999) if within_margin(rows, ["a", "b"], "loss", m / 1000, looks=2)
    )
    assert once < twice
    for margin, ended in ((once, None), (twice, "margin")):
        said = judged({"a": a, "b": b}, planned(3, 6, margin=margin))[1]
        assert said["ended"] == ended


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"members": ("gmlp",), "power": 0.1},
            "`power` is about a difference between members, and",
        ),
        (
            {"members": ("gmlp",), "until_settled": 9},
            "`until_settled` .* or it again as gmlp@again",
        ),
        ({"margin": 0.1}, "`margin` sets when to stop with `until_settled`"),
        ({"until_settled": 9, "lr_grid": (1e-3,)}, "`lr_grid` chooses a rate by the first"),
        ({"until_settled": 4, "seeds": 5}, "the most seeds, 4, but `seeds` are 5"),
    ],
)
def test_what_says_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_design(CompareConfig(**options))


@pytest.fixture
def losses(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each member's trainings come to, seed by seed, or 0.1 around a number."""
    means: dict[str, Any] = {}
    work = worker.work

    def told(folder: Path, job: dict[str, Any], *more: Any) -> Any:
        result: Any = work(folder, job, *more)
        seed, member = job["run"]["training"]["seed"], job["run"]["member"]
        draw = np.random.default_rng([seed, len(member)]).uniform(-0.1, 0.1)
        mean = means[member]
        value = mean[seed] if isinstance(mean, list) else mean + draw
        result["evaluation"]["bits_per_byte"] = value
        return result

    monkeypatch.setattr(worker, "work", told)
    return means


@pytest.mark.full("5 s: a comparison of many seeds")
def test_those_who_share_the_first_tier_get_more_seeds(
    compare: Compare, losses: dict[str, Any], launched: list[str]
) -> None:
    losses |= {"attention": 2.0, "gmlp": 2.0, "aft-simple": 9.0}
    done = compare(*losses, "--steps", "1", "--until-settled", "6")
    assert done.code == 0, done.err
    assert {name: done.row(name)["seeds"] for name in losses} == {
        "attention": 6, "gmlp": 6, "aft-simple": 3,
    }  # fmt: skip
    assert len(launched) == len({*launched}) == 15
    assert done.results["verdict"]["ended"] == "seeds"
    assert "All 6 seeds are spent, and the winner is not settled." in done.out
    assert "not settled: attention and gmlp get 6 seeds each" in done.err.replace("gmlp and a", "a")
    assert [line["seeds"] for line in done.table()] == [*["6"] * 12, *["3"] * 3]


@pytest.mark.full("5 s: a comparison of many seeds")
def test_one_that_was_left_behind_comes_back_with_all_seeds(
    compare: Compare, losses: dict[str, Any]
) -> None:
    """It is worse than the first of three seeds, but not than the first of six."""
    losses |= {"attention": [1, 1, 1, 9, 9, 9], "gmlp": [1, 3, 1.5, 1, 1, 1]}
    losses["aft-simple"] = [2, 2.01, 1.99, 2, 2, 2]
    done = compare(*losses, "--steps", "1", "--until-settled", "6")
    assert [done.row(name)["seeds"] for name in losses] == [6, 6, 6]
    assert done.results["verdict"]["ended"] == "seeds"
    assert done.err.count("not settled: ") == 2


@pytest.mark.full("a comparison of many seeds")
@pytest.mark.parametrize(
    ("gmlp", "margin", "ended", "said"),
    [
        (
            9.0,
            "0.5",
            "winner",
            "It ended after 3 of at most 8 seeds, since no other shares the first tier",
        ),
        (2.0, "2", "margin", "are shown to be within 2 bits per byte of each other"),
    ],
)
def test_it_ends_as_soon_as_it_may(
    gmlp: float, margin: str, ended: str, said: str, compare: Compare, losses: dict[str, Any]
) -> None:
    losses |= {"attention": 2.0, "gmlp": gmlp}
    done = compare(*losses, "--steps", "1", "--until-settled", "8", "--margin", margin)
    assert (done.results["verdict"]["ended"], done.row("gmlp")["seeds"]) == (ended, 3)
    assert said in done.out


@pytest.mark.full("a quarter of a minute", parts=3)
def test_stopped_in_the_middle_it_comes_to_the_same(
    compare: Compare, losses: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses |= {"attention": 2.0, "gmlp": 2.0, "aft-simple": 9.0}
    words = (*losses, "--steps", "1", "--until-settled", "6")
    whole = compare(*words, out="whole")
    launch, count = launchers.launch, iter(range(100))

    def stopped(module: str, place: Path, stop: Any, *more: str) -> int:
        if next(count) == 11:
            stop.received = signal.SIGTERM
            return 143
        return launch(module, place, stop, *more)

    with monkeypatch.context() as patch:
        patch.setattr(launchers, "launch", stopped)
        assert compare(*words).code == 143
    again = compare("--resume", small=False)
    assert again.code == 0, again.err
    for part in ("contrasts", "verdict"):
        assert again.results[part] == whole.results[part]
    changed = compare("--resume", "--until-settled", "16", small=False)
    assert "was started with other options (until_settled: 6 -> 16)" in changed.err


def test_the_power_asked_for_is_in_the_results_and_said(
    compare: Compare, losses: dict[str, Any], launched: list[str]
) -> None:
    losses |= {"attention": 2.0, "gmlp": 2.0}
    done = compare(*losses, "--steps", "1", "--seeds", "3", "--power", "0.05")
    asked = done.results["verdict"]["power"]
    assert asked["difference"] == 0.05
    assert (
        f"To see 0.05 bits per byte in 80% of comparisons takes {asked['seeds']} seeds" in done.out
    )
    launched.clear()
    # asked again of what is finished
    other = compare("--resume", "--power", "0.5", small=False).results["verdict"]["power"]
    assert (other["difference"], launched) == (0.5, [])
    assert other["seeds"] < asked["seeds"]
    assert json.loads(json.dumps(other)) == other


def test_trainings_that_come_too_are_told_with_the_others() -> None:
    """Once each, however often they are announced."""
    ready = [
        Candidate(name, None, configure(name, "lm", max_length=8), 1) for name in ("gmlp", "gpt")
    ]
    data = SimpleNamespace(
        does=TASKS["classify-text"], length=8, validation_batches=lambda *sizes: ()
    )
    config = CompareConfig(members=("gmlp", "gpt"), until_settled=12)
    found: Any = Estimate(config, ready, data, {})  # type: ignore[arg-type]
    before = found.seconds
    assert found.trainings == 6
    for _ in range(2):
        found.more(["gmlp"], 6)
        assert found.trainings == 9
    assert found.seconds - before == pytest.approx(3 * found._each["gmlp"])
    found.more(["gmlp", "gpt"], 12)
    assert found.trainings == 24
