"""The trainings of a comparison, each in a fresh process that a launcher runs.

Each in a process, so that one that runs out of memory or crashes takes nothing with it. What is
finished stays in its folder.
"""

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from everyformer.core.config import to_dict
from everyformer.core.wording import duration, pluralise
from everyformer.data.dataset import Dataset
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.estimate import Estimate
from everyformer.lab.compare.files import RESULT, read_job, read_result, write_job, write_result
from everyformer.lab.compare.launchers import Ended, Launcher, Task
from everyformer.lab.compare.plan import Candidate, Job, job, jobs
from everyformer.lab.compare.processes import ended, stopped_by
from everyformer.lab.compare.results import Result
from everyformer.system.plain import from_json, to_json
from everyformer.system.signals import GracefulStop

Say = Callable[[str], None]
Finished = list[tuple[Job, Result]]


def say_news(estimate: Estimate, say: Say) -> None:
    """Correct the estimate that was reported, where that was far off."""
    left = estimate.news()
    if left is not None:
        say(f"about {duration(left)} left by what the finished parts took")


@dataclass
class Trainings:
    """Runs the jobs of one comparison."""

    config: CompareConfig
    dataset: Dataset
    folder: Path
    say: Say
    stop: GracefulStop
    estimate: Estimate
    launcher: Launcher
    _known: dict[str, Result] = field(default_factory=dict)
    """results by folder: what was done in earlier sessions, and all that came of this one"""
    _running: set[str] = field(default_factory=set)
    """folders of those that were started"""

    def note_saved(self, ready: list[Candidate]) -> None:
        """Let the estimate know of what earlier sessions have finished."""
        for planned in jobs(self.config, ready):
            self._result(planned)

    def run(self, ready: list[Candidate], seeds: int | None = None) -> Iterator[Finished]:
        """All jobs of one member after the other with their results, until a signal stops them.

        ``seeds``: of each (default: those that all have); what is trained already is read.
        """
        count = seeds or self.config.first_seeds
        able = [candidate for candidate in ready if candidate.config is not None]
        waiting = able if self.stop.received is None else []
        while waiting:
            # every member's first, lest those of one wait until another is read
            found = [(candidate, self._finished(candidate, count)) for candidate in waiting]
            waiting = [candidate for candidate, finished in found if finished is None]
            yield from (finished for _, finished in found if finished is not None)
            if not self._running:
                return
            self._note(self.launcher.ended(self.stop))

    def _finished(self, candidate: Candidate, seeds: int) -> Finished | None:
        """All trainings of one member with their results: of every seed by the best of its learning
        rates, then of the others. None if some are to come, of which those that can are started.
        """
        config, first = self.config, self.config.training.seed
        tried = self._results([job(config, candidate, first, rate) for rate in config.lr_grid])
        if tried is None:
            return None
        lr, best = (*config.lr_grid, config.training.lr)[0], math.inf
        for planned, result in tried:
            # losses of runs that an accuracy ended say nothing: the first of these rates is kept
            loss = 0.0 if ended_early(planned, result) else chosen_by(result)
            if loss < best:
                lr, best = planned.lr, loss
        kept = self._results([job(config, candidate, first + n, lr) for n in range(seeds)])
        others = [(replace(p, chosen=False), result) for p, result in tried if p.lr != lr]
        return None if kept is None else kept + others

    def _results(self, every: list[Job]) -> Finished | None:
        """These with their results; None if some are to come, of which those that can are started.

        A job that failed in an earlier session is tried again, from its last checkpoint.
        """
        finished = Finished()
        for planned in every:
            result = self._result(planned)
            if result is None:
                self._start(planned)
            else:
                finished.append((planned, result))
        return finished if len(finished) == len(every) else None

    def _result(self, planned: Job) -> Result | None:
        """The result of a job that need not be run again in this session."""
        if planned.folder not in self._known:
            known = saved(planned, self.folder / planned.folder)
            if known is None or known["status"] != "done":
                return None
            self._known[planned.folder] = known
            self.estimate.over(planned)
        return self._known[planned.folder]

    def _start(self, planned: Job) -> None:
        """Let a job be run, unless it is, no other may be now, or a signal stopped them all."""
        taken = planned.folder in self._running or self.launcher.full
        if taken or self.stop.received is not None:
            return
        folder = self.folder / planned.folder
        prepare(planned, folder, self.dataset.fingerprint)
        part = self.estimate.part(planned, beside=len(self._running))
        self.launcher.start(Task(planned, folder, part))
        self._running.add(planned.folder)

    def _note(self, one: Ended) -> None:
        """Keep what came of a training; nothing did of one that a signal stopped."""
        planned, result = one.planned, one.result
        self._running.remove(planned.folder)
        if result is None:
            if self.stop.received is None and stopped_by(one.code):
                self.stop.received = signal.SIGTERM
            if self.stop.received is not None:
                return
            result = {"status": "failed", "error": ended(one.code)}
        write_result(self.folder / planned.folder, result)
        self._known[planned.folder] = result
        self.estimate.over(planned, one.seconds)
        if self._running:
            left = duration(self.estimate.announce())
            self.say(f"{pluralise(self.estimate.remaining, 'training')} left, in about {left}")
        else:
            say_news(self.estimate, self.say)
        if result["status"] != "done":
            self.say(f"{planned.member}: failed: {result['error']}")


def chosen_by(result: Result) -> float:
    """The loss by which its learning rate is chosen; infinite of a training that failed."""
    if result["status"] != "done":
        return math.inf
    return result.get("chosen_by", result["evaluation"]["loss"])


def ended_early(planned: Job, result: Result) -> bool:
    """True if its accuracy ended it before its budget of steps was spent."""
    return result["status"] == "done" and result["steps"] < (planned.run.training.steps or 0)


def prepare(planned: Job, folder: Path, fingerprint: str) -> None:
    """Leave what a training is to do in its ``folder``; ``fingerprint`` is of the data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).unlink(missing_ok=True)
    write_job(folder, planned.run, fingerprint)


def saved(planned: Job, folder: Path) -> Result | None:
    """The saved result, if it is of this very job: it may have more steps to do by now."""
    result = read_result(folder)
    if result is None:
        return None
    done = read_job(folder)["run"]["training"]
    return result if done == from_json(to_json(to_dict(planned.run.training))) else None
