"""The trainings of a comparison as plain tasks of Ray, each with its cores and its GPU.

Ray places them, and begins one again whose machine or process is lost: it goes on from its last
checkpoint, since the cluster shares a disk with this program. The cluster is the one that the
variable RAY_ADDRESS names or that runs here, or else one of this machine while this lasts.
"""

import os
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from everyformer.core.devices import pick_device
from everyformer.core.errors import ConfigError
from everyformer.core.wording import pluralise
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.files import read_result
from everyformer.lab.compare.launchers import Ended, Launcher, Task
from everyformer.lab.compare.processes import launch
from everyformer.lab.compare.results import Result
from everyformer.system.signals import GracefulStop
from everyformer.system.status import status
from sequence_laws.extras import extra_module
from sequence_laws.foreign import cut

RETRIES = 2
"""times that Ray begins a training again whose machine, or process of Ray's, is lost"""
PAUSE = 0.5
"""seconds between two looks at whether to stop"""


class Cluster(Launcher):
    """Hands all trainings to Ray at once."""

    def __init__(self, config: CompareConfig) -> None:
        self._cores = config.training.threads or torch.get_num_threads()
        self._gpus = int(pick_device(config.training.device).type == "cuda")
        self._ray: Any = None
        self._joined = False
        """whether it is left again at the end"""
        self._running: dict[Any, Task] = {}
        self._cancelled = False

    def open(self) -> None:
        if self._ray is not None:
            return
        ray = extra_module("ray", "ray", "the launcher 'ray'")
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            with status("joining Ray's cluster"):
                try:
                    ray.init(include_dashboard=False, logging_level="ERROR")
                except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                    raise ConfigError(
                        f"no cluster of Ray can be joined or started ({cut(str(error))}): start "
                        "one with 'ray start --head' and name it by RAY_ADDRESS, or unset that"
                    ) from error
            self._joined = True
        self._ray, have = ray, ray.cluster_resources()
        needs = {"CPU": self._cores, "GPU": self._gpus}
        self.at_once = int(min(have.get(what, 0) // much for what, much in needs.items() if much))
        if not self.at_once:
            each, there = (
                " and ".join(pluralise(int(amounts.get(what, 0)), what) for what in needs)
                for amounts in (needs, have)
            )
            raise ConfigError(
                f"one training takes {each}, but Ray's cluster has {there}: give fewer "
                "`training.threads`, or another `training.device`"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for run in self._running:
            self._ray.cancel(run, force=True)
        if self._joined:
            self._ray.shutdown()

    @property
    def full(self) -> bool:
        # those that do not fit wait in the cluster
        return False

    def start(self, task: Task) -> None:
        self.open()
        amounts = {"num_cpus": self._cores, "num_gpus": self._gpus}
        remote = self._ray.remote(max_retries=RETRIES, name=task.planned.folder, **amounts)(train)
        own = {name: v for name, v in os.environ.items() if name.startswith("EVERYFORMER_")}
        run = remote.remote(os.getcwd(), own, str(task.folder), *task.words)
        self._running[run] = task

    def ended(self, stop: GracefulStop) -> Ended:
        done: list[Any] = []
        with status(f"waiting for {pluralise(len(self._running), 'training')}"):
            while not done:
                done, _ = self._ray.wait([*self._running], timeout=PAUSE)
                if stop.received is not None and not self._cancelled:
                    self._cancelled = True
                    for run in self._running:
                        self._ray.cancel(run)
        task = self._running.pop(done[0])
        try:
            return Ended(task.planned, *self._ray.get(done[0]))
        except self._ray.exceptions.RayError as error:
            if stop.received is not None:
                return Ended(task.planned, 128 + signal.SIGTERM, None, 0.0)
            message = f"{type(error).__name__}: {cut(str(error).strip().splitlines()[-1])}"
            return Ended(task.planned, 1, {"status": "failed", "error": message}, 0.0)


def train(
    folder: str, environment: dict[str, str], place: str, *words: str
) -> tuple[int, Result | None, float]:
    """Task: run the training in the folder ``place`` in a process of its own; what becomes of it
    (`launchers.Ended`).

    Args:
        folder, environment: of the program that compares.
    """
    start = time.perf_counter()
    os.chdir(folder)
    os.environ.update(environment)
    # ray.cancel raises SIGINT here
    with GracefulStop() as stop:
        code = launch("worker", Path(place), stop, *words)
    return code, read_result(Path(place)), time.perf_counter() - start
