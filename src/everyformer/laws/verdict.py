"""Verdicts of a law on a model: held, broken with its evidence, or why it was not judged."""

from dataclasses import dataclass
from typing import Literal

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
