"""A comparison over a cluster of two machines of one core, which share this one's disk."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_comparisons import SMALL, Compared
from test_compare_signals import steps, wait_for, workers

from everyformer.comparison.node import MARK, TOLD

Compare = Callable[..., Compared]
ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else 127.0.0.1 becomes the address in a network
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
RAY = ("--launcher", "ray")
MACHINE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 1024**2}
LONG = ("--steps", "100000", "--training.evaluate-every", "none")
SAVED = ("--training.checkpoint-every", "5")
FAILING = """
from everyformer.core.outputs import MixerOutput
from everyformer.genes.mixers.base import StreamingMixer

class Fails(StreamingMixer):
    "No result."
    name = "fails"
    def build(self, max_length):
        pass
    def mix(self, rows, state):
        raise ZeroDivisionError("of all things")
"""
rare = pytest.mark.full("half a minute of processes", parts=3)


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ALONE.items():
            patch.setenv(name, value)
        pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        head = {**MACHINE, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(**MACHINE)
        yield made
        made.shutdown()


@pytest.fixture
def cluster(machines: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cluster, which RAY_ADDRESS names."""
    for name, value in {**ALONE, "RAY_ADDRESS": machines.address}.items():
        monkeypatch.setenv(name, value)
    return machines


def told(folder: Path, training: str) -> str:
    """What a training said, on whatever machines."""
    file = folder / "made" / "runs" / training / TOLD
    return file.read_text(encoding="utf-8") if file.exists() else ""


def saved(folder: Path, member: str) -> int:
    """Step of the newest checkpoint."""
    checkpoints = folder / "made" / "runs" / f"{member}-seed0" / "run" / "checkpoints"
    return max(int(one.name.rpartition("-")[2]) for one in checkpoints.iterdir())


@pytest.mark.usefixtures("forgotten")
@pytest.mark.full("half a minute", parts=3)
def test_it_comes_to_the_same_as_here_and_a_failure_is_one_row_and_run_once(
    cluster: Any, compare: Compare, tree: Path
) -> None:
    (tree / "mine.py").write_text(FAILING, encoding="utf-8")
    words = ("gmlp", "attention", "fails", "--plugin", "mine.py:Fails", "--steps", "20")
    here, there = compare(*words, out="here"), compare(*words, *RAY)
    assert (here.code, there.code) == (1, 1)
    for number, member in enumerate(words[:2], start=1):
        name = rf"^\[{number} of 3\] {member}-seed0: "
        assert len(re.findall(f"{name}training for 20 steps on cpu of ", there.err, re.M)) == 1
        assert len(re.findall(f"{name}step 20: validation loss", there.err, re.M)) == 1
        [one], [other] = here.runs(member), there.runs(member)
        for kind in ("training", "evaluations"):
            assert len(one[kind]) == len(other[kind]) > 0
        for before, after in zip(one["training"], other["training"], strict=True):
            assert after["loss"] == pytest.approx(before["loss"], rel=1e-6)
        loss = one["evaluation"]["loss"]
        assert other["evaluation"]["loss"] == pytest.approx(loss, rel=1e-6)
    assert "ZeroDivisionError: of all things" in there.row("fails")["error"]
    assert f"fails: failed: {there.row('fails')['error']}" in there.err
    assert told(tree, "fails-seed0").count(MARK) == 1


@pytest.mark.full("seconds each", parts=3)
def test_what_no_machine_can_hold_is_refused(cluster: Any, compare: Compare) -> None:
    done = compare("gmlp", "--steps", "1", *RAY, "--training.threads", "2")
    assert done.code == 2
    assert "one training takes 2 CPUs, but " in done.err
    assert "the largest machine of the cluster, has 1 CPU: give fewer --threads" in done.err
    assert not (done.folder / "runs").exists()


@rare
def test_a_training_whose_machine_is_lost_goes_on_on_another(
    cluster: Any, compare: Compare, tree: Path
) -> None:
    import ray

    where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    [lost] = cluster.worker_nodes

    @ray.remote(num_cpus=1)
    def busy() -> None:
        threading.Event().wait()

    def lose() -> None:
        wait_for(lambda: steps(tree, "gmlp") > 20)
        ray.cancel(held, force=True)
        cluster.remove_node(lost, allow_graceful=False)
        wait_for(lambda: "going on from step" in told(tree, "gmlp-seed0"))
        os.kill(os.getpid(), signal.SIGINT)

    ray.init(cluster.address, log_to_driver=False)
    try:
        held = busy.options(scheduling_strategy=where(cluster.head_node.node_id, soft=False))
        held = held.remote()
        thread = threading.Thread(target=lose)
        thread.start()
        done = compare("gmlp", *LONG, *SAVED, *RAY)
        thread.join()
        assert ray.is_initialized()  # since it was before
    finally:
        ray.shutdown()
        cluster.add_node(**MACHINE)
    assert done.code == 130
    said = told(tree, "gmlp-seed0")
    assert said.count(MARK) == 2
    before = int(re.findall(r"going on from step (\d+)", said)[0])
    assert 0 < before <= saved(tree, "gmlp")
    assert done.err.count("[1 of 1] gmlp-seed0: training for") == 2


@rare
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_a_signal_stops_all_with_checkpoints(cluster: Any, tree: Path) -> None:
    members = ("gmlp", "aft-simple")
    words = (*members, *SMALL, *LONG, *SAVED, *RAY, "--out", "made")
    with (tree / "said.txt").open("w") as file:
        driver = subprocess.Popen(
            [sys.executable, "-m", "everyformer", "compare", *words],
            cwd=tree, stderr=file, stdout=file, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: all(steps(tree, each) > 20 for each in members), seconds=150)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
    finally:
        driver.kill()
    assert list(workers(tree)) == []
    said = (tree / "said.txt").read_text(encoding="utf-8")
    assert "Traceback" not in said
    assert "go on with: everyformer compare --resume --out made" in said
    for each in members:
        assert saved(tree, each) > 20
        assert f"{each}-seed0: stopped after step {saved(tree, each)}" in said
        assert not (tree / "made" / "runs" / f"{each}-seed0" / "result.json").exists()
