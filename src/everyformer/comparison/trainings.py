"""The trainings of a comparison, each in a fresh process, one after the other or over Ray.

One after the other, so that times are not shared; each in a process, so that one that runs
out of memory or crashes takes nothing with it. What is finished stays in its folder.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.estimate import Estimate
from everyformer.comparison.files import RESULT, read_job, read_result, write_job, write_result
from everyformer.comparison.plan import Entrant, Job, job, jobs
from everyformer.comparison.processes import ended, launch, stopped_by
from everyformer.comparison.results import Result
from everyformer.core.config import to_dict
from everyformer.core.errors import MissingExtraError
from everyformer.core.wording import duration
from everyformer.data.dataset import Dataset
from everyformer.system.plain import from_json, to_json
from everyformer.system.stopping import Gentle

Say = Callable[[str], None]
Finished = list[tuple[Job, Result]]


def say_news(estimate: Estimate, say: Say) -> None:
    """Correct what was said of the time, where that was far off."""
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
    stop: Gentle
    estimate: Estimate
    _tried: set[str] = field(default_factory=set)

    def note_saved(self, ready: list[Entrant]) -> None:
        """Let the estimate know of what earlier sittings have finished."""
        for planned in jobs(self.config, ready):
            saved = self._saved(planned, self.folder / planned.folder)
            if saved is not None and saved["status"] == "done":
                self.estimate.over(planned)

    def run(self, ready: list[Entrant], seeds: int | None = None) -> Iterator[Finished]:
        """All jobs of one member after the other with their results, until a signal stops them.

        ``seeds``: of each (default: those that all have); what is trained already is read.
        """
        count = seeds or self.config.first_seeds
        if self.config.launcher == "ray":
            self._on_ray(jobs(self.config, ready, count))
        for entrant in ready:
            if entrant.config is not None and self.stop.received is None:
                results = self._entrant(entrant, count)
                if len(results) == count:
                    yield results

    def _entrant(self, entrant: Entrant, seeds: int) -> Finished:
        """Trainings of one member: its learning rate first, then every seed."""
        config, finished = self.config, Finished()
        lr, best = (*config.lr_grid, config.training.lr)[0], math.inf
        for tried in config.lr_grid:
            result = self._job(job(config, entrant, config.training.seed, tried))
            if result is None:
                return finished
            if result["status"] == "done" and result["evaluation"]["loss"] < best:
                lr, best = tried, result["evaluation"]["loss"]
        for number in range(seeds):
            planned = job(config, entrant, config.training.seed + number, lr)
            result = self._job(planned)
            if result is None:
                return finished
            finished.append((planned, result))
        return finished

    def _job(self, planned: Job) -> Result | None:
        """The saved result of a job, or what a fresh process made of it; None after a signal.

        A job that failed in an earlier sitting is tried again, from its last checkpoint.
        """
        folder = self.folder / planned.folder
        saved = self._saved(planned, folder)
        if saved is not None and (saved["status"] == "done" or planned.folder in self._tried):
            self.estimate.over(planned)
            return saved
        if self.stop.received is not None:
            return None
        self._tried.add(planned.folder)
        self._prepare(planned, folder)
        start = time.perf_counter()
        part = to_json(to_dict(self.estimate.part(planned)))
        code = launch("worker", folder, self.stop, part)
        result = read_result(folder)
        if result is None:
            if self.stop.received is None and stopped_by(code):
                self.stop.received = signal.SIGTERM
            if self.stop.received is not None:
                return None
            result = {"status": "failed", "error": ended(code)}
            write_result(folder, result)
        self.estimate.over(planned, time.perf_counter() - start)
        say_news(self.estimate, self.say)
        if result["status"] != "done":
            self.say(f"{planned.member}: failed: {result['error']}")
        return result

    def _prepare(self, planned: Job, folder: Path) -> None:
        """The folder of a job, with what its process is to do."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        write_job(folder, planned.run, self.dataset.fingerprint)

    def _saved(self, planned: Job, folder: Path) -> Result | None:
        """The saved result, if it is of this very job: it may have more steps to do by now."""
        saved = read_result(folder)
        if saved is None:
            return None
        done = read_job(folder)["run"]["training"]
        return saved if done == from_json(to_json(to_dict(planned.run.training))) else None

    def _on_ray(self, every: list[Job]) -> None:
        """These jobs at once over a Ray cluster that shares this file system; results are files."""
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "ray", "the launcher 'ray'") from error
        from everyformer.comparison.worker import main

        ray.init(ignore_reinit_error=True)
        remote = ray.remote(main)
        waiting = []
        for planned in every:
            folder = (self.folder / planned.folder).absolute()
            saved = self._saved(planned, folder)
            if saved is None or saved["status"] != "done":
                self._prepare(planned, folder)
                waiting.append(remote.remote(folder))
        while waiting:
            # a signal is seen between two waits, and would not be in one for all
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.2)
            if self.stop.received is not None:
                for task in waiting:
                    # as Ctrl-C in a training: it stops after its step, with a checkpoint
                    ray.cancel(task, force=False)
                return
