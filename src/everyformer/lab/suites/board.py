"""A board: members by probes, as its files hold it (plain values, no torch).

board.json holds a `Board`, board.csv a line for each training. Cells that have no number say why:
*cannot*, *failed*; and those whose number is none of the mechanism's: *leaks*, and *floor*, no
better than a rule that is cheaper than any model.
"""

import csv
import io
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from everyformer.core.errors import CheckpointError
from everyformer.core.measures import METRICS
from everyformer.core.student import mean_interval
from everyformer.data.dataset import Dataset
from everyformer.lab.compare.contrasts import contrasts
from everyformer.lab.compare.results import Results, Run, Trained
from everyformer.lab.compare.trainings import Finished, chosen_by
from everyformer.lab.suites.config import SuiteConfig
from everyformer.lab.suites.presets import PRESETS, Preset, Setting, shown
from everyformer.lab.suites.probe import VERSION
from everyformer.system.files import write_text
from everyformer.system.sealed import read_json, write_json

FORMAT = "everyformer-board"
METRIC = "answers"
MACHINE = ("python", "packages", "platform", "processor", "cores", "accelerator")
"""what a board says of where it was made"""
Status = Literal["done", "floor", "leaks", "cannot", "failed"]


class Rate(TypedDict):
    """A learning rate that was tried with the first seed."""

    lr: float
    loss: float | None
    """on the validation rows; None: its training failed"""


class Cell(TypedDict):
    """A member on a probe; numbers are means over seeds, of test rows."""

    probe: str
    member: str
    status: Status
    error: str | None
    """of *cannot*, *failed* and *leaks*"""
    accuracy: float | None
    interval: list[float] | None
    """of 95%, over seeds; of one seed over rows"""
    values: list[float]
    """the accuracy of each seed"""
    macro: float | None
    """the mean over classes of what is right of each"""
    rows: float | None
    """share of rows with all answers right"""
    letters: str
    """members of the probe with one in common are not told apart"""
    lr: float | None
    tried: list[Rate]
    parameters: int | None
    seconds: float | None
    """of a training"""


class Column(TypedDict):
    """A probe."""

    skill: str
    data: str
    options: list[str]
    steps: int
    rows: str
    """how its rows are made, chance and shortcut"""
    shortcut: float
    published: dict[str, float]
    smallest: float | None
    """the smallest difference that tells two members apart"""


class Board(TypedDict):
    """Members by probes."""

    format: str
    probes_version: int
    preset: Preset
    seeds: int
    seed: int
    """the first of them"""
    times: float
    command: str
    environment: dict[str, Any]
    hours: float
    """of all trainings that stand on it, one after the other"""
    members: list[str]
    probes: dict[str, Column]
    cells: list[Cell]


def board_of(
    config: SuiteConfig,
    settings: Mapping[str, Setting],
    results: Mapping[str, Results],
    command: str,
) -> Board:
    """The board of the probes that have ``results``."""
    cells = [
        cell for name, found in results.items() for cell in _cells(name, found, config.members)
    ]
    spent = [
        run["seconds"]
        for found in results.values()
        for run in (*found["runs"], *found.get("tried", ()))
        if run["status"] == "done"
    ]
    first = next(iter(results.values()))["environment"]
    return {
        "format": FORMAT,
        "probes_version": VERSION,
        "preset": config.preset,
        "seeds": config.seeds,
        "seed": config.seed,
        "times": config.times,
        "command": command,
        "environment": {name: first[name] for name in MACHINE},
        "hours": sum(spent) / 3600,
        "members": list(config.members),
        "probes": {name: _column(settings[name], found) for name, found in results.items()},
        "cells": cells,
    }


def _column(setting: Setting, found: Results) -> Column:
    told = next((run for run in found["runs"] if run["status"] == "done"), None)
    return {
        "skill": setting.skill,
        "data": setting.data,
        "options": list(setting.options),
        "steps": found["config"]["training"]["steps"],
        "rows": found["data"]["split"],
        "shortcut": told["evaluation"][METRICS[METRIC].constant] if told else 0.0,
        "published": dict(setting.published),
        "smallest": found["verdict"]["smallest"],
    }


def _cells(name: str, found: Results, members: tuple[str, ...]) -> list[Cell]:
    """The column of a probe, in the order of the members."""
    rows = {row["member"]: row for row in found["rows"]}
    return [_cell(name, rows[member], found) for member in members]


def _cell(name: str, row: Any, found: Results) -> Cell:
    runs = [run for run in found["runs"] if run["member"] == row["member"]]
    tried = [run for run in found.get("tried", ()) if run["member"] == row["member"]]
    good = [cast(Trained, run) for run in runs if run["status"] == "done"]
    first = [run for run in runs[:1] if tried]
    cell: Cell = {
        "probe": name,
        "member": row["member"],
        "status": "done",
        "error": row.get("error") or row.get("leaks"),
        "accuracy": None,
        "interval": None,
        "values": [],
        "macro": None,
        "rows": None,
        "letters": "",
        "lr": None,
        "tried": sorted((_rate(run) for run in (*tried, *first)), key=lambda one: one["lr"]),
        "parameters": row.get("parameters"),
        "seconds": statistics.mean(run["seconds"] for run in good) if good else None,
    }
    if row["status"] != "done":
        cell["status"] = "failed" if runs else "cannot"
        return cell
    if found["metric"] != METRIC:
        return {**cell, "status": "cannot", "error": "its losses are none of single answers"}
    floor = row["baseline"]
    low = row["interval"][0] if row["interval"] else row["quality"]
    cell |= {
        "status": "leaks" if row["leaks"] else "done" if low > floor else "floor",
        "accuracy": row["quality"],
        "interval": row["interval"],
        "values": row["values"],
        "macro": statistics.mean(run["evaluation"]["macro_answers"] for run in good),
        "rows": statistics.mean(run["evaluation"]["whole_rows"] for run in good),
        "letters": "".join(row["letters"]),
        "lr": row["lr"],
    }
    return cell


def _rate(run: Run) -> Rate:
    loss = chosen_by(cast(Any, run))
    return {"lr": run["lr"], "loss": loss if run["status"] == "done" else None}


def cell_words(finished: Finished, dataset: Dataset) -> str:
    """The trainings of a member on a probe, in a line."""
    member = shown(finished[0][0].member)
    kept = [(job, result) for job, result in finished if job.chosen]
    failed = next((r["error"] for _, r in finished if r["status"] != "done"), None)
    told = [result["evaluation"] for _, result in kept if result["status"] == "done"]
    values = [float(one["accuracy"]) for one in told if "accuracy" in one]
    if failed is not None or not values:
        return f"{member}: failed: {failed}" if failed else f"{member}: no accuracy"
    mean = statistics.mean(values)
    low = (mean_interval(values) if len(values) > 1 else told[0]["accuracy_interval"])[0]
    floor = dataset.shortcut or 0.0
    than = "" if low > floor else f", not surely better than the shortcut's {floor:.1%}"
    each = ", ".join(f"{value:.1%}" for value in values)
    return f"{member}: {mean:.1%} ({each}) at a rate of {kept[0][0].lr:g}{than}"


def verdicts(board: Board) -> list[str]:
    """A sentence for every number that a source has printed: whether the 95% interval over seeds
    of the mean over its settings holds it, or every seed has reached it where training stops."""
    printed = {
        (column["data"], member): value
        for column in board["probes"].values()
        for member, value in column["published"].items()
        if member in board["members"]
    }
    return [_verdict(board, *which, value) for which, value in printed.items()]


def _verdict(board: Board, data: str, member: str, published: float) -> str:
    names = [name for name, column in board["probes"].items() if column["data"] == data]
    every = [cell_of(board, name, member)["values"] for name in names]
    settings = PRESETS[board["preset"]].values()
    same = [setting for setting in settings if setting.data == data]
    words = f"{data}, {member}: published {published:.1%}"
    if not all(every) or len(every[0]) < 2:
        return f"{words}, here no interval"
    means = [statistics.mean(values) for values in zip(*every, strict=True)]
    low, high = mean_interval(means)
    here = f"{statistics.mean(means):.1%} ({low:.1%} to {high:.1%} over {len(means)} seeds)"
    if len(names) < len(same):
        return (
            f"{words} over {len(same)} settings, here {here} over {len(names)} of them: no verdict"
        )
    # where training stops at the number, it is reached or not
    stops = all(setting.training.get("stop_at") == published for setting in same)
    held = min(means) >= published if stops else low <= published <= high
    return f"{words}, here {here}: {'replicated' if held else 'not replicated'}"


def foretold(board: Board, longer: Board) -> dict[str, float | None]:
    """Spearman's rank correlation of the accuracies of members on two boards, by probe: what one
    says of a ``longer`` training. None where all have the same on one of them."""
    members = [member for member in board["members"] if member in longer["members"]]
    found: dict[str, float | None] = {}
    for probe in board["probes"].keys() & longer["probes"].keys():
        both = [
            (cell_of(board, probe, m)["accuracy"], cell_of(longer, probe, m)["accuracy"])
            for m in members
        ]
        known = [pair for pair in both if None not in pair]
        here, there = (_ranks([float(pair[n] or 0.0) for pair in known]) for n in (0, 1))
        varied = min(len({*here}), len({*there})) > 1
        found[probe] = statistics.correlation(here, there) if varied else None
    return {probe: found[probe] for probe in board["probes"] if probe in found}


def twins(board: Board, again: Board) -> list[tuple[bool, bool]]:
    """Of each cell of a board ``again`` by other seeds, whether tests tell it from the same cell of
    ``board``: of these two alone, and corrected for all pairs of the column."""
    found = []
    for twin in again["cells"]:
        column = [c for c in board["cells"] if c["probe"] == twin["probe"] and c["values"]]
        same = [cell for cell in column if cell["member"] == twin["member"]]
        if same and twin["values"]:
            other = {**twin, "member": f"{twin['member']} again"}
            names = {twin["member"], other["member"]}
            told = (
                contrast["apart"]
                for rows in (same, column)
                for contrast in contrasts(cast(Any, [*rows, other]), METRIC)
                if {contrast["better"], contrast["worse"]} == names
            )
            found.append((next(told), next(told)))
    return found


def _ranks(values: list[float]) -> list[float]:
    """The place of each in their order; those that are equal share theirs."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def write_board(board: Board, folder: Path) -> None:
    """board.json and board.csv."""
    write_json(folder / "board.json", dict(board))
    write_text(folder / "board.csv", as_csv(board))


def as_csv(board: Board) -> str:
    """A line for each seed of a cell; one for a cell without a number."""
    text = io.StringIO(newline="")
    names = (
        *("probe", "member", "seed", "status", "accuracy", "shortcut", "mean", "low", "high"),
        *("macro", "rows", "letters", "lr", "parameters", "seconds", "error"),
    )
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    for cell in board["cells"]:
        low, high = cell["interval"] or (None, None)
        shared: dict[str, Any] = {
            **{name: cell.get(name) for name in names},
            "mean": cell["accuracy"],
            "low": low,
            "high": high,
            "shortcut": board["probes"][cell["probe"]]["shortcut"],
        }
        for seed, value in enumerate(cell["values"]) if cell["values"] else [(None, None)]:
            writer.writerow(shared | {"seed": seed, "accuracy": value})
    return text.getvalue()


def read_board(path: Path) -> Board:
    """A board.json.

    Raises:
        CheckpointError: it is damaged, or of probes of another version.
    """
    values = read_json(path, FORMAT)
    if values["probes_version"] != VERSION:
        raise CheckpointError(
            f"{path} is a board of version {values['probes_version']} of the probes, but these are "
            f"of version {VERSION}, whose rows differ: run its command again: {values['command']}"
        )
    return cast(Board, values)


def cell_of(board: Board, probe: str, member: str) -> Cell:
    """A cell of a board."""
    return next(c for c in board["cells"] if (c["probe"], c["member"]) == (probe, member))
