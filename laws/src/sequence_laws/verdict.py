"""Verdicts of a law on a model: held, broken with its evidence, or why it was not judged."""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sequence_laws.errors import ShapeError

Status = Literal[
    "held", "failed", "failed_by_default", "exempt", "undecided", "reported", "not_built"
]
BROKEN = ("failed", "failed_by_default")
"""statuses of a law that is broken, by the model or by its plain call"""
JUDGED = ("held", "reported", *BROKEN)
"""statuses of a law that was tried to its end"""
SIGNS = {
    "held": "ok",
    "exempt": "-",
    "undecided": "?",
    "reported": "*",
    "failed": "FAIL",
    "failed_by_default": "CALL",
    "not_built": "x",
}
"""of a status, in a table"""


@dataclass(frozen=True)
class LawResult:
    """One law, one model."""

    member: str
    """name of the model"""
    law: str
    status: Status
    """`failed_by_default`: it holds as the law calls the model, and not as a plain call does, by
    defaults, with a mask of ones or with what helpers of its library give; `exempt`: it does not
    apply; `undecided`: it could not be judged; `reported`: a finding neither right nor wrong;
    `not_built`: there is no model to judge"""
    detail: str
    """what was checked and the largest error seen, or what went wrong, or why it was not judged"""
    seconds: float = 0.0
    reproduction: str = ""
    """lines of Python that show what went wrong"""
    place: str = ""
    """of what is broken: file and line of the model's class"""


def write_verdicts(path: Path, verdicts: Sequence[LawResult]) -> None:
    """Write verdicts to a file, in whose folder they may be the first."""
    write_whole(path, json.dumps([dataclasses.asdict(one) for one in verdicts]) + "\n")


def read_verdicts(path: Path) -> list[LawResult]:
    """Verdicts that `write_verdicts` wrote."""
    return [LawResult(**one) for one in json.loads(path.read_text(encoding="utf-8"))]


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, though its process be ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def join_names(names: Sequence[str]) -> str:
    """a, b and c; of many the first four: a, b, c, d and 5 more."""
    shown = [*names] if len(names) < 5 else [*names[:4], f"{len(names) - 4} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


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


class BrokenByDefault(LawBroken):
    """Raised by a law that holds as it calls a model, and not as a plain call does."""


class OutputsError(ShapeError):
    """A model gives outputs of another shape than its inputs ask for."""


class ShortError(OutputsError):
    """A model gives fewer ``outputs`` than it has inputs."""

    def __init__(self, message: str, outputs: int) -> None:
        self.outputs = outputs
        super().__init__(message)


class Inapplicable(Exception):
    """Raised inside a law that does not apply to a model, or cannot be judged on it.

    Args:
        reason: a sentence. status: `exempt`, `undecided` or `reported`.
    """

    def __init__(self, reason: str, status: Status = "exempt") -> None:
        self.status = status
        super().__init__(reason)
