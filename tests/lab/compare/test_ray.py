"""What Ray is asked for, and what is said of its answers: without one."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everyformer.core.errors import ConfigError
from everyformer.lab.compare import cluster as clusters
from everyformer.lab.compare.cluster import Cluster, train
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.files import write_result
from everyformer.lab.compare.launchers import Task
from everyformer.lab.compare.plan import Candidate, job
from everyformer.models.build import configure
from everyformer.system.signals import GracefulStop
from everyformer.training.config import TrainingConfig
from everyformer.training.progress import Part
from everyformer.training.spec import preset


class LostError(Exception):
    """In the place of ray.exceptions.RayError."""


class Ray:
    """In the place of ray, with what the cluster has, and results of tasks by name."""

    exceptions = SimpleNamespace(RayError=LostError)

    def __init__(self, initialised: bool = True, **have: float) -> None:
        self.have, self.initialised, self.fault = have, initialised, ""
        self.answers: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.given: list[tuple[Any, ...]] = []
        self.cancelled: list[tuple[Any, bool]] = []

    def is_initialized(self) -> bool:
        return self.initialised

    def init(self, **options: Any) -> None:
        if self.fault:
            raise ConnectionError(self.fault)
        self.initialised = True

    def shutdown(self) -> None:
        self.initialised = False

    def cluster_resources(self) -> dict[str, float]:
        return self.have

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)

        def remote(*given: Any) -> Any:
            self.given.append(given)
            return options["name"]

        return lambda function: SimpleNamespace(remote=remote)

    def get(self, run: str) -> Any:
        if isinstance(self.answers[run], Exception):
            raise self.answers[run]
        return self.answers[run]

    def wait(self, runs: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [run for run in runs if run in self.answers]
        return ready[:1], runs

    def cancel(self, run: Any, force: bool = False) -> None:
        self.cancelled.append((run, force))
        self.answers[run] = LostError("cancelled")


def cluster_of(ray: Ray, monkeypatch: pytest.MonkeyPatch, **training: Any) -> Cluster:
    monkeypatch.setattr(clusters, "extra_module", lambda *given: ray)
    config = TrainingConfig(**{"threads": 1} | training)
    return Cluster(CompareConfig(members=("gmlp",), training=config))


def task_of(folder: Path, seed: int = 0) -> Task:
    config = CompareConfig(members=("gmlp",), training=TrainingConfig(steps=1))
    ready = Candidate("gmlp", preset("gmlp"), configure("gmlp", "lm", max_length=8), 1)
    folder.mkdir(exist_ok=True)
    return Task(job(config, ready, seed, 0.001), folder, Part(1, 1, 0.0, 1.0, 0.0))


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_training_has_as_many_cores_as_it_has_threads_here(
    threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, cores = Ray(CPU=8.0), threads or torch.get_num_threads()
    monkeypatch.setenv("EVERYFORMER_CACHE", "here")
    cluster = cluster_of(ray, monkeypatch, threads=threads)
    task = task_of(tmp_path)
    cluster.start(task)
    assert cluster.at_once == 8 // cores
    [asked], [given] = ray.asked, ray.given
    name = "runs/gmlp-seed0"
    assert asked == {"max_retries": 2, "name": name, "num_cpus": cores, "num_gpus": 0}
    assert given[0] == os.getcwd()
    assert given[1]["EVERYFORMER_CACHE"] == "here"
    assert given[2:] == (str(tmp_path), *task.words)


def test_a_gpu_is_asked_for_where_it_is_trained_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = Ray(CPU=8.0, GPU=3.0)
    monkeypatch.setattr(clusters, "pick_device", lambda device: torch.device("cuda"))
    cluster = cluster_of(ray, monkeypatch)
    cluster.start(task_of(tmp_path))
    assert (cluster.at_once, ray.asked[0]["num_gpus"]) == (3, 1)


def test_what_the_cluster_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "one training takes 3 CPUs and 0 GPUs, but Ray's cluster has 2 CPUs and 0 GPUs"
    with pytest.raises(ConfigError, match=said):
        cluster_of(Ray(CPU=2.0), monkeypatch, threads=3).open()


def test_a_cluster_is_left_if_it_was_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (False, True):
        ray = Ray(before, CPU=2.0)
        with cluster_of(ray, monkeypatch) as cluster:
            cluster.open()
            assert ray.initialised
        assert ray.initialised is before
    ray = Ray(False, CPU=2.0)
    ray.fault = "nobody is there"
    with pytest.raises(ConfigError, match=r"joined or started \(nobody is there\)"):
        cluster_of(ray, monkeypatch).open()


def test_an_error_of_ray_is_a_failed_row_unless_all_were_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, stop = Ray(CPU=2.0), GracefulStop()
    with cluster_of(ray, monkeypatch) as cluster:
        for seed in range(4):
            cluster.start(task_of(tmp_path / str(seed), seed))
        assert not cluster.full
        ray.answers["runs/gmlp-seed2"] = (0, {"status": "done"}, 3.0)
        one = cluster.ended(stop)
        assert (one.planned.seed, one.code, one.result, one.seconds) == (
            2, 0, {"status": "done"}, 3.0
        )  # fmt: skip
        ray.answers["runs/gmlp-seed0"] = LostError("a trace\nof the machine\n")
        one = cluster.ended(stop)
        assert one.result == {"status": "failed", "error": "LostError: of the machine"}
        stop.received = signal.SIGINT
        one = cluster.ended(stop)
        assert (one.planned.seed, one.code, one.result) == (1, 143, None)
        assert ray.cancelled == [("runs/gmlp-seed1", False), ("runs/gmlp-seed3", False)]
    # what runs yet ends with the comparison
    assert ray.cancelled[2:] == [("runs/gmlp-seed3", True)]


def test_a_task_gives_what_its_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launched(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        assert (module, words, os.environ["EVERYFORMER_CACHE"]) == ("worker", ("part",), "there")
        write_result(place, {"status": "failed", "error": os.getcwd()})
        return 7

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", "here")
    monkeypatch.setattr(clusters, "launch", launched)
    (tmp_path / "other" / "place").mkdir(parents=True)
    there = str(tmp_path / "other")
    code, result, seconds = train(there, {"EVERYFORMER_CACHE": "there"}, "place", "part")
    assert (code, result) == (7, {"status": "failed", "error": there})
    assert seconds > 0
