"""Verdicts of a law on a model: held, broken with its evidence, or why it was not judged."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from everyformer.system.files import write_text
from everyformer.system.plain import from_json, to_json

Status = Literal["held", "failed", "exempt", "undecided", "said"]


@dataclass(frozen=True)
class LawResult:
    """One law, one model."""

    member: str
    """name of the model"""
    law: str
    status: Status
    """`exempt`: it does not apply; `undecided`: it could not be judged; `said`: a finding that is
    neither right nor wrong"""
    detail: str
    """what was checked and the largest error seen, or what went wrong, or why it was not judged"""
    seconds: float = 0.0
    reproduction: str = ""
    """lines of Python that show what went wrong"""


def write_verdicts(path: Path, verdicts: Sequence[LawResult]) -> None:
    """Write verdicts to a file, in whose folder they may be the first."""
    write_text(path, to_json([dataclasses.asdict(one) for one in verdicts]) + "\n", parents=True)


def read_verdicts(path: Path) -> list[LawResult]:
    """Verdicts that `write_verdicts` wrote."""
    return [LawResult(**one) for one in from_json(path.read_text(encoding="utf-8"))]


def ended_with(code: int | None, seconds: float) -> str:
    """Why a process left no verdicts: its exit code, or None where it took too long."""
    late = f"it was not done in {seconds:.0f} s"
    return late if code is None else f"its process ended with {code}"


class LawBroken(AssertionError):
    """Raised inside a law: where it fails, by how much, and lines that show it.

    Args:
        finding: a sentence.
        reproduction: lines of Python that run as they stand.
    """

    def __init__(self, finding: str, reproduction: str = "") -> None:
        self.finding, self.reproduction = finding, reproduction
        shown = f"\n\nreproduction:\n{reproduction}" if reproduction else ""
        super().__init__(finding + shown)


class NotJudged(Exception):
    """Raised inside a law that does not apply to a model, or cannot be judged on it.

    Args:
        reason: a sentence. status: `exempt`, `undecided` or `said`.
    """

    def __init__(self, reason: str, status: Status = "exempt") -> None:
        self.status = status
        super().__init__(reason)
