"""How every member trains at its defaults: `python -m everyformer.experiments.defaults`.

Each member of each task is trained as `everyformer compare` would train it, preset and all, for the
same few steps on built-in data with seeds 0, 1, ... The table shows who learns as the others do and
who stays behind, beside what its preset changes beyond its gene. It is no ranking: 150 steps favour
what begins quickly. Those behind, and the member in the middle, are trained four times as long, to
see whether they catch up.

Results are kept in ``defaults.json`` as each training ends, and what is there is not trained again:
stop it at any time and give the same command. Several processes may share the work, task by task.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.plan import Entrant, entrants, preset_changes
from everyformer.comparison.summary import mean_interval
from everyformer.core.errors import EveryformerError
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.datastores.runs import train_run
from everyformer.family import list_members
from everyformer.genes.config import Architecture
from everyformer.models.build import build_model
from everyformer.system.files import file_written_whole
from everyformer.system.plain import from_json, to_json
from everyformer.training.config import TrainingConfig
from everyformer.training.run import environment

NAME = "defaults"
BEHIND = 1.1
"""losses over this times the median of their task are pointed out"""
LONGER = 4
"""times the steps of those"""
HEAD = "| member | loss | 95% interval | seeds |"


@dataclass(frozen=True)
class Recipe:
    """What all members of a task are trained on."""

    data: DataConfig
    batch: int
    width: int = 64
    steps: int = 150
    patch: int = 4

    def compared(self, members: Sequence[str], task: str) -> CompareConfig:
        """The comparison that these trainings are those of."""
        model = Architecture(width=self.width, layers=2, patch=self.patch)
        training = TrainingConfig(
            steps=self.steps, batch=self.batch, evaluate_every=None, evaluate_sequences=128,
            checkpoint_every=None, threads=1, device="cpu",
        )  # fmt: skip
        return CompareConfig(
            members=tuple(members), task=task, data=self.data, model=model, training=training
        )

    def __str__(self) -> str:
        o = self.data
        return (
            f"`{o.source}`, width {self.width}, 2 layers, 4 heads, batches of {self.batch}, "
            f"{self.steps} steps"
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
"""of every task that is measured by a loss: policies are not"""


def ready(task: str, setting: Recipe) -> tuple[Dataset, list[Entrant]]:
    """The data of a task, and its members as they will be trained."""
    config = setting.compared([member.name for member in list_members(task=task)], task)
    data = load_dataset(config.data, task)
    return data, entrants(config, data)


def one(task: str, setting: Recipe, data: Dataset, entrant: Entrant, seed: int) -> dict[str, Any]:
    """One training: what its evaluation found, or why there is none."""
    row: dict[str, Any] = {"task": task, "member": entrant.member, "seed": seed}
    row["steps"] = setting.steps
    if entrant.config is None:
        return row | {"error": entrant.error}
    training = replace(setting.compared([entrant.member], task).training, seed=seed)
    torch.manual_seed(seed)
    try:
        quiet: Any = {"say": lambda text: None, "show": False}
        found = train_run(build_model(entrant.config), data, training, **quiet).result
    except EveryformerError as error:
        return row | {"error": str(error)}
    if found.evaluation is None:
        raise SystemExit("stopped; the same command goes on")
    values = {
        name: found.evaluation[name] for name in ("loss", "accuracy") & found.evaluation.keys()
    }
    return row | values | {"changes": preset_changes(entrant.config)}


def found_behind(rows: list[dict[str, Any]], task: str) -> list[str]:
    """Members whose mean is far over the median of their task, and the one at the median."""
    means = {name: statistics.mean(losses) for name, losses in _losses(rows, task).items()}
    if not means:
        return []
    middle = statistics.median_high(means.values())
    behind = [name for name, mean in means.items() if mean > BEHIND * middle]
    return behind and [next(name for name, mean in means.items() if mean == middle), *behind]


def work(folder: Path, tasks: Sequence[str], seeds: int) -> None:
    """Train all that is missing in ``folder``, seed by seed, and keep the table up to date."""
    for seed in range(seeds):
        for task in tasks:
            fill(folder, task, SETTINGS[task], [m.name for m in list_members(task=task)], seed)
    for task in tasks:
        longer = replace(SETTINGS[task], steps=LONGER * SETTINGS[task].steps)
        for seed in range(seeds):
            fill(folder, task, longer, found_behind(read(folder), task), seed)


def fill(folder: Path, task: str, setting: Recipe, members: Sequence[str], seed: int) -> None:
    """Train those of ``members`` that are missing with this seed and so many steps."""
    wanted = (task, seed, setting.steps)
    recorded = {r["member"] for r in read(folder) if (r["task"], r["seed"], r["steps"]) == wanted}
    missing = set(members) - recorded
    if not missing:
        return
    data, found = ready(task, setting)
    for entrant in (e for e in found if e.member in missing):
        row = one(task, setting, data, entrant, seed)
        keep(folder, row)
        which = f"{task}, seed {seed}, {setting.steps} steps"
        print(f"{which}: {entrant.member} {row.get('loss', row)}", flush=True)


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows that are recorded."""
    path = folder / f"{NAME}.json"
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = from_json(path.read_text(encoding="utf-8"))["rows"]
    return rows


def keep(folder: Path, row: dict[str, Any]) -> None:
    """Add a row to the files in ``folder``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{NAME}.lock"):
        rows = [*read(folder), row]
        record = {
            "experiment": NAME,
            "command": "python -m everyformer.experiments.defaults",
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


def _losses(rows: list[dict[str, Any]], task: str, times: int = 1) -> dict[str, list[float]]:
    """Of each member of a task, after its steps or so many times as many."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row["task"], row["steps"]) == (task, times * SETTINGS[task].steps) and "loss" in row:
            found.setdefault(row["member"], []).append(row["loss"])
    return found


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The table of every task, best first."""
    yield "# Every member at its defaults"
    yield ""
    yield "Losses on held-out data after a short training, in nats (of predicted numbers in squared"
    yield "standard deviations), mean and 95% interval over seeds; not a ranking. Behind is what is"
    yield "over 1.1 times the middle of its task."
    yield "`python -m everyformer.experiments.defaults` makes this table and resumes it."
    for task in SETTINGS:
        own = [row for row in rows if row["task"] == task]
        if own:
            yield from ("", f"## {task}", "")
            yield from _table(own, task)
            yield from _caught_up(rows, task)


def of_member(member: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A member's own part of the table, each loss beside that of the member in the middle."""
    yield f"| task | loss | the middle of all | {LONGER} times the steps (the middle) |"
    yield "|---|---|---|---|"
    for task in SETTINGS:
        losses = _losses(rows, task)
        if member not in losses:
            continue
        middle = statistics.median_high(statistics.mean(values) for values in losses.values())
        mean = statistics.mean(losses[member])
        later, more = {n: statistics.mean(v) for n, v in _losses(rows, task, LONGER).items()}, "-"
        if mean > BEHIND * middle and member in later:
            first = found_behind(rows, task)[0]
            more = f"{later[member]:.3f} ({later[first]:.3f})"
        behind = " (behind)" if mean > BEHIND * middle else ""
        yield f"| {task} | {mean:.3f}{behind} | {middle:.3f} | {more} |"


def _table(own: list[dict[str, Any]], task: str) -> Iterator[str]:
    losses = _losses(own, task)
    changes = {row["member"]: row.get("changes", row.get("error")) for row in own}
    means = {name: statistics.mean(values) for name, values in losses.items()}
    middle = statistics.median_high(means.values())
    yield from (f"{SETTINGS[task]}. Median {middle:.3f}.", "")
    yield f"{HEAD} its preset changes besides its gene |"
    yield "|---|---|---|---|---|"
    for name in sorted(changes, key=lambda n: means.get(n, float("inf"))):
        values, change = losses.get(name, []), changes[name]
        if isinstance(change, dict):
            change = ", ".join(f"{key} {value}" for key, value in change.items())
        loss = f"{means[name]:.3f}" if values else "failed"
        behind = " (behind)" if values and means[name] > BEHIND * middle else ""
        yield f"| {name} | {loss}{behind} | {_span(values)} | {len(values)} | {change or '-'} |"


def _caught_up(rows: list[dict[str, Any]], task: str) -> Iterator[str]:
    longer = _losses(rows, task, LONGER)
    if not longer:
        return
    yield from ("", f"Those behind and the one in the middle, {LONGER} times the steps:", "")
    yield HEAD
    yield "|---|---|---|---|"
    for name, values in longer.items():
        yield f"| {name} | {statistics.mean(values):.3f} | {_span(values)} | {len(values)} |"


def _span(values: list[float]) -> str:
    return "{:.3f} to {:.3f}".format(*mean_interval(values)) if len(values) > 1 else "-"


def main() -> None:
    """As a command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    work(given.out, given.tasks, given.seeds)


if __name__ == "__main__":
    main()
