"""The trainings of a comparison, each in a fresh process, one after the other or over Ray.

One after the other, so that times are not shared; each in its own process, so that one that runs
out of memory or crashes takes nothing with it. What is finished stays in its folder.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.files import RESULT, read_job, read_result, write_job, write_result
from everyformer.comparison.plan import Entrant, Job, job, jobs
from everyformer.comparison.results import Result
from everyformer.core.config import to_dict
from everyformer.core.errors import MissingExtraError
from everyformer.core.stopping import Gentle
from everyformer.data.dataset import Dataset

Say = Callable[[str], None]
Finished = list[tuple[Job, Result]]


@dataclass
class Trainings:
    """Runs the jobs of one comparison."""

    config: CompareConfig
    dataset: Dataset
    folder: Path
    say: Say
    stop: Gentle
    _tried: set[str] = field(default_factory=set)

    def run(self, ready: list[Entrant]) -> Finished:
        """Every job with its result, those missing that a signal kept from running."""
        if self.config.launcher == "ray":
            self._on_ray(ready)
        finished: Finished = []
        for entrant in ready:
            if entrant.config is not None:
                finished += self._entrant(entrant)
        return finished

    def _entrant(self, entrant: Entrant) -> Finished:
        """Trainings of one member: its learning rate first, then every seed."""
        config, finished = self.config, Finished()
        lr, best = (*config.lr_grid, config.training.lr)[0], math.inf
        for tried in config.lr_grid:
            found = self._job(job(config, entrant, config.training.seed, tried))
            if found is None:
                return finished
            if found["status"] == "done" and found["evaluation"]["loss"] < best:
                lr, best = tried, found["evaluation"]["loss"]
        for number in range(config.seeds):
            planned = job(config, entrant, config.training.seed + number, lr)
            found = self._job(planned)
            if found is None:
                return finished
            finished.append((planned, found))
        return finished

    def _job(self, planned: Job) -> Result | None:
        """The kept result of a job, or what a fresh process made of it; None after a signal.

        A job that failed in an earlier sitting is tried again, from its last checkpoint.
        """
        folder = self.folder / planned.folder
        kept = self._kept(planned, folder)
        if kept is not None and (kept["status"] == "done" or planned.folder in self._tried):
            return kept
        if self.stop.received is not None:
            return None
        self._tried.add(planned.folder)
        self._prepare(planned, folder)
        self.say(f"{planned.member}, seed {planned.seed}, learning rate {planned.lr:g}")
        code = launch(folder, self.stop)
        found = read_result(folder)
        if found is None:
            if self.stop.received is None and code == 128 + signal.SIGTERM:
                self.stop.received = signal.SIGTERM
            if self.stop.received is not None:
                return None
            found = {"status": "failed", "error": _ended(code)}
            write_result(folder, found)
        if found["status"] != "done":
            self.say(f"{planned.member}: failed: {found['error']}")
        return found

    def _prepare(self, planned: Job, folder: Path) -> None:
        """The folder of a job, with what its process is to do."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT).unlink(missing_ok=True)
        write_job(folder, planned.run, self.dataset.fingerprint)

    def _kept(self, planned: Job, folder: Path) -> Result | None:
        """The kept result, if it is of this very job: it may have more steps to do by now."""
        kept = read_result(folder)
        if kept is None:
            return None
        done = read_job(folder)["run"]["training"]
        return kept if done == json.loads(json.dumps(to_dict(planned.run.training))) else None

    def _on_ray(self, ready: list[Entrant]) -> None:
        """All jobs at once over a Ray cluster that shares this file system; results are files."""
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", "ray", "the launcher 'ray'") from error
        from everyformer.comparison.worker import main

        ray.init(ignore_reinit_error=True)
        remote = ray.remote(main)
        waiting = []
        for planned in jobs(self.config, ready):
            folder = (self.folder / planned.folder).absolute()
            kept = self._kept(planned, folder)
            if kept is None or kept["status"] != "done":
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


def launch(folder: Path, stop: Gentle) -> int:
    """Run the job in ``place`` in a fresh process, and return its exit code.

    The process is in a session of its own, so that Ctrl-C reaches this one alone, which asks the
    other to stop. Its standard input is a pipe that ends when this process dies in any way.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "everyformer.comparison.worker", str(folder)],
        stdin=subprocess.PIPE,
        stdout=2,
        start_new_session=True,
    )
    stopping = False
    try:
        while True:
            try:
                return child.wait(0.1)
            except subprocess.TimeoutExpired:
                if stop.received is not None and not stopping:
                    child.send_signal(signal.SIGTERM)
                    stopping = True
    except KeyboardInterrupt:
        child.kill()
        raise
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


def _ended(code: int) -> str:
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    why = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"the process ended with {end}{why}"
