"""A comparison over a cluster of Ray of two machines of one core, which share this one's disk."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_comparisons import SMALL, Compared
from test_compare_signals import steps, wait_for, workers

Compare = Callable[..., Compared]
ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else 127.0.0.1 becomes the address in a network
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
RAY = ("--launcher", "ray")
MACHINE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 1024**2}
LONG = ("--steps", "100000", "--training.evaluate-every", "none")
FAILING = """
from everyformer.core.outputs import MixerOutput
from everyformer.genes.mixers.base import StreamingMixer

class Fails(StreamingMixer):
    "No result."
    name = "fails"
    def build(self, max_length):
        pass
    def forward_rows(self, rows, state):
        raise ZeroDivisionError("of all things")
"""


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


def saved(folder: Path, member: str) -> int:
    """Step of the newest checkpoint."""
    checkpoints = folder / "made" / "runs" / f"{member}-seed0" / "run" / "checkpoints"
    return max(int(one.name.rpartition("-")[2]) for one in checkpoints.iterdir())


@pytest.mark.usefixtures("forgotten")
@pytest.mark.full("half a minute", parts=3)
def test_it_comes_to_the_same_as_here_and_a_failure_is_one_row(
    cluster: Any, compare: Compare, tree: Path
) -> None:
    (tree / "mine.py").write_text(FAILING, encoding="utf-8")
    words = ("gmlp", "attention", "fails", "--plugin", "mine.py:Fails", "--steps", "20")
    here, there = compare(*words, out="here"), compare(*words, *RAY)
    assert (here.code, there.code) == (1, 1)
    for member in words[:2]:
        [one], [other] = here.runs(member), there.runs(member)
        loss = one["evaluation"]["loss"]
        assert other["evaluation"]["loss"] == pytest.approx(loss, rel=1e-6)
        for before, after in zip(one["training"], other["training"], strict=True):
            assert after["loss"] == pytest.approx(before["loss"], rel=1e-6)
    assert "ZeroDivisionError: of all things" in there.row("fails")["error"]
    assert f"fails: failed: {there.row('fails')['error']}" in there.err


@pytest.mark.full("half a minute of processes", parts=3)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_a_signal_stops_all_with_checkpoints(cluster: Any, tree: Path) -> None:
    members = ("gmlp", "aft-simple")
    words = (*members, *SMALL, *LONG, *RAY, "--out", "made")
    with (tree / "said.txt").open("w") as file:
        driver = subprocess.Popen(
            [sys.executable, "-m", "everyformer", "compare", *words],
            cwd=tree, stderr=file, stdout=file, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: all(steps(tree, each) > 20 for each in members), seconds=150)
        driver.send_signal(2)
        assert driver.wait(60) == 130
    finally:
        driver.kill()
    assert list(workers(tree)) == []
    said = (tree / "said.txt").read_text(encoding="utf-8")
    assert "Traceback" not in said
    assert "continue with: everyformer compare --resume --out made" in said
    for each in members:
        assert saved(tree, each) > 20
        assert not (tree / "made" / "runs" / f"{each}-seed0" / "result.json").exists()
