"""`TrainResult`: speed, budget spent and evaluations of a training run."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyformer.training.config import Precision


@dataclass(frozen=True)
class Timed:
    """Steps and the time that they took."""

    steps: int
    seconds: float
    cpu_seconds: float
    """of all threads of this process"""


@dataclass(frozen=True)
class TrainResult:
    """Result of a run, over all its sessions."""

    steps: int
    tokens: int
    """token positions computed"""
    seconds: float
    """spent in training steps"""
    flops: int
    """forward and backward, as torch counts them"""
    tokens_per_second: float
    """in this session, after its first steps"""
    evaluation: dict[str, Any] | None
    """at the last step (see `evaluate`), with its ``step``; None if the run was interrupted"""
    best: dict[str, Any] | None
    """the evaluation of lowest loss so far, with its ``step``"""
    peak_rss: int | None
    """largest resident memory of this process so far, in bytes; None where it is not known"""
    path: Path | None
    """the run's directory"""
    precision: Precision = "float32"
    """in which it was computed; what auto came to"""
    signal: int | None = None
    """number of the signal that stopped the run before its end"""
    left_out: int = 0
    """first steps of this session that the speed leaves out"""
    timed: Timed | None = None
    """what the others took; None where there were none"""

    @property
    def interrupted(self) -> bool:
        """True if a signal stopped the run before its end."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """0, or by custom 128 plus the signal: 130 after Ctrl-C, 143 after SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal


def peak_rss() -> int | None:
    """Largest resident memory of this process so far, in bytes; not that of its parent."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            high = next(line for line in file if line.startswith("VmHWM:"))
        return 1024 * int(high.split()[1])
    except (OSError, StopIteration):
        pass  # not on Linux, where ru_maxrss would start from the parent's peak
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
