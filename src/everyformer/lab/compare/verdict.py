"""Statements that a table supports: equal functions, the verdict.

No winner is named where the machine was too busy to share seconds fairly or a member hardly began.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from everyformer.core.measures import METRICS
from everyformer.core.wording import join_first
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.contrasts import seeds_to_see, smallest_seen, within_margin
from everyformer.lab.compare.results import Metric, Power, Run, TableRow, Verdict

SCATTER = 0.25
"""of a member's speed between rounds of the calibration, or between that and its training"""
FEWEST_STEPS = 50
"""of a training that says something of a member"""
IDLE_LOAD = 0.5
"""threads beyond one a core that do not disturb a training"""
USUAL = CompareConfig()


def same_functions(rows: Sequence[TableRow], runs: Sequence[Run]) -> list[list[str]]:
    """For each row the members whose every evaluation gave the same loss to the last digit, and
    whose quality is the same too, in which a store that a model reads counts."""
    losses = {
        row["member"]: tuple(
            line["evaluation"]["loss"]
            for run in runs
            if run["member"] == row["member"]
            for line in run["evaluations"]
        )
        for row in rows
    }
    quality = {row["member"]: row["quality"] for row in rows}
    return [
        [
            name
            for name, loss in losses.items()
            if loss and name != me and (loss, quality[name]) == (losses[me], quality[me])
        ]
        for me in losses
    ]


def verdict(
    rows: Sequence[TableRow],
    metric: Metric,
    *,
    in_seconds: bool,
    cores: int,
    design: CompareConfig = USUAL,
) -> Verdict:
    """Members of the first tier of ranked ``rows``, and why none may be called the best.

    Args:
        rows: with their letters, best first.
        metric: that they are ranked by.
        in_seconds: whether the budget was one of seconds, which a busy machine shares unevenly.
        cores: of the machine.
        design: the plan of its seeds, and the differences in question.
    """
    if not rows:
        return {"best": [], "doubts": [], "useful": False, "smallest": None, "ended": None}
    useful = rows[0]["beats_baseline"] is not False
    first = set(rows[0]["letters"])
    best = [row["member"] for row in rows if first & set(row["letters"])]
    doubts = [] if useful else [_useless(rows[0], metric)]
    here = design.launcher == "local"
    doubts += [*(_unfair_seconds(rows, cores if here else None) if in_seconds else ())]
    short = [f"{row['member']} {row['steps']:,.0f}" for row in rows if row["steps"] < FEWEST_STEPS]
    if short:
        doubts.append(f"fewer than {FEWEST_STEPS} steps were made ({join_first(short)})")
    looks, power = len(design.looks), None
    if design.power is not None:
        power = Power(
            difference=design.power, seeds=seeds_to_see(rows, metric, design.power, looks)
        )
    return {
        "best": best,
        "doubts": doubts,
        "useful": useful,
        "smallest": smallest_seen(rows, metric, looks=looks),
        "power": power,
        "looks": max(1, looks),
        "ended": _ended(rows, best, metric, design),
    }


def _ended(
    rows: Sequence[TableRow], best: Sequence[str], metric: Metric, design: CompareConfig
) -> Literal["winner", "margin", "seeds"] | None:
    """Why no further seeds are needed, or None."""
    looks, margin = design.looks, design.margin
    if not looks:
        return None
    if set(best) <= {rows[0]["member"], *rows[0]["same_as"]}:
        return "winner"
    if margin is not None and within_margin(rows, best, metric, margin, len(looks)):
        return "margin"
    spent = all(len(row["values"]) >= looks[-1] for row in rows if row["member"] in best)
    return "seeds" if spent else None


def _useless(row: TableRow, metric: Metric) -> str:
    assert row["baseline"] is not None
    written, words = METRICS[metric].written(row["baseline"]), row["baseline_words"]
    return f"no member is surely better than {words} ({METRICS[metric].unit} {written})"


def _unfair_seconds(rows: Sequence[TableRow], cores: int | None) -> Iterator[str]:
    """Reasons to doubt that equal seconds gave as many steps as on an idle machine.

    ``cores``: None where the trainings ran side by side or elsewhere, which tells nothing of it."""
    load = max((row["load"] for row in rows if row["load"] is not None), default=0.0)
    if cores is not None and load > cores + IDLE_LOAD:
        yield f"the machine had other work ({load:.1f} threads wanted its {cores} cores)"
    scatters = {row["member"]: _scatter(row, trained=cores is not None) for row in rows}
    unsteady = [f"{name} by {share:.0%}" for name, share in scatters.items() if share > SCATTER]
    if unsteady:
        yield f"speeds scattered ({join_first(unsteady)})"
    untimed = [row["member"] for row in rows if row["calibrated"] is None]
    if untimed:
        yield f"the speed of {join_first(untimed)} could not be measured beforehand"


def _scatter(row: TableRow, trained: bool) -> float:
    """By how much the measured seconds a step differed, in the rounds and, if so asked, in
    training."""
    calibrated = row["calibrated"]
    if calibrated is None:
        return 0.0
    known = [*calibrated["rounds"]]
    if trained:
        known.append(row["tokens"] / row["steps"] / row["trained_tokens_per_second"])
    return max(known) / min(known) - 1
