"""The run that a path means: a run's own directory, a training of a comparison, or a comparison."""

import shlex
from pathlib import Path
from typing import Any

from everyformer.core.errors import CheckpointError
from everyformer.core.plugins import command
from everyformer.system.files import expanded

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
    if not path.is_dir() or (path / CONFIG).exists():
        return folder, None
    if (path / INSIDE / CONFIG).exists():
        return str(path / INSIDE), None
    from everyformer.comparison.folder import RECORD

    if not (path / RECORD).exists():
        return folder, None
    best = _best(path)
    if best is None:
        there = sorted(str(run.parent.parent) for run in path.glob(f"runs/*/{INSIDE}/{CONFIG}"))
        named = f"one of its runs: {', '.join(there)}" if there else "it has no run yet"
        go_on = command(f"compare --resume --out {shlex.quote(folder)}")
        raise CheckpointError(
            f"{folder} is a comparison that has not come to a result: go on with `{go_on}`, or "
            + (f"give {named}" if there else f"wait, since {named}")
        )
    return (
        str(path / best["folder"] / INSIDE),
        f"{folder} is a comparison: its best, {best['member']} (seed {best['seed']}), is taken",
    )


def _best(folder: Path) -> dict[str, Any] | None:
    """The run of the first row with the best evaluation; None in an unfinished comparison."""
    from everyformer.comparison.collect import FORMAT
    from everyformer.comparison.metrics import METRICS
    from everyformer.system.sealed import read_json

    if not (folder / "results.json").exists():
        return None
    results = read_json(folder / "results.json", FORMAT)
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
