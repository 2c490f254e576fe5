"""The results of a comparison from its trainings, and their files."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from everyformer.core import plugins
from everyformer.core.config import to_dict
from everyformer.core.measures import MEANS, METRICS
from everyformer.core.tasks import Task
from everyformer.data.dataset import Dataset
from everyformer.lab.bench.points import Point, crossover
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.contrasts import contrasts, letters
from everyformer.lab.compare.files import FORMAT
from everyformer.lab.compare.lawful import sentence
from everyformer.lab.compare.plan import Candidate, Job, preset_changes
from everyformer.lab.compare.results import (
    Calibrated,
    FailedRow,
    Metric,
    Result,
    Results,
    Run,
    TableRow,
    Verdict,
    interval_of,
    quality_of,
)
from everyformer.lab.compare.summary import member_row, rank, time_to
from everyformer.lab.compare.trainings import Finished
from everyformer.lab.compare.verdict import FEWEST_STEPS, same_functions, verdict
from everyformer.system.files import write_text
from everyformer.system.machine import cores
from everyformer.system.sealed import write_json
from everyformer.training.curves import advice, curve
from everyformer.training.surroundings import environment


def _row(
    candidate: Candidate,
    results: list[Result],
    task: Task,
    metric: Metric,
    speed: Calibrated | None,
) -> TableRow | FailedRow:
    """The row of a member from all of its trainings."""
    good = [result for result in results if result["status"] == "done"]
    if not good or len(good) < len(results):
        error = next((r["error"] for r in results if r["status"] != "done"), candidate.error)
        return {"member": candidate.member, "status": "failed", "error": error}
    assert candidate.parameters is not None
    row = member_row(candidate.member, task, candidate.parameters, good, metric, speed)
    leaks = [law.detail for law in candidate.broken if law.law == "causality"]
    row["leaks"] = row["leaks"] or next(iter(leaks), None)
    laws = [sentence(law) for law in candidate.broken if law.law != "causality"]
    row["limits"] = [*row["limits"], *laws]
    return row


def _run(job: Job, result: Result, folder: Path) -> Run:
    """A training with its curve; ``folder`` is the comparison's."""
    values = {key: value for key, value in result.items() if key != "config"}
    # `train` may have resumed it since
    last = result["steps"] if result["status"] == "done" else None
    lines = curve(folder / job.folder / "run", last)
    which = {"member": job.member, "seed": job.seed, "lr": job.lr, "folder": job.folder}
    return cast(Run, {**which, **values, **lines})


def metric_of(finished: Finished, dataset: Dataset) -> Metric:
    """The measure that a table of these trainings is ranked by: all of them have it."""
    told = [result["evaluation"] for _, result in finished if result["status"] == "done"]
    if not told:
        return "loss"
    # a model whose losses are no cross-entropies of its logits has no accuracy
    return dataset.does.metric({n: v for n, v in told[0].items() if all(n in e for e in told)})


def collect(
    config: CompareConfig,
    dataset: Dataset,
    ready: list[Candidate],
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
    able = {candidate.member for candidate in ready if candidate.config is not None}
    metric = metric_of(finished, dataset)
    rows: list[TableRow | FailedRow] = []
    runs: list[Run] = []
    tried = [_run(job, result, folder) for job, result in finished if not job.chosen]
    for candidate in ready:
        if candidate.member in able - trained:
            continue
        trainings = [(j, r) for j, r in finished if j.member == candidate.member and j.chosen]
        results = [result for _, result in trainings]
        rows.append(
            _row(candidate, results, dataset.does, metric, calibrated.get(candidate.member))
        )
        runs += [_run(job, result, folder) for job, result in trainings]
    ranked = rank(rows, metric)
    complete = [row for row in ranked if row["status"] == "done"]
    apart = contrasts(complete, metric, config.looks)
    tiers, same = letters(complete, apart), same_functions(complete, runs)
    together = zip(complete, tiers, same, strict=True)
    for row, own_letters, equals in together:
        row["letters"], row["same_as"] = own_letters, equals
    qualities = [row["quality"] for row in complete]
    base = next((e.parameters for e in ready if e.parameters), None)
    for row in complete:
        own_runs = [r for r in runs if r["member"] == row["member"]]
        curves = [r["evaluations"] for r in own_runs]
        row["lr"] = own_runs[0]["lr"]
        row["seconds_to_slowest"] = time_to(qualities[-1], curves, metric)
        row["parameter_ratio"] = row["parameters"] / base if base else None
        row["beats_attention_from"] = crossover(points, row["member"])
        config_of = next(e.config for e in ready if e.member == row["member"])
        row["preset"] = {} if config_of is None else preset_changes(config_of)
    judged = verdict(
        complete,
        metric,
        in_seconds=config.training.budget_seconds is not None,
        cores=cores(),
        design=config,
    )
    waiting = [name for name in config.members if name in able - trained]
    if waiting:
        judged["ended"] = None
    if complete and not judged["useful"] and complete[0]["steps"] >= FEWEST_STEPS:
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
        "tried": tried,
        "bench": [to_dict(point) for point in points],
        "contrasts": apart,
        "verdict": judged,
        "waiting": waiting,
        "next": next_steps(
            complete,
            runs,
            dataset.does,
            folder,
            purpose=purpose_of(complete, metric, config, judged),
        ),
    }


def write(results: Results, folder: Path) -> None:
    """results.json and results.csv."""
    write_json(folder / "results.json", dict(results))
    write_text(folder / "results.csv", as_csv({"": results}))


def as_csv(compared: Mapping[str, Results]) -> str:
    """`as_lines` as CSV; of several comparisons each line begins with the name of its own."""
    lines = [
        {"comparison": name, **line} if len(compared) > 1 else line
        for name, results in compared.items()
        for line in as_lines(results)
    ]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(key for line in lines for key in line))
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def as_lines(results: Results) -> list[dict[str, Any]]:
    """The lines of results.csv, one a seed of a member."""
    runs: dict[str, list[Run]] = {}
    for run in results["runs"]:
        runs.setdefault(run["member"], []).append(run)
    rows = results["rows"]
    return [_line(row, run, results) for row in rows for run in runs.get(row["member"], [None])]


def _line(row: TableRow | FailedRow, run: Run | None, results: Results) -> dict[str, Any]:
    """A training, and what is known of all seeds of its member; a column each for the ends of
    intervals, and for each number of tokens before one that is timed."""
    metric, first, state = results["metric"], results["rows"][0]["member"], run or row
    line: dict[str, Any] = {"member": row["member"], "seed": run and run["seed"]}
    line |= {"lr": run and run["lr"], "status": state["status"], "error": state.get("error")}

    def put(name: str, value: float | None, spread: Sequence[float] | None) -> None:
        low, high = spread or (None, None)
        line.update({name: value, f"{name}_low": low, f"{name}_high": high})

    if run is not None and run["status"] == "done":
        evaluation = run["evaluation"]
        line["metric"] = metric
        put("quality", quality_of(evaluation, metric), interval_of(evaluation, metric))
        line |= {name: run.get(name) for name in ("tokens", "flops", "steps", "seconds")}
        line |= {m.name: evaluation[m.name] for m in MEANS.values() if m.name in evaluation}
    if row["status"] != "done":
        return line
    put("mean", row["quality"], row["interval"])
    line["tier"] = " ".join(row["letters"])
    for one in results["contrasts"]:
        if {one["better"], one["worse"]} == {row["member"], first}:
            # positive where the first of the table is the better
            sign = 1 if one["better"] == first else -1
            ends = sorted(sign * end for end in one["interval"])
            put("difference_to_first", sign * one["difference"], ends)
            line["p_to_first"] = one["probability"]
    known = ("parameters", "seeds", "peak_bytes", "seconds_to_slowest", "beats_attention_from")
    line |= {name: row.get(name) for name in known}
    put("tokens_per_second", row["tokens_per_second"], row["speed_spread"])
    for context, value in row["decode_ms"].items():
        put(f"ms_after_{context}", value, row["decode_spread"].get(context))
    for context, size in row.get("decode_bytes", {}).items():
        line[f"state_bytes_after_{context}"] = size
    return line


def purpose_of(
    rows: list[TableRow], metric: Metric, config: CompareConfig, judged: Verdict
) -> str | None:
    """Words for what the first of the table is good for; None where it is for nothing."""
    if not rows or not judged["useful"]:
        return None
    alike = {rows[0]["member"], *rows[0]["same_as"]}
    settled = not judged["doubts"] and set(judged["best"]) <= alike
    unsettled = "" if settled else ", though not settled"
    return f"first in {METRICS[metric].unit} after {config.training.budget_words}{unsettled}"


def next_steps(
    rows: list[TableRow], runs: list[Run], task: Task, folder: Path, purpose: str | None
) -> list[list[str]]:
    """Next steps with the first of the table: [in words, the command].

    Args:
        purpose: what it may be used for; None: it is no better than an answer without a model, and
            can only be trained for longer.
    """
    if not rows:
        return []
    best = next(run for run in runs if run["member"] == rows[0]["member"])
    assert best["status"] == "done"
    place = shlex.quote(str(folder / best["folder"] / "run"))
    steps = {}
    if purpose is not None:
        if not rows[0]["leaks"]:
            steps[f"use {best['member']}, {purpose}"] = task.use.format(run=place)
        steps["look into it"] = f"show {place} all"
    more = 2 * max(best["steps"], FEWEST_STEPS)
    train = f"train {best['member']} --resume --out {place} --steps {more}"
    steps[f"train {best['member']} longer, for {more:,} steps"] = train
    return [[words, plugins.command(step)] for words, step in steps.items()]
