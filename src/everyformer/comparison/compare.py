"""`compare`: run every job, collect what came of them, and write table and report.

Every training runs in a process of its own, one after the other, so that times are not shared. What
is finished is kept: a comparison that was stopped goes on with `resume`.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyformer.benchmark.bench import Point, bench, crossover
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.plan import Entrant, Job, entrants, job, jobs
from everyformer.comparison.summary import (
    BETTER,
    curve,
    member_row,
    quality_metric,
    rank,
    time_to,
)
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError, MissingExtraError
from everyformer.data import load_dataset
from everyformer.data.base import Dataset
from everyformer.family import info
from everyformer.training.run import environment
from everyformer.training.storage import write_json

FORMAT = "everyformer-comparison"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to; the same as results.json."""

    rows: list[dict[str, Any]]
    """one a member, best first"""
    results: dict[str, Any]
    """everything: config, environment, data, rows, runs with their curves, bench points"""
    folder: Path
    interrupted: int | None = None
    """the signal that stopped it, if one did"""


def compare(
    members: Iterable[str] | None = None, *, say: Say = lambda text: None, **options: Any
) -> Comparison:
    """Compare members on your data, on equal footing.

    Args:
        members: names; options: fields of `CompareConfig`, nested ones as dictionaries
            (``data={"source": "my.txt"}, training={"budget_seconds": 60}``).
        say: is told what happens, a line at a time.
    """
    values = dict(options)
    if members is not None:
        values["members"] = list(members)
    return run_comparison(from_dict(CompareConfig, values, "", CompareConfig()), say=say)


def run_comparison(config: CompareConfig, *, say: Say = print, command: str = "") -> Comparison:
    """Run or go on with the comparison that ``config`` describes."""
    for member in config.members:
        info(member)
    folder = _open(config)
    dataset = load_dataset(config.data, config.task)
    say(f"{dataset.name}: {dataset.split}")
    ready = entrants(config, dataset)
    for entrant in ready:
        if entrant.error is not None:
            say(f"{entrant.member}: cannot be built: {entrant.error}")
    stopped, finished = _train_all(config, dataset, ready, folder, say)
    if stopped:
        return Comparison([], {}, folder, stopped)
    points = _bench(config, say)
    results = collect(config, dataset, ready, finished, points, folder, command)
    write(results, folder)
    return Comparison(results["rows"], results, folder)


def collect(
    config: CompareConfig,
    dataset: Dataset,
    ready: list[Entrant],
    finished: list[tuple[Job, dict[str, Any]]],
    points: list[Point],
    folder: Path,
    command: str,
) -> dict[str, Any]:
    """Everything that the report is drawn from, as plain values."""
    done = [found for _, found in finished if found["status"] == "done"]
    metric = quality_metric(dataset.task, done[0]["evaluation"]) if done else "loss"
    rows, runs = [], []
    for entrant in ready:
        own = [(j, found) for j, found in finished if j.member == entrant.member]
        good = [found for _, found in own if found["status"] == "done"]
        if good and len(good) == len(own):
            rows.append(member_row(entrant.member, entrant.parameters, good, metric))
        else:
            error = next((f["error"] for _, f in own if f["status"] != "done"), entrant.error)
            rows.append({"member": entrant.member, "status": "failed", "error": error})
        for made, found in own:
            kept = {key: value for key, value in found.items() if key != "config"}
            lines = curve(folder / made.folder / "run")
            runs.append({"member": made.member, "seed": made.seed, "lr": made.lr, **kept, **lines})
    ranked = rank(rows, metric)
    qualities = [row["quality"] for row in ranked if row["status"] == "done"]
    base = next((e.parameters for e in ready if e.parameters), None)
    for row in ranked:
        if row["status"] == "done":
            own_runs = [r for r in runs if r["member"] == row["member"]]
            row["seconds_to_slowest"] = time_to(qualities[-1], own_runs[0]["evaluations"], metric)
            row["parameter_ratio"] = row["parameters"] / base if base else None
            row["beats_attention_from"] = crossover(points, row["member"])
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
    }


def write(results: dict[str, Any], folder: Path) -> None:
    """results.json, results.csv and report.html."""
    from everyformer.report.comparison import write_report

    write_json(folder / "results.json", results)
    columns = ["member", "status", "parameters", "seeds", "quality", "tokens_per_second"]
    columns += ["peak_bytes", "tokens", "flops", "steps", "seconds_to_slowest"]
    columns += ["beats_attention_from", "state_bytes", "error"]
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(results["rows"])
    write_report(results, folder)


def _train_all(
    config: CompareConfig, dataset: Dataset, ready: list[Entrant], folder: Path, say: Say
) -> tuple[int | None, list[tuple[Job, dict[str, Any]]]]:
    """Every job's result; the signal if one was stopped by it."""
    if config.launcher == "ray":
        _run_on_ray(config, dataset, ready, folder)
    finished: list[tuple[Job, dict[str, Any]]] = []
    for entrant in ready:
        if entrant.config is None:
            continue
        lr, best = config.training.lr, math.inf
        for tried in config.lr_grid:
            code, found = _run(job(config, entrant, 0, tried), config, dataset, folder, say)
            if code:
                return code, finished
            if found["status"] == "done" and found["evaluation"]["loss"] < best:
                lr, best = tried, found["evaluation"]["loss"]
        for seed in range(config.seeds):
            planned = job(config, entrant, seed, lr)
            code, found = _run(planned, config, dataset, folder, say)
            if code:
                return code, finished
            finished.append((planned, found))
    return None, finished


def _run(
    planned: Job, config: CompareConfig, dataset: Dataset, folder: Path, say: Say
) -> tuple[int | None, dict[str, Any]]:
    """One job in a fresh process, or its kept result; the signal that stopped it, if one did."""
    place = folder / planned.folder
    held = place / "result.json"
    if held.exists():
        return None, json.loads(held.read_text(encoding="utf-8"))
    prepare(planned, config, dataset, place)
    say(f"{planned.member}, seed {planned.seed}, learning rate {planned.lr:g}")
    child = subprocess.Popen([sys.executable, "-m", "everyformer.comparison.worker", str(place)])
    try:
        code = child.wait()
    except KeyboardInterrupt:
        # the child was interrupted too, and saves before it ends
        child.wait()
        return signal.SIGINT, {}
    if code in (130, 143):
        return code - 128, {}
    if not held.exists():
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        why = " (out of memory?)" if code == -signal.SIGKILL else ""
        write_json(held, {"status": "failed", "error": f"the process ended with {end}{why}"})
    found = json.loads(held.read_text(encoding="utf-8"))
    if found["status"] != "done":
        say(f"{planned.member}: failed: {found['error']}")
    return None, found


def prepare(planned: Job, config: CompareConfig, dataset: Dataset, place: Path) -> None:
    """The folder of a job, with what its process is to do."""
    place.mkdir(parents=True, exist_ok=True)
    described = {
        "data": to_dict(config.data),
        "task": dataset.task,
        "model": to_dict(planned.model),
        "training": to_dict(planned.training),
    }
    (place / "job.json").write_text(json.dumps(described, indent=1), encoding="utf-8")


def _run_on_ray(
    config: CompareConfig, dataset: Dataset, ready: list[Entrant], folder: Path
) -> None:
    """All jobs at once over a Ray cluster that shares this file system; results lie in files."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", "launcher='ray'") from error
    from everyformer.comparison.worker import main

    ray.init(ignore_reinit_error=True)
    remote = ray.remote(main)
    waiting = []
    for planned in jobs(config, ready):
        place = (folder / planned.folder).absolute()
        if not (place / "result.json").exists():
            prepare(planned, config, dataset, place)
            waiting.append(remote.remote(place))
    ray.get(waiting)


def _bench(config: CompareConfig, say: Say) -> list[Point]:
    """Time and memory of one layer of each member, and of plain attention to compare with."""
    if not config.bench_lengths:
        return []
    say(f"time and memory at lengths {', '.join(map(str, config.bench_lengths))}")
    names = list(dict.fromkeys(["attention", *config.members]))
    return list(
        bench(names, config.bench_lengths, width=config.model.width, heads=config.model.heads)
    )


def _open(config: CompareConfig) -> Path:
    folder = Path(config.out)
    recorded = folder / "comparison.json"
    settled = {k: v for k, v in to_dict(config).items() if k not in ("resume", "overwrite", "out")}
    if folder.exists() and any(folder.iterdir()):
        if config.overwrite and recorded.exists():
            shutil.rmtree(folder)
        elif not config.resume:
            raise ConfigError(
                f"{folder} is not empty: give --resume to go on with the comparison in it, "
                "--overwrite to replace it, or another --out"
            )
        elif json.loads(recorded.read_text(encoding="utf-8")) != json.loads(json.dumps(settled)):
            raise ConfigError(
                f"the comparison in {folder} was begun with other options: resume it with the "
                "same, or choose another --out"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        recorded.write_text(json.dumps(settled, indent=1), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
    return folder
