"""The run that a path means: a run's own directory, a training of a comparison, or a comparison."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from everyformer.core.errors import CheckpointError
from everyformer.core.plugins import command
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.lab.compare.results import Results

CONFIG, INSIDE = "config.json", "run"
"""what a run holds; the folder that it has in that of a comparison's training"""


def found_run(folder: str) -> tuple[str, str | None]:
    """The run's own directory that ``folder`` means, and what there is to say of it.

    A training of a comparison holds its run inside; a finished comparison stands for its best
    member, of several seeds for the best of them. Any other path is given back as it is.

    Raises:
        CheckpointError: a comparison without a result yet; the runs that there are are named.
    """
    path = expanded(folder)
    if not path.is_dir():
        return folder, None
    if (path / CONFIG).exists():
        return folder, _trained_on(path)
    if (path / INSIDE / CONFIG).exists():
        inside = path / INSIDE
        return str(inside), _trained_on(inside)
    if not is_comparison(folder):
        return folder, None
    best = _best(path)
    if best is None:
        raise _unfinished(folder)
    run = path / best["folder"] / INSIDE
    taken = f"{folder} is a comparison: its best, {best['member']} (seed {best['seed']}), is taken"
    return str(run), "; ".join(filter(None, (taken, _trained_on(run))))


def is_comparison(folder: str) -> bool:
    """True for the folder of a comparison."""
    from everyformer.lab.compare.files import RECORD

    path = expanded(folder)
    return (path / RECORD).exists() and not (path / CONFIG).exists()


def compared(folder: str) -> Results:
    """Results of a comparison, of an unfinished one those of the members so far.

    Raises:
        CheckpointError: it has none yet; the runs that there are are named. Or its metric is of a
            task that is gone.
    """
    from everyformer.core.measures import METRICS
    from everyformer.lab.compare.files import FORMAT
    from everyformer.system.sealed import read_json

    path = expanded(folder) / "results.json"
    if not path.exists():
        raise _unfinished(folder)
    results = read_json(path, FORMAT)
    if results["metric"] not in METRICS:
        raise CheckpointError(
            f"{folder} compares by '{results['metric']}', of a task that left the library: read "
            "its report.html, or use it with the everyformer that made it"
        )
    return cast("Results", results)


def _trained_on(run: Path) -> str | None:
    """Words on a run of a comparison that has gone on since the comparison measured it."""
    from everyformer.lab.compare.files import read_result
    from everyformer.training.checkpoint import checkpoints

    there = checkpoints(run / "checkpoints")
    result = read_result(run.parent) if there and run.name == INSIDE else None
    if result is None or result["status"] != "done":
        return None
    now = int(there[-1].name.removeprefix("step-"))
    if now <= result["steps"]:
        return None
    return (
        f"this run was trained on to step {now:,} since the comparison, whose table and report are "
        f"of step {result['steps']:,}"
    )


def _unfinished(folder: str) -> CheckpointError:
    runs = expanded(folder).glob(f"runs/*/{INSIDE}/{CONFIG}")
    there = sorted(str(run.parent.parent) for run in runs)
    named = f"one of its runs: {', '.join(there)}" if there else "it has no run yet"
    go_on = command(f"compare --resume --out {shlex.quote(folder)}")
    return CheckpointError(
        f"{folder} is a comparison that has not come to a result: continue with `{go_on}`, or "
        + (f"give {named}" if there else f"wait, since {named}")
    )


def _best(folder: Path) -> dict[str, Any] | None:
    """The run of the first row with the best evaluation; None in an unfinished comparison."""
    from everyformer.core.measures import METRICS

    if not (folder / "results.json").exists():
        return None
    results: Any = compared(str(folder))
    rows = [row for row in results["rows"] if row["status"] == "done"]
    if not rows or results.get("waiting"):
        return None
    metric = results["metric"]
    sign = METRICS[metric].sign
    own = [
        run
        for run in results["runs"]
        if run["member"] == rows[0]["member"] and run["status"] == "done"
    ]
    best: dict[str, Any] = min(own, key=lambda run: sign * run["evaluation"][metric])
    return best
