"""A cluster of Ray that runs the trainings of a comparison, as many at once as it can hold.

Plain tasks, each with the cores, the GPU and the memory that a training needs; what one does on its
machine is `everyformer.comparison.node`. The cluster shares a disk with this program: a training
whose machine is lost begins again on another from its last checkpoint. It is the one that the
variable RAY_ADDRESS names, or one that this program has joined itself; else one of this machine's
cores, for the time of the comparison.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from everyformer.comparison import node
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.folder import RECORD
from everyformer.comparison.launchers import Ended, Launcher, Task
from everyformer.comparison.results import Result
from everyformer.comparison.worker import LONGEST_STEP
from everyformer.core.config import to_dict
from everyformer.core.errors import ConfigError
from everyformer.core.foreign import cut
from everyformer.core.wording import counted, listed
from everyformer.data.dataset import Dataset
from everyformer.system.extras import extra_module
from everyformer.system.machine import cores
from everyformer.system.memory import size
from everyformer.system.plain import to_json
from everyformer.system.pulse import doing
from everyformer.system.stopping import SIGNALS, Gentle, Stopped

ADDRESS = "RAY_ADDRESS"
RETRIES = 2
"""times that a training begins again whose machine, or process of Ray's, is lost"""
PAUSE = 0.5
"""seconds between two looks at what has ended, what has begun, and whether to stop"""
PATIENCE = 5.0
"""seconds in which an address must answer"""
STORE = 100 * 1024**2
"""bytes of a local cluster's store of objects: only results pass through it"""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""which whoever speaks gRPC answers"""

Needs = dict[str, float]
"""amounts of what Ray counts, by its names: CPU, GPU, memory in bytes"""
REMEDIES = {
    "CPU": "give fewer 'training.threads' (none: as many as torch takes here)",
    "GPU": "give cpu as 'training.device'",
    "memory": "give a smaller batch",
}
"""for each of them, where no machine has so much"""


class Cluster(Launcher):
    """Runs the trainings of the comparison in ``folder``."""

    def __init__(
        self,
        config: CompareConfig,
        dataset: Dataset,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._dataset, self._folder, self._say = config, dataset, folder, say
        self._ray: Any = None
        self._joined = False
        """whether it is left again at the end"""
        self._running: dict[Any, _Run] = {}
        self._asked: float | None = None
        """when all were asked to stop"""

    def open(self) -> None:
        if self._ray is not None:
            return
        needs = self._needs()
        ray = extra_module("ray", "ray", "the launcher 'ray'")
        if not ray.is_initialized():
            self._join(ray)
        self._ray = ray
        self._require_room(needs)
        self._require_equals(needs)
        self.at_once = sum(how_many(each["Resources"], needs) for each in self._nodes())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        if self._joined:
            self._ray.shutdown()

    @property
    def full(self) -> bool:
        # those that do not fit wait in the cluster, which may grow
        return False

    def start(self, task: Task) -> None:
        self.open()
        needs = self._needs(task.peak_bytes)
        self._require_room(needs)
        (task.folder / node.TOLD).unlink(missing_ok=True)
        train = self._remote(
            node.train,
            needs,
            max_retries=RETRIES,
            retry_exceptions=[node.HaltedError],
            name=task.planned.folder,
        )
        run = train.remote(*self._surroundings(), str(task.folder), *task.words)
        self._running[run] = _Run(task)

    def ended(self, stop: Gentle) -> Ended:
        while True:
            done, _ = self._ray.wait([*self._running], timeout=PAUSE)
            for run in self._running.values():
                for line in run.begun():
                    self._say(line)
            if stop.received is not None:
                self._stop()
            if done:
                return self._taken(done[0], stop)

    def _taken(self, task: Any, stop: Gentle) -> Ended:
        """The result of a task that is over."""
        run = self._running.pop(task)
        planned = run.task.planned
        try:
            told = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            if stop.received is not None:
                return Ended(planned, 128 + signal.SIGTERM, None, 0.0)
            failed: Result = {"status": "failed", "error": reason(error)}
            return Ended(planned, 1, failed, time.perf_counter() - run.since)
        last = run.last(told["tail"])
        if told["code"] and stop.received is None:
            self._say("\n".join(told["tail"]))
        elif last is not None:
            self._say(last)
        return Ended(planned, told["code"], told["result"], told["seconds"])

    def _stop(self) -> None:
        """Ask all to stop, once: those that wait never begin. At last by force."""
        if self._asked is not None and time.monotonic() - self._asked < LONGEST_STEP:
            return
        for task in self._running:
            self._ray.cancel(task, force=self._asked is not None)
        self._asked = time.monotonic()

    def _join(self, ray: Any) -> None:
        """Join the cluster that is named, or start a local one.

        Raises:
            ConfigError: nothing answers at the address, or it is another version of Ray.
        """
        # its own limit is none: what takes too much memory would begin again for ever
        os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        address = os.environ.get(ADDRESS) or "local"
        own: dict[str, Any] = {}
        if address == "local":
            self._say(
                f"{ADDRESS} names no cluster: a local one is started, of {counted(cores(), 'core')}"
            )
            own = {"num_cpus": cores(), "object_store_memory": STORE}
        else:
            require_answer(ray, address)
        with doing(f"joining Ray's cluster at {address}"), _own_signals():
            try:
                ray.init(address, **quiet, **own)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise ConfigError(
                    f"no cluster of Ray can be joined at {address} ({ADDRESS}): {cut(str(error))}"
                ) from error
        self._joined = True
        # what Ray says of processes that it lost would be among results, on stdout
        ray._private.worker._worker_logs_enabled = False

    def _needs(self, peak_bytes: int | None = None) -> Needs:
        """The share of a machine that a training takes.

        Raises:
            ConfigError: it is to run on one GPU of several.
        """
        training = self._config.training
        kind, _, number = training.device.partition(":")
        if kind == "auto":
            found = torch.accelerator.current_accelerator(check_available=True)
            kind = "cpu" if found is None else found.type
        if kind == "cuda" and number:
            raise ConfigError(
                f"'training.device' is {training.device}, but over Ray each training has a GPU of "
                "its own, and knows no other: give cuda"
            )
        cuda = kind == "cuda"
        needs: Needs = {"CPU": training.threads or torch.get_num_threads(), "GPU": float(cuda)}
        return needs if cuda or not peak_bytes else needs | {"memory": peak_bytes}

    def _surroundings(self) -> tuple[str, dict[str, str]]:
        """Directory of this program, and what its trainings find in their environment: as many
        threads as here, a GPU only if one is declared, and plug-ins."""
        needs = self._needs()
        hidden = {} if needs["GPU"] else {"CUDA_VISIBLE_DEVICES": ""}
        own = {name: v for name, v in os.environ.items() if name.startswith("EVERYFORMER_")}
        return os.getcwd(), {"OMP_NUM_THREADS": f"{needs['CPU']:.0f}", **hidden, **own}

    def _remote(self, function: Any, needs: Needs, **options: Any) -> Any:
        """A function as a task, of which each call has a fresh process."""
        amounts = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"]}
        if "memory" in needs:
            amounts["memory"] = needs["memory"]
        return self._ray.remote(max_calls=1, **amounts, **options)(function)

    def _nodes(self) -> list[dict[str, Any]]:
        """Machines that are there."""
        return [each for each in self._ray.nodes() if each["Alive"]]

    def _require_room(self, needs: Needs) -> None:
        """Raise unless a machine can hold one training: Ray itself would wait for ever.

        Raises:
            ConfigError: names what is asked, and what the largest machine has.
        """
        have = [(each["Resources"], name_of(each)) for each in self._nodes()]
        if any(how_many(amounts, needs) for amounts, _ in have):
            return
        lacking = [what for what in needs if max(a.get(what, 0) for a, _ in have) < needs[what]]
        what = next(iter(lacking), "CPU")
        largest, name = max(have, key=lambda each: each[0].get(what, 0))
        asked = {one: much for one, much in needs.items() if much}
        raise ConfigError(
            f"one training takes {amounts_of(asked)}, but {name}, the largest machine of the "
            f"cluster, has {amounts_of({one: largest.get(one, 0) for one in asked})}: "
            f"{REMEDIES[what]}, or add a larger machine"
        )

    def _require_equals(self, needs: Needs) -> None:
        """Raise unless every machine that can hold a training has this version and this data.

        Raises:
            ConfigError: names the first that has not.
        """
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [each for each in self._nodes() if how_many(each["Resources"], needs)]
        data, task = to_json(to_dict(self._config.data)), self._dataset.task
        asked = [
            self._remote(
                node.examine,
                {"CPU": 0, "GPU": 0},
                scheduling_strategy=there(each["NodeID"], soft=False),
            ).remote(*self._surroundings(), data, task, str(self._folder / RECORD))
            for each in nodes
        ]
        for each, facts in zip(nodes, asked, strict=True):
            with doing(f"asking {name_of(each)} for its version and its data"):
                try:
                    known = self._ray.get(facts)
                except self._ray.exceptions.RayError as error:
                    known = {"version": node.VERSION, "error": reason(error)}
            fault = fault_of(known, self._dataset)
            if fault is not None:
                raise ConfigError(f"{name_of(each)}, a machine of the cluster, {fault}")


class _Run:
    """A task that was given to Ray, and what it has said so far."""

    def __init__(self, task: Task) -> None:
        self.task, self.since = task, time.perf_counter()
        self._label = f"[{task.part.number} of {task.part.of}] "
        self._read, self._machine = 0, ""

    def begun(self) -> Iterator[str]:
        """The first line that each process has said since this was asked last, with its machine."""
        text = b""
        with suppress(FileNotFoundError), (self.task.folder / node.TOLD).open("rb") as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in text.decode("utf-8", "replace").splitlines():
            if line.startswith(node.MARK):
                self._machine = line.removeprefix(node.MARK)
            elif self._machine and line.startswith(self._label):
                yield f"{line} of {self._machine}"
                self._machine = ""

    def last(self, tail: list[str]) -> str | None:
        """The last line of a training about itself."""
        return next((line for line in reversed(tail) if line.startswith(self._label)), None)


def how_many(have: Mapping[str, float], needs: Needs) -> int:
    """Number of trainings that a machine can hold side by side."""
    return int(min(have.get(what, 0) // much for what, much in needs.items() if much))


def amounts_of(needs: Needs) -> str:
    """In words: 2 CPUs, 1 GPU and 1.5 GiB of memory."""
    words = [
        f"{size(int(much))} of memory" if what == "memory" else counted(int(much), what)
        for what, much in needs.items()
    ]
    return listed(words)


def name_of(machine: dict[str, Any]) -> str:
    """Name and address of one of `ray.nodes`."""
    return f"{machine['NodeManagerHostname']} ({machine['NodeManagerAddress']})"


def fault_of(facts: Mapping[str, str], dataset: Dataset) -> str | None:
    """Reason why trainings of a machine with these `node.examine` could not be compared with those
    of this one; None if they can."""
    if facts["version"] != node.VERSION:
        return f"has everyformer {facts['version']} and not {node.VERSION}: install the same on all"
    if "error" in facts:
        return f"cannot train: {facts['error']}"
    if facts["fingerprint"] != dataset.fingerprint:
        return f"reads other data as {dataset.name} than this one: put the same on all"
    return None


def reason(error: BaseException) -> str:
    """Sentence about an error of Ray's, whose own are long and hold a trace."""
    cause = getattr(error, "cause", None) or error
    lines = [line for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {cut(lines[-1] if lines else '')}".rstrip(": ")


def require_answer(ray: Any, address: str) -> None:
    """Raise unless somebody speaks gRPC at ``address``: Ray itself would try for minutes.

    Raises:
        ConfigError: nobody does, or it is no address.
    """
    wanted = f"{ADDRESS} is '{address}'"
    if "://" in address:
        raise ConfigError(f"{wanted}, but must be that of the cluster's head itself, as head:6379")
    try:
        # for Ray, localhost is this machine's address in its network
        found = ray._private.services.canonicalize_bootstrap_address(address)
        host, _, port = found.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as line:
            line.settimeout(PATIENCE)
            line.sendall(HELLO)
            line.recv(1)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{wanted}, where no cluster answers ({error}): start one with 'ray start --head', or "
            "unset it"
        ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself, which is answered as before after the block."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    except SystemExit as error:
        raise Stopped(signal.SIGTERM) from error
    finally:
        with suppress(ValueError):  # in another thread nobody takes one
            for number, handler in before.items():
                signal.signal(number, handler)
