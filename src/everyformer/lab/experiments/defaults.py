"""Losses of every member at its defaults: `python -m everyformer.lab.experiments.defaults`.

Each member of each task is trained as `everyformer compare` would train it, preset and all, for the
same few steps on built-in data with seeds 0, 1, ... The table shows who learns as the others do and
who lags, and what its preset changes beyond its gene. It is no ranking: 150 steps favour what
begins quickly. Those that lag, and the member in the middle, are trained four times as long, to see
whether they catch up.

Results are written to ``defaults.json`` as each training ends, and what is there is not trained
again: stop it at any time and give the same command. Several processes may share the work, task by
task.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from everyformer.core.errors import EveryformerError
from everyformer.core.student import mean_interval
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.family import list_members
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.plan import Candidate, candidates, preset_changes
from everyformer.models.build import build_model
from everyformer.stores.runs import train_run
from everyformer.system.files import file_written_whole
from everyformer.system.plain import from_json, to_json
from everyformer.training.config import TrainingConfig
from everyformer.training.surroundings import environment

NAME = "defaults"
LAGGING = 1.1
"""losses over this times the median of their task are pointed out"""
LONGER = 4
"""times the steps of those"""
HEAD = "| member | loss | 95% interval | seeds |"


@dataclass(frozen=True)
class Recipe:
    """Data, sizes and steps of all members of a task."""

    data: DataConfig
    batch: int
    width: int = 64
    steps: int = 150
    patch: int = 4

    def compared(self, members: Sequence[str], task: str) -> CompareConfig:
        """The comparison that these trainings are those of."""
        return CompareConfig(
            members=tuple(members),
            task=task,
            data=self.data,
            model={"width": self.width, "layers": 2, "patch": self.patch},
            training=TrainingConfig(
                steps=self.steps, batch=self.batch, evaluate_every=None, evaluate_sequences=128,
                checkpoint_every=None, threads=1, device="cpu",
            ),
        )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"`{self.data.source}`, width {self.width}, 2 layers, 4 heads, batches of "
            f"{self.batch}, {self.steps} steps"
        )


SETTINGS = {
    "lm": Recipe(DataConfig(source="stdlib", length=256), batch=8, width=128),
    "mlm": Recipe(DataConfig(source="stdlib", length=128), batch=8),
    "classify-text": Recipe(DataConfig(source="listops", length=64, depth=2), batch=16),
    "classify-image": Recipe(DataConfig(source="digits"), batch=32, patch=2),
    "seq2seq": Recipe(DataConfig(source="copy", symbols=16), batch=16),
    "pixels": Recipe(DataConfig(source="digits"), batch=8),
    "super-resolution": Recipe(DataConfig(source="digits", small=4), batch=8),
    "classify-series": Recipe(DataConfig(source="waves", length=64), batch=16),
    "regress-text": Recipe(DataConfig(source="listops", length=64, depth=2), batch=16),
    "regress-image": Recipe(DataConfig(source="digits"), batch=32, patch=2),
    "regress-series": Recipe(DataConfig(source="waves", length=64), batch=16),
    "decision": Recipe(DataConfig(source="walks"), batch=16),
}
"""of every task"""


def one(
    task: str, setting: Recipe, data: Dataset, candidate: Candidate, seed: int
) -> dict[str, Any]:
    """The row of one training: its evaluation, or why there is none."""
    row = {"task": task, "member": candidate.member, "seed": seed, "steps": setting.steps}
    if candidate.config is None:
        return row | {"error": candidate.error}
    training = replace(setting.compared([candidate.member], task).training, seed=seed)
    torch.manual_seed(seed)
    try:
        quiet: Any = {"say": lambda text: None, "show": False}
        result = train_run(build_model(candidate.config), data, training, **quiet).result
    except EveryformerError as error:
        return row | {"error": str(error)}
    if result.evaluation is None:
        raise SystemExit("stopped; the same command goes on")
    values = {
        name: result.evaluation[name] for name in ("loss", "accuracy") & result.evaluation.keys()
    }
    return row | values | {"changes": preset_changes(candidate.config)}


def work(folder: Path, tasks: Sequence[str], seeds: int) -> None:
    """Train all that is missing in ``folder``, seed by seed, and keep the table up to date."""
    for times, seed, task in itertools.product((1, LONGER), range(seeds), tasks):
        setting = replace(SETTINGS[task], steps=times * SETTINGS[task].steps)
        every = [member.name for member in list_members(task=task)]
        chosen = every if times == 1 else lagging(read(folder), task)
        fill(folder, task, setting, chosen, seed)


def fill(folder: Path, task: str, setting: Recipe, members: Sequence[str], seed: int) -> None:
    """Train those of ``members`` that are missing with this seed and so many steps."""
    run = (task, seed, setting.steps)
    recorded = {r["member"] for r in read(folder) if (r["task"], r["seed"], r["steps"]) == run}
    missing = set(members) - recorded
    if not missing:
        return
    config = setting.compared([member.name for member in list_members(task=task)], task)
    data = load_dataset(config.data, task)
    for candidate in candidates(config, data):
        if candidate.member in missing:
            row = one(task, setting, data, candidate, seed)
            keep(folder, row)
            which = f"{task}, seed {seed}, {setting.steps} steps"
            print(f"{which}: {candidate.member} {row.get('loss', row)}", flush=True)


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows that are recorded."""
    path = folder / f"{NAME}.json"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = from_json(path.read_text(encoding="utf-8"))["rows"]
    return rows


def keep(folder: Path, row: dict[str, Any]) -> None:
    """Add a row to the files in ``folder``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{NAME}.lock"):
        rows = [*read(folder), row]
        record = {
            "experiment": NAME,
            "command": "python -m everyformer.lab.experiments.defaults",
            "settings": {task: str(setting) for task, setting in SETTINGS.items()},
            "environment": {key: environment()[key] for key in ("packages", "python", "platform")},
            "rows": rows,
        }
        for name, text in (
            (f"{NAME}.json", to_json(record, indent=1) + "\n"),
            (f"{NAME}.md", "\n".join(page(rows)) + "\n"),
        ):
            with file_written_whole(folder / name) as new:
                new.write_text(text, encoding="utf-8")


def losses_of(rows: list[dict[str, Any]], task: str, times: int = 1) -> dict[str, list[float]]:
    """Losses of each member of a task, after its steps or so many times as many."""
    losses: dict[str, list[float]] = {}
    for row in rows:
        if (row["task"], row["steps"]) == (task, times * SETTINGS[task].steps) and "loss" in row:
            losses.setdefault(row["member"], []).append(row["loss"])
    return losses


def means_of(
    rows: list[dict[str, Any]], task: str, times: int = 1
) -> tuple[dict[str, float], float]:
    """The mean of each, and the median of all."""
    means = {name: statistics.mean(each) for name, each in losses_of(rows, task, times).items()}
    return means, statistics.median_high(means.values()) if means else math.inf


def lagging(rows: list[dict[str, Any]], task: str) -> list[str]:
    """Members whose mean is far over the median of their task, after the one at the median."""
    means, middle = means_of(rows, task)
    slow = [name for name, mean in means.items() if mean > LAGGING * middle]
    return slow and [next(name for name, mean in means.items() if mean == middle), *slow]


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The table of every task, best first."""
    yield "# Every member at its defaults"
    yield ""
    yield "Losses on held-out data after a short training, in nats (of predicted numbers in squared"
    yield "standard deviations), mean and 95% interval over seeds; not a ranking. Behind is what is"
    yield "over 1.1 times the middle of its task."
    yield "`python -m everyformer.lab.experiments.defaults` makes this table and resumes it."
    for task in SETTINGS:
        if any(row["task"] == task for row in rows):
            yield from ("", f"## {task}", "")
            yield from _table(rows, task)


def of_member(member: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A member's part of the table, each loss with that of the member in the middle."""
    yield f"| task | loss | the middle of all | {LONGER} times the steps (the middle) |"
    yield "|---|---|---|---|"
    for task in SETTINGS:
        means, middle = means_of(rows, task)
        if member not in means:
            continue
        later, [usual, *slow] = means_of(rows, task, LONGER)[0], lagging(rows, task) or [""]
        caught_up = member in slow and member in later
        more = f"{later[member]:.3f} ({later[usual]:.3f})" if caught_up else "-"
        mark = " (behind)" if member in slow else ""
        yield f"| {task} | {means[member]:.3f}{mark} | {middle:.3f} | {more} |"


def _table(rows: list[dict[str, Any]], task: str) -> Iterator[str]:
    losses, (means, middle) = losses_of(rows, task), means_of(rows, task)
    changes = {
        row["member"]: row.get("changes", row.get("error")) for row in rows if row["task"] == task
    }
    yield from (f"{SETTINGS[task]}. Median {middle:.3f}.", "")
    yield f"{HEAD} its preset changes besides its gene |"
    yield "|---|---|---|---|---|"
    for name in sorted(changes, key=lambda n: means.get(n, math.inf)):
        values, change = losses.get(name, []), changes[name]
        if isinstance(change, dict):
            change = ", ".join(f"{key} {value}" for key, value in change.items())
        loss = f"{means[name]:.3f}" if values else "failed"
        mark = " (behind)" if values and means[name] > LAGGING * middle else ""
        yield f"| {name} | {loss}{mark} | {_span(values)} | {len(values)} | {change or '-'} |"
    longer = losses_of(rows, task, LONGER)
    if longer:
        yield from ("", f"Those behind and the one in the middle, {LONGER} times the steps:", "")
        yield from (HEAD, "|---|---|---|---|")
    for name, values in longer.items():
        yield f"| {name} | {statistics.mean(values):.3f} | {_span(values)} | {len(values)} |"


def _span(values: list[float]) -> str:
    return "{:.3f} to {:.3f}".format(*mean_interval(values)) if len(values) > 1 else "-"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    work(options.out, options.tasks, options.seeds)


if __name__ == "__main__":
    main()
