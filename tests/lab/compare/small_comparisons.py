"""A comparison of seconds, and what is read from it."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL = (
    *("--lengths", "--data", "text.txt", "--length", "16", "--batch", "4"),
    *("--width", "16", "--layers", "1", "--heads", "2", "--training.threads", "1"),
)


@dataclass(frozen=True)
class Compared:
    """What a comparison printed and left."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "results.json").read_text("utf-8"))
        return found

    def row(self, member: str) -> dict[str, Any]:
        return next(row for row in self.results["rows"] if row["member"] == member)

    def runs(self, member: str) -> list[dict[str, Any]]:
        return [run for run in self.results["runs"] if run["member"] == member]

    def job(self, folder: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / folder / "job.json").read_text("utf-8"))
        return found

    def table(self) -> list[dict[str, str]]:
        with (self.folder / "results.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
