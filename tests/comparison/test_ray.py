"""What a cluster of Ray is asked for, and what is said of its answers: without one."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_comparisons import Compared

from everyformer.comparison import cluster as clusters
from everyformer.comparison import node
from everyformer.comparison.cluster import Cluster, fault_of, how_many, reason, require_answer
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.launchers import Task
from everyformer.comparison.plan import Entrant, job
from everyformer.core.errors import ConfigError
from everyformer.data.config import DataConfig
from everyformer.models.build import configure
from everyformer.system.plain import to_json
from everyformer.system.stopping import Gentle, Stopped
from everyformer.training.config import TrainingConfig
from everyformer.training.progress import Part
from everyformer.training.spec import preset

Compare = Callable[..., Compared]
RAY = ("--launcher", "ray")


class LostError(Exception):
    """In the place of ray.exceptions.RayError."""


class Ray:
    """In the place of ray: machines by name with what they have, and results of tasks by name."""

    exceptions = SimpleNamespace(RayError=LostError)
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda machine, soft: (machine, soft)
        )
    )

    def __init__(self, **machines: dict[str, float]) -> None:
        self.machines = machines
        self.answers: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.given: list[tuple[Any, ...]] = []
        self.cancelled: list[tuple[Any, bool]] = []

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerHostname": name, "NodeManagerAddress": "10.0.0.1"}
            | {"Resources": have, "Alive": name != "dead"}
            for name, have in self.machines.items()
        ]

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)

        def remote(*given: Any) -> Any:
            self.given.append(given)
            return options.get("scheduling_strategy", (options.get("name"),))[0]

        return lambda function: SimpleNamespace(remote=remote)

    def get(self, task: str) -> Any:
        answer = self.answers.get(task, FACTS)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout <= 1
        ready = [task for task in tasks if task in self.answers]
        return ready[:1], tasks

    def cancel(self, task: Any, force: bool) -> None:
        self.cancelled.append((task, force))


FACTS = {"version": node.VERSION, "fingerprint": "of all"}
DATA: Any = SimpleNamespace(fingerprint="of all", name="text.txt", task="lm")


def opened(
    ray: Ray, monkeypatch: pytest.MonkeyPatch, folder: Path = Path(), **training: Any
) -> tuple[Cluster, list[str]]:
    """A cluster that was opened, and what it said."""
    monkeypatch.setattr(clusters, "extra_module", lambda *given: ray)
    said: list[str] = []
    config = CompareConfig(members=("gmlp",), training=TrainingConfig(**{"threads": 1} | training))
    made = Cluster(config, DATA, folder, said.append)
    made.open()
    return made, said


def task_of(folder: Path, peak: int | None = None) -> Task:
    config = CompareConfig(members=("gmlp",), training=TrainingConfig(steps=1))
    ready = Entrant("gmlp", preset("gmlp"), configure("gmlp", "lm", max_length=8), 1)
    folder.mkdir(exist_ok=True)
    return Task(job(config, ready, 0, 0.001), folder, Part(1, 1, 0.0, 1.0, 0.0), peak)


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_training_has_as_many_threads_as_here(
    threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, expected = Ray(one={"CPU": 8.0, "memory": 1e9}), threads or torch.get_num_threads()
    cluster, _ = opened(ray, monkeypatch, threads=threads)
    assert cluster.at_once == 8 // expected
    cluster.start(task_of(tmp_path, peak=1000))
    options = {"num_cpus": expected, "num_gpus": 0, "memory": 1000, "max_calls": 1}
    assert options.items() <= ray.asked[-1].items()
    assert ray.asked[-1]["max_retries"] == 2
    assert "runtime_env" not in ray.asked[-1]
    folder, environment, place, *words = ray.given[-1]
    assert (folder, place, len(words)) == (os.getcwd(), str(tmp_path), 1)
    assert environment["OMP_NUM_THREADS"] == str(expected)
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert {k for k in environment if not k.startswith("EVERYFORMER_")} <= {
        "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"
    }  # fmt: skip


def test_a_gpu_is_declared_where_it_is_trained_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(one={"CPU": 8.0, "GPU": 2.0})
    cluster, _ = opened(ray, monkeypatch, device="cuda")
    assert cluster.at_once == 2
    cluster.start(task_of(tmp_path, peak=1000))
    assert ray.asked[-1]["num_gpus"] == 1
    assert "memory" not in ray.asked[-1]  # what was measured is of the GPU
    assert "CUDA_VISIBLE_DEVICES" not in ray.given[-1][1]
    with pytest.raises(ConfigError, match="each training has a GPU of its own"):
        opened(ray, monkeypatch, device="cuda:1")


def test_a_training_must_fit_one_machine_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, dead = {"CPU": 2.0, "memory": 4.0 * 2**30}, {"CPU": 64.0}
    message = r"takes 3 CPUs, but b .*, has 2 CPUs: give fewer 'training.threads'"
    with pytest.raises(ConfigError, match=message):
        opened(Ray(a={"CPU": 1.0}, b=small, dead=dead), monkeypatch, threads=3)
    with pytest.raises(ConfigError, match=r"1 CPU and 1 GPU, .* has 2 CPUs and 0 GPUs: give cpu"):
        opened(Ray(b=small), monkeypatch, device="cuda")
    cluster, _ = opened(Ray(a={"CPU": 1.0}, b=small), monkeypatch)
    assert cluster.at_once == 3
    with pytest.raises(ConfigError, match=r"1 CPU and 5.0 GiB of memory, .* 4.0 GiB of memory"):
        cluster.start(task_of(tmp_path, peak=5 * 2**30))


def test_machines_hold_what_fits_in_all_that_is_counted() -> None:
    have = {"CPU": 7.0, "memory": 100.0}
    assert how_many(have, {"CPU": 2, "GPU": 0}) == 3
    assert how_many(have, {"CPU": 2, "GPU": 0, "memory": 60}) == 1
    assert how_many(have, {"CPU": 1, "GPU": 1}) == 0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"version": "9.9.9"}, f"has everyformer 9.9.9 and not {node.VERSION}"),
        (FACTS | {"fingerprint": "of others"}, "reads other data as text.txt than this one"),
        (FACTS | {"error": "text.txt is not there"}, "cannot train: text.txt is not there"),
        (LostError("Traceback\n  trace\nModuleNotFoundError: everyformer"), "ModuleNotFoundError"),
    ],
)
def test_machines_with_another_version_or_data_are_refused(
    answer: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(first={"CPU": 2.0}, second={"CPU": 2.0}, head={"CPU": 0.0})
    ray.answers["second"] = answer
    with pytest.raises(ConfigError) as refused:
        opened(ray, monkeypatch)
    assert told in str(refused.value)
    assert str(refused.value).startswith("second (10.0.0.1), a machine of the cluster, ")
    assert len(str(refused.value).splitlines()) == 1
    # each where it is, and never the one that trains nothing
    where = [asked["scheduling_strategy"] for asked in ray.asked]
    assert where == [("first", False), ("second", False)]


def test_the_facts_of_a_machine_are_as_the_comparison_finds_them(
    tree: Path, compare: Compare
) -> None:
    compare("gmlp", "--steps", "1")
    data, record = to_json({"source": "text.txt", "length": 16}), "made/comparison.json"
    facts = node.examine(str(tree), {}, data, "lm", record)
    from everyformer.data import load_dataset

    dataset = load_dataset(DataConfig(source="text.txt", length=16), "lm")
    assert facts == {"version": node.VERSION, "fingerprint": dataset.fingerprint}
    assert fault_of(facts, dataset) is None
    (tree / "text.txt").write_text("something else " * 500, encoding="utf-8")
    other = node.examine(str(tree), {}, data, "lm", record)
    assert "reads other data" in (fault_of(other, dataset) or "")
    for place, file, missing in (
        (tree / "nowhere", record, "nowhere is not there: its disk must be shared"),
        (tree, "made/other.json", "other.json is not there: its disk must be shared"),
    ):
        assert missing in node.examine(str(place), {}, data, "lm", file)["error"]
    (tree / "text.txt").unlink()
    assert "text.txt" in node.examine(str(tree), {}, data, "lm", record)["error"]


def test_an_error_of_ray_is_a_failed_row_unless_all_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, stop = Ray(one={"CPU": 1.0}), Gentle()
    cluster, _ = opened(ray, monkeypatch)
    ray.answers["runs/gmlp-seed0"] = LostError("The worker died\n unexpectedly.")
    cluster.start(task_of(tmp_path))
    ended = cluster.ended(stop)
    assert ended.result == {"status": "failed", "error": "LostError: unexpectedly."}
    cluster.start(task_of(tmp_path))
    stop.received = signal.SIGINT
    ended = cluster.ended(stop)
    assert (ended.code, ended.result) == (143, None)


def test_all_are_asked_to_stop_once_and_ended_by_force_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, stop, now = Ray(one={"CPU": 1.0}), Gentle(), [0.0]
    cluster, _ = opened(ray, monkeypatch)
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(clusters, "time", clock)
    cluster.start(task_of(tmp_path))
    waited = []

    def wait(tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        waited.append(list(ray.cancelled))
        stop.received, now[0] = signal.SIGTERM, now[0] + clusters.LONGEST_STEP / 2
        if len(waited) == 5:
            ray.answers[tasks[0]] = LostError("cancelled")
        return Ray.wait(ray, tasks, timeout)

    monkeypatch.setattr(ray, "wait", wait)
    assert cluster.ended(stop).result is None
    name = "runs/gmlp-seed0"
    assert waited[1:4] == [[(name, False)], [(name, False)], [(name, False), (name, True)]]


def test_what_is_left_running_ends_with_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(one={"CPU": 1.0})
    cluster, _ = opened(ray, monkeypatch)
    cluster.start(task_of(tmp_path))
    with contextlib.suppress(Stopped), cluster:
        raise Stopped(signal.SIGINT)
    assert ray.cancelled == [("runs/gmlp-seed0", True)]


def test_the_first_and_the_last_line_of_each_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, stop = Ray(one={"CPU": 1.0}), Gentle()
    cluster, said = opened(ray, monkeypatch)
    (tmp_path / node.TOLD).write_text("of an earlier sitting\n", encoding="utf-8")
    cluster.start(task_of(tmp_path))
    lines = [f"{node.MARK}ada", "starting (4 s)", "[1 of 1] a: training", "[1 of 1] a: 10%"]
    lines += [f"{node.MARK}bob", "[1 of 1] a: training again", "[1 of 1] a: step 9", "drawing"]
    looks = iter(range(1, len(lines) + 1))

    def wait(tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        count = next(looks)
        # a line is read when it is whole
        text = "\n".join(lines[:count]) + "\n"
        text = text if count % 2 == 0 else text[:-3]
        (tmp_path / node.TOLD).write_text(text, encoding="utf-8")
        if count == len(lines):
            answer = {"code": 0, "result": {"status": "done"}, "seconds": 2.0, "tail": lines}
            ray.answers[tasks[0]] = answer
        return Ray.wait(ray, tasks, timeout)

    monkeypatch.setattr(ray, "wait", wait)
    ended = cluster.ended(stop)
    assert (ended.code, ended.seconds, ended.result) == (0, 2.0, {"status": "done"})
    assert said == [
        "[1 of 1] a: training of ada", "[1 of 1] a: training again of bob", "[1 of 1] a: step 9"
    ]  # fmt: skip


def test_the_last_words_of_one_that_died_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(one={"CPU": 1.0})
    cluster, said = opened(ray, monkeypatch)
    cluster.start(task_of(tmp_path))
    tail = ["Fatal Python error: Segmentation fault", "", "Current thread"]
    ray.answers["runs/gmlp-seed0"] = {"code": -11, "result": None, "seconds": 1.0, "tail": tail}
    assert cluster.ended(Gentle()).code == -11
    assert said == ["\n".join(tail)]


def test_a_task_gives_what_its_process_left_as_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def launched(module: str, place: Path, stop: Gentle, *words: str) -> int:
        given.append((module, place, words, Path.cwd(), os.environ["EVERYFORMER_TRIED"]))
        with (place / node.TOLD).open("a") as file:
            file.writelines(f"line {n}\n" for n in range(30))
        node.Path(place, "result.json").unlink(missing_ok=True)
        stop.received = received or None
        return code

    monkeypatch.setattr(node, "launch", launched)
    monkeypatch.setattr(node.os, "dup2", lambda *numbers: None)
    monkeypatch.setenv("EVERYFORMER_TRIED", "no")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    surroundings = (str(tmp_path), {"EVERYFORMER_TRIED": "yes"}, "job", "words")
    code, received = -9, 0
    found = node.train(*surroundings)
    assert given == [("worker", Path("job"), ("words",), tmp_path, "yes")]
    assert (found["code"], found["result"]) == (-9, None)
    assert found["tail"] == [f"line {n}" for n in range(10, 30)]
    assert (tmp_path / "job" / node.TOLD).read_text().startswith(node.MARK)
    # asked by its comparison, it has stopped; asked by another, it is to begin elsewhere
    code, received = 143, signal.SIGINT
    assert node.train(*surroundings)["code"] == 143
    received = signal.SIGTERM
    with pytest.raises(node.HaltedError, match="was stopped on"):
        node.train(*surroundings)


@pytest.mark.parametrize(
    "address", ["head", "127.0.0.1:port", "ray://127.0.0.1:10001", "127.0.0.1:1"]
)
def test_an_address_at_which_nobody_can_be_is_refused(address: str) -> None:
    ray: Any = SimpleNamespace(_private=SimpleNamespace(services=SimpleNamespace()))
    ray._private.services.canonicalize_bootstrap_address = lambda given: given
    with pytest.raises(ConfigError, match="RAY_ADDRESS is"):
        require_answer(ray, address)


@pytest.mark.parametrize("speaks", [True, False])
def test_who_listens_must_also_answer(speaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 0.2 if not speaks else 20.0)
    ray: Any = SimpleNamespace(_private=SimpleNamespace(services=SimpleNamespace()))
    ray._private.services.canonicalize_bootstrap_address = lambda given: given
    with socket.create_server(("127.0.0.1", 0)) as server:
        quiet = threading.Event()

        def answer() -> None:
            line, _ = server.accept()
            with line:
                if speaks and line.recv(100).startswith(b"PRI"):
                    line.sendall(b"settings")
                quiet.wait()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if speaks:
            require_answer(ray, address)
        else:
            with pytest.raises(ConfigError, match="where no cluster answers"):
                require_answer(ray, address)
        quiet.set()
        thread.join()


def test_signals_are_answered_as_before_whatever_ray_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in clusters.SIGNALS]
    with clusters._own_signals():
        signal.signal(signal.SIGTERM, lambda *given: None)
    assert [signal.getsignal(number) for number in clusters.SIGNALS] == before
    with pytest.raises(Stopped) as stopped, clusters._own_signals():
        raise SystemExit(signal.SIGTERM)
    assert stopped.value.number == signal.SIGTERM


def test_a_cluster_is_joined_by_its_address_or_else_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the one that some note on this machine names."""
    ray: Any = Ray(one={"CPU": 1.0})
    joined: list[tuple[str, dict[str, Any]]] = []
    left = []
    ray.is_initialized = lambda: False
    ray.init = lambda address, **options: joined.append((address, options))
    ray.shutdown = lambda: left.append(True)
    ray._private = SimpleNamespace(worker=SimpleNamespace(_worker_logs_enabled=True))
    monkeypatch.setattr(clusters, "require_answer", lambda ray, address: None)
    monkeypatch.setenv("RAY_task_oom_retries", "2")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    cluster, said = opened(ray, monkeypatch)
    assert joined.pop() == ("head:6379", quiet)
    assert said == []
    assert ray._private.worker._worker_logs_enabled is False
    monkeypatch.delenv("RAY_ADDRESS")
    with cluster:
        cluster, said = opened(ray, monkeypatch)
    address, options = joined.pop()
    assert address == "local"
    assert quiet.items() <= options.items()
    assert "a local one is started, of" in said[0]
    assert left == [True]
    ray.init = lambda address, **options: (_ for _ in ()).throw(RuntimeError("Version\nmismatch"))
    with pytest.raises(ConfigError, match=r"can be joined at local \(RAY_ADDRESS\): Version mis"):
        opened(ray, monkeypatch)


def test_what_is_finished_is_read_without_a_cluster(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare("gmlp", "--steps", "1").code == 0
    monkeypatch.setattr(Cluster, "open", lambda cluster: pytest.fail("it was opened"))
    assert compare("--resume", *RAY, small=False).code == 0


def test_reasons_are_the_last_line_of_a_trace() -> None:
    error: Any = LostError("ray::train()\n  File, line 1\nValueError: x")
    assert reason(error) == "LostError: ValueError: x"
    error.cause = node.HaltedError("it was stopped on ada")
    assert reason(error) == "HaltedError: it was stopped on ada"
