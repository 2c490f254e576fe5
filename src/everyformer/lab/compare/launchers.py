"""Launchers: where the trainings of a comparison run, each in a process of its own.

`Local` runs one after the other on this machine, so that times are not shared, `Pool` several;
`everyformer.lab.compare.cluster` hands all of them to Ray. What is started, read, written and
reported is the same for all (`everyformer.lab.compare.trainings`).
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from everyformer.core.config import to_dict
from everyformer.lab.compare.files import read_result
from everyformer.lab.compare.plan import Job
from everyformer.lab.compare.processes import begun, exit_code, launch, wait
from everyformer.lab.compare.results import Result
from everyformer.system.plain import to_json
from everyformer.system.signals import GracefulStop
from everyformer.training.progress import Part


@dataclass(frozen=True)
class Task:
    """A training that is to be run; its ``folder`` says what it is (`files.write_job`)."""

    planned: Job
    folder: Path
    part: Part
    """what it is of the comparison"""

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments of its process, besides the folder."""
        return (to_json(to_dict(self.part)),)


@dataclass(frozen=True)
class Ended:
    """A training that has ended, in whatever way."""

    planned: Job
    code: int
    """exit code of its process"""
    result: Result | None
    """None: it left none, since a signal stopped it or its process died"""
    seconds: float
    """that it took"""


class Launcher(ABC):
    """Context manager that runs trainings."""

    at_once: int = 1
    """trainings that run side by side"""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return

    def open(self) -> None:
        """Make ready for trainings, or say why there can be none.

        Raises:
            ConfigError: where they would run, they cannot.
        """
        return

    @property
    @abstractmethod
    def full(self) -> bool:
        """True if no other may be started before one has ended."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Run it, now or as soon as there is room."""

    @abstractmethod
    def ended(self, stop: GracefulStop) -> Ended:
        """Wait until one of those that were started has ended; a signal asks all to stop."""


class Local(Launcher):
    """One after the other, in processes of this machine."""

    def __init__(self) -> None:
        self._task: Task | None = None

    @property
    def full(self) -> bool:
        return self._task is not None

    def start(self, task: Task) -> None:
        self._task = task

    def ended(self, stop: GracefulStop) -> Ended:
        assert self._task is not None
        task, self._task = self._task, None
        start = time.perf_counter()
        code = launch("worker", task.folder, stop, *task.words)
        return Ended(task.planned, code, read_result(task.folder), time.perf_counter() - start)


class Pool(Launcher):
    """So many at once, in processes of this machine."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._running: dict[BaseProcess, tuple[Task, float]] = {}
        self._asked: set[BaseProcess] = set()
        """those that were asked to stop"""

    @property
    def full(self) -> bool:
        return len(self._running) >= self.at_once

    def start(self, task: Task) -> None:
        # several would write over each other's lines
        child = begun("worker", task.folder, *task.words, quiet=True)
        self._running[child] = task, time.perf_counter()

    def ended(self, stop: GracefulStop) -> Ended:
        child = wait([*self._running], stop, self._asked)[0]
        task, start = self._running.pop(child)
        took = time.perf_counter() - start
        return Ended(task.planned, exit_code(child), read_result(task.folder), took)
