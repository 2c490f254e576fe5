"""The results of a comparison from its trainings, and their files."""

import csv
import io
import shlex
from pathlib import Path
from typing import cast

from everyformer.benchmark.points import Point, crossover
from everyformer.comparison.advice import advice
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.metrics import METRICS
from everyformer.comparison.plan import Entrant, preset_changes
from everyformer.comparison.playing import mean_of
from everyformer.comparison.results import Calibrated, FailedRow, Results, Run, TableRow
from everyformer.comparison.summary import curve, member_row, quality_metric, rank, time_to
from everyformer.comparison.trainings import Finished
from everyformer.comparison.verdict import letters, same_functions, verdict
from everyformer.core import plugins
from everyformer.core.config import to_dict
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import Dataset
from everyformer.system.files import write_text
from everyformer.system.machine import cores
from everyformer.system.sealed import write_json
from everyformer.training.run import environment

FORMAT = "everyformer-comparison"


def collect(
    config: CompareConfig,
    dataset: Dataset,
    ready: list[Entrant],
    calibrated: dict[str, Calibrated],
    finished: Finished,
    points: list[Point],
    folder: Path,
    command: str,
) -> Results:
    """Everything that the report is drawn from, as plain values.

    Members that are not among ``finished`` yet, though they can be built, are waiting.
    """
    trained = {planned.member for planned, _ in finished}
    able = {entrant.member for entrant in ready if entrant.config is not None}
    done = [result for _, result in finished if result["status"] == "done"]
    metric = quality_metric(dataset.task, done[0]["evaluation"]) if done else "loss"
    rows: list[TableRow | FailedRow] = []
    runs: list[Run] = []
    for entrant in ready:
        if entrant.member in able - trained:
            continue
        trainings = [(j, result) for j, result in finished if j.member == entrant.member]
        good = [result for _, result in trainings if result["status"] == "done"]
        if good and len(good) == len(trainings):
            assert entrant.parameters is not None
            speed = calibrated.get(entrant.member)
            row = member_row(entrant.member, dataset.task, entrant.parameters, good, metric, speed)
            tried = [played for result in good if (played := result.get("played"))]
            row["played"] = mean_of(tried) if tried else None
            rows.append(row)
        else:
            error = next((f["error"] for _, f in trainings if f["status"] != "done"), entrant.error)
            rows.append({"member": entrant.member, "status": "failed", "error": error})
        for job, result in trainings:
            values = {key: value for key, value in result.items() if key != "config"}
            # `train` may have gone on with it since
            last = result["steps"] if result["status"] == "done" else None
            lines = curve(folder / job.folder / "run", last)
            which = {"member": job.member, "seed": job.seed, "lr": job.lr, "folder": job.folder}
            runs.append(cast(Run, {**which, **values, **lines}))
    ranked = rank(rows, metric)
    complete = [row for row in ranked if row["status"] == "done"]
    together = zip(complete, letters(complete), same_functions(complete, runs), strict=True)
    for row, own_letters, equals in together:
        row["letters"], row["same_as"] = own_letters, equals
    qualities = [row["quality"] for row in complete]
    base = next((e.parameters for e in ready if e.parameters), None)
    for row in complete:
        own_runs = [r for r in runs if r["member"] == row["member"]]
        row["seconds_to_slowest"] = time_to(qualities[-1], own_runs[0]["evaluations"], metric)
        row["parameter_ratio"] = row["parameters"] / base if base else None
        row["beats_attention_from"] = crossover(points, row["member"])
        config_of = next(e.config for e in ready if e.member == row["member"])
        row["preset"] = {} if config_of is None else preset_changes(config_of)
    judged = verdict(
        complete, metric, in_seconds=config.training.budget_seconds is not None, cores=cores()
    )
    if complete and not judged["useful"]:
        best = next(run for run in runs if run["member"] == complete[0]["member"])
        assert best["status"] == "done"
        judged["doubts"][0] += (
            f"; of {best['member']} {advice(best['evaluation'], best, best['lr'])}"
        )
    return {
        "format": FORMAT,
        "command": command,
        "config": to_dict(config),
        "environment": environment(),
        "data": dataset.summary(),
        "metric": metric,
        "better": METRICS[metric].better,
        "rows": ranked,
        "runs": runs,
        "bench": [to_dict(point) for point in points],
        "verdict": judged,
        "waiting": [name for name in config.members if name in able - trained],
        "next": next_steps(complete, runs, dataset.task, folder, judged["useful"]),
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


def next_steps(
    rows: list[TableRow], runs: list[Run], task: str, folder: Path, useful: bool
) -> list[list[str]]:
    """Next steps with the best member: [in words, the command]; one that is no
    better than an answer without a model can only be trained for longer."""
    if not rows:
        return []
    best = next(run for run in runs if run["member"] == rows[0]["member"])
    assert best["status"] == "done"
    place = shlex.quote(str(folder / best["folder"] / "run"))
    use = TASKS[task].use.format(run=place)
    train = f"train {best['member']} --resume --out {place} --steps {2 * best['steps']}"
    steps = {f"use {best['member']}": use, "look into it": f"show {place} all"} if useful else {}
    steps[f"train {best['member']} twice as long"] = train
    return [[words, plugins.command(step)] for words, step in steps.items()]
