"""`compare`: run every job, collect what came of them, and write the table.

Every training runs in a process of its own, one after the other, so that times are not shared. What
is finished is kept: a comparison that was stopped goes on with `resume`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from everyformer.benchmark.bench import bench
from everyformer.benchmark.points import Point, crossover
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.folder import check_folder, opened
from everyformer.comparison.plan import Entrant, entrants, own_options, preset_changes
from everyformer.comparison.results import FailedRow, Results, Row, Run
from everyformer.comparison.summary import BETTER, curve, member_row, quality_metric, rank, time_to
from everyformer.comparison.trainings import Finished, Say, Trainings
from everyformer.comparison.verdict import letters, same_functions, verdict
from everyformer.core.config import to_dict
from everyformer.core.files import write_text
from everyformer.core.sealed import write_json
from everyformer.core.stopping import Gentle
from everyformer.core.tasks import ALL_TASKS
from everyformer.data import load_dataset
from everyformer.data.dataset import Dataset
from everyformer.family import info
from everyformer.training.run import environment

FORMAT = "everyformer-comparison"
SIZES = ("width", "heads", "layers", "max_length")
"""what a benchmark of one layer sets itself"""
Report = Callable[[Results, Path], object]


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to; the same as results.json."""

    rows: list[Row | FailedRow]
    """one a member, best first"""
    results: Results
    """everything: config, environment, data, rows, runs with their curves, bench points; empty
    where it was interrupted"""
    folder: Path
    interrupted: int | None = None
    """the signal that stopped it, if one did"""


def run_comparison(
    config: CompareConfig, report: Report, *, say: Say = print, command: str = ""
) -> Comparison:
    """Run or go on with the comparison that ``config`` describes.

    Args:
        report: writes a page about the results into the folder.
        say: is told what happens, a line at a time.
        command: the words that began it.
    """
    for member in config.members:
        info(member)
    own_options(config)
    check_folder(config)
    dataset = load_dataset(config.data, config.task, able=common_tasks(config.members))
    say(f"{dataset.name}: {dataset.split}")
    ready = entrants(config, dataset)
    for entrant in ready:
        if entrant.error is not None:
            say(f"{entrant.member}: cannot be built: {entrant.error}")
    with opened(config, dataset.fingerprint) as folder:
        with Gentle() as stop:
            finished = Trainings(config, dataset, folder, say, stop).run(ready)
        if stop.received:
            return Comparison([], cast(Results, {}), folder, stop.received)
        # from here on a stop loses nothing that was trained, so it may come at once
        trained = any(found["status"] == "done" for _, found in finished)
        points = _bench(config, say) if trained else []
        results = collect(config, dataset, ready, finished, points, folder, command)
        write(results, folder)
        report(results, folder)
        return Comparison(results["rows"], results, folder)


def common_tasks(members: Sequence[str]) -> tuple[str, ...]:
    """The tasks that all of ``members`` have, or that any has where they share none."""
    tasks = [info(member).tasks for member in members]
    shared = tuple(task for task in ALL_TASKS if all(task in own for own in tasks))
    return shared or ALL_TASKS


def collect(
    config: CompareConfig,
    dataset: Dataset,
    ready: list[Entrant],
    finished: Finished,
    points: list[Point],
    folder: Path,
    command: str,
) -> Results:
    """Everything that the report is drawn from, as plain values."""
    done = [found for _, found in finished if found["status"] == "done"]
    metric = quality_metric(dataset.task, done[0]["evaluation"]) if done else "loss"
    rows: list[Row | FailedRow] = []
    runs: list[Run] = []
    for entrant in ready:
        own = [(j, found) for j, found in finished if j.member == entrant.member]
        good = [found for _, found in own if found["status"] == "done"]
        if good and len(good) == len(own):
            assert entrant.parameters is not None
            rows.append(member_row(entrant.member, entrant.parameters, good, metric))
        else:
            error = next((f["error"] for _, f in own if f["status"] != "done"), entrant.error)
            rows.append({"member": entrant.member, "status": "failed", "error": error})
        for job, found in own:
            kept = {key: value for key, value in found.items() if key != "config"}
            lines = curve(folder / job.folder / "run")
            which = {"member": job.member, "seed": job.seed, "lr": job.lr, "folder": job.folder}
            runs.append(cast(Run, {**which, **kept, **lines}))
    ranked = rank(rows, metric)
    trained = [row for row in ranked if row["status"] == "done"]
    together = zip(trained, letters(trained), same_functions(trained, runs), strict=True)
    for row, own_letters, equals in together:
        row["letters"], row["same_as"] = own_letters, equals
    qualities = [row["quality"] for row in trained]
    base = next((e.parameters for e in ready if e.parameters), None)
    for row in trained:
        own_runs = [r for r in runs if r["member"] == row["member"]]
        row["seconds_to_slowest"] = time_to(qualities[-1], own_runs[0]["evaluations"], metric)
        row["parameter_ratio"] = row["parameters"] / base if base else None
        row["beats_attention_from"] = crossover(points, row["member"])
        config_of = next(e.config for e in ready if e.member == row["member"])
        row["preset"] = {} if config_of is None else preset_changes(config_of)
    return {
        "format": FORMAT,
        "command": command,
        "config": to_dict(config),
        "environment": environment(),
        "data": dataset.summary(),
        "metric": metric,
        "better": BETTER[metric],
        "rows": ranked,
        "runs": runs,
        "bench": [to_dict(point) for point in points],
        "verdict": verdict(trained),
        "waiting": [],
        "next": [],
    }


def write(results: Results, folder: Path) -> None:
    """results.json and results.csv."""
    write_json(folder / "results.json", dict(results))
    columns = ["member", "status", "parameters", "seeds", "quality", "tokens_per_second"]
    columns += ["peak_bytes", "tokens", "flops", "steps", "seconds_to_slowest"]
    columns += ["beats_attention_from", "state_bytes", "error"]
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(results["rows"])
    write_text(folder / "results.csv", table.getvalue())


def _bench(config: CompareConfig, say: Say) -> list[Point]:
    """Time and memory of one layer of each member, and of plain attention to compare with."""
    if not config.bench_lengths:
        return []
    say(f"time and memory at lengths {', '.join(map(str, config.bench_lengths))}")
    names = list(dict.fromkeys(["attention", *config.members]))
    sizes: dict[str, Any] = {"width": config.model.width, "heads": config.model.heads}
    own = {
        member: {name: value for name, value in options.items() if name not in SIZES}
        for member, options in own_options(config).items()
    }
    return list(bench(names, config.bench_lengths, options=own, **sizes))
