"""From single trainings to one row a member: means over seeds, 95% intervals, what beats what.

What only the whole table tells of a row (its tiers, its equals) is added when all rows are known.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everyformer.core.measures import METRICS
from everyformer.core.student import mean_interval
from everyformer.core.tasks import Task
from everyformer.family import info
from everyformer.lab.compare.results import (
    Calibrated,
    FailedRow,
    Logged,
    Metric,
    TableRow,
    Trained,
    interval_of,
    quality_of,
)  # fmt: skip

WEIGHT = 4
"""bytes of a parameter, which a training needs at least: less was not measured but missed"""


def member_row(
    member: str,
    task: Task,
    parameters: int,
    runs: Sequence[Trained],
    metric: Metric,
    calibrated: Calibrated | None = None,
) -> TableRow:
    """The comparison's row of one member from its finished runs (one a seed)."""
    values = [quality_of(run["evaluation"], metric) for run in runs]
    first = runs[0]
    interval = interval_of(first["evaluation"], metric)
    if len(values) > 1:
        interval = mean_interval(values)
        if METRICS[metric].share:
            interval = [max(0.0, interval[0]), min(1.0, interval[1])]
    speed: Any = calibrated or {}
    base, peak = task.baseline(first["evaluation"]), speed.get("peak_bytes") or 0
    return {
        "member": member,
        "status": "done",
        "parameters": parameters,
        "seeds": len(runs),
        "quality": statistics.mean(values),
        "interval": interval,
        "interval_of": "seeds" if len(values) > 1 else "validation sequences",
        "values": values,
        "tokens_per_second": speed.get("tokens_per_second"),
        "trained_tokens_per_second": statistics.mean(run["tokens_per_second"] for run in runs),
        "tokens": statistics.mean(run["tokens"] for run in runs),
        "flops": statistics.mean(run["flops"] for run in runs),
        "steps": statistics.mean(run["steps"] for run in runs),
        "peak_bytes": peak if peak >= WEIGHT * parameters else None,
        "decode_ms": speed.get("decode_ms", {}),
        "decode_bytes": speed.get("decode_bytes", {}),
        "state_bytes": speed.get("state_bytes"),
        "longest": speed.get("longest"),
        "mean_depth": _mean(run["evaluation"].get("mean_depth") for run in runs),
        "mean_span": _mean(run["evaluation"].get("mean_span") for run in runs),
        "leaks": first.get("leaks"),
        "by_position": first.get("by_position"),
        "sample": first.get("sample"),
        "baseline": base and base.value,
        "baseline_words": base.words if base else "",
        "beats_baseline": base and all(task.beats(run["evaluation"], base) for run in runs),
        "seconds": statistics.mean(run["seconds"] for run in runs),
        "speed_spread": speed.get("speed_spread"),
        "decode_spread": speed.get("decode_spread", {}),
        "limits": first.get("limits") or [],
        "calibrated": calibrated,
        "load": max(filter(None, (run.get("load") for run in runs)), default=None),
        "group": info(member).group,
        "letters": [],
        "same_as": [],
    }


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of the runs that tell it; None: no run does."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def time_to(target: float, seeds: Sequence[Sequence[Logged]], metric: Metric) -> float | None:
    """Training seconds until the mean of ``metric`` over ``seeds`` reaches ``target``, linear
    between evaluations, of which each seed has its own."""
    sign = METRICS[metric].sign
    curves = [
        ([e["seconds"] for e in each], [quality_of(e["evaluation"], metric) for e in each])
        for each in seeds
    ]
    known = max(seconds[0] for seconds, _ in curves)
    moments = sorted({s for seconds, _ in curves for s in seconds if s >= known})
    before: tuple[float, float] | None = None
    for moment in moments:
        value = statistics.mean(float(np.interp(moment, *each)) for each in curves)
        if sign * (value - target) <= 0:
            if before is None:
                return moment
            part = (before[1] - target) / (before[1] - value)
            return before[0] + part * (moment - before[0])
        before = moment, value
    return None


def rank(rows: list[TableRow | FailedRow], metric: Metric) -> list[TableRow | FailedRow]:
    """Best first, those that were given more seeds before those that were left behind; members that
    failed are last."""
    sign = METRICS[metric].sign
    done = sorted(
        (row for row in rows if row["status"] == "done"),
        key=lambda row: (-row["seeds"], sign * row["quality"]),
    )
    return [*done, *(row for row in rows if row["status"] != "done")]
