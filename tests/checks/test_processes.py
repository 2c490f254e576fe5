"""Calls in processes of their own, many at a time: exit codes, limits of time, verdicts."""

import os
import subprocess
import sys
import time

import pytest

from everyformer.checks import processes
from everyformer.checks.processes import verify_in_processes
from everyformer.cli import gpu
from everyformer.system.plain import from_json
from sequence_laws.children import each
from sequence_laws.verdict import LawResult


def ends(code: int) -> int:
    """Ends with ``code``, after a minute for a negative one."""
    if code < 0:
        time.sleep(60)
    return code


def test_each_call_is_told_by_its_number_and_ends_as_it_does():
    found = {
        n: code for n, code, _ in each(ends, [(3,), (0,), (5,)], imports=(), jobs=2, seconds=60)
    }
    assert found == {0: 3, 1: 0, 2: 5}


@pytest.mark.full("seconds each", parts=3)
def test_a_call_that_takes_too_long_is_ended_and_the_others_go_on():
    start = time.monotonic()
    found = list(each(ends, [(-1,), (0,), (7,)], imports=(), jobs=2, seconds=5.0))
    # two at a time: while the first waits, the others come and go
    assert [(n, code) for n, code, _ in found] == [(1, 0), (2, 7), (0, None)]
    assert next(took for n, _, took in found if n == 0) >= 5
    assert time.monotonic() - start < 50


@pytest.mark.full("processes that import torch")
def test_verdicts_of_members_come_from_their_processes(tmp_path):
    laws = (("float64", ("limits",)), ("float32", ("limits", "causality")))
    found = list(
        verify_in_processes(["rope", "aft-simple"], laws, "cpu", tmp_path, jobs=2, seconds=120)
    )
    by_member = {results[0].member: results for results in found}
    assert set(by_member) == {"rope", "aft-simple"}
    for results in found:
        names = [result.law for result in results]
        assert names == ["limits", "limits in float32", "causality in float32"]
        assert {result.status for result in results} <= {"held", "exempt"}
    assert by_member["rope"][0].status == "held"


def test_a_process_that_ends_without_a_verdict_breaks_a_law(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "judge", _ends_at_once)
    (found,) = verify_in_processes(["rope"], (), "cpu", tmp_path, jobs=1, seconds=60)
    assert [(one.law, one.status) for one in found] == [("process", "failed")]
    assert "its process ended with 9" in found[0].detail


def _ends_at_once(*_: object) -> int:
    os._exit(9)


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize(
    ("words", "said"),
    [(["rope", "--device", "nowhere"], "device 'nowhere'"), (["nosuch"], "nosuch")],
)
def test_a_device_or_a_member_that_is_not_there_is_one_sentence(words, said, tmp_path):
    command = [sys.executable, "-m", "everyformer.cli.gpu", *words, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("everyformer: ")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("status", ["held", "failed"])
def test_make_gpu_writes_what_it_found_and_fails_where_a_law_does(
    status, tmp_path, monkeypatch, capsys
):
    def verdicts(names, *_, **__):
        yield [LawResult(name, "limits", status, f"of {name}", 1.0) for name in names]

    monkeypatch.setattr(gpu, "verify_in_processes", verdicts)
    options = gpu.GpuOptions(("rope", "linear"), "cpu", str(tmp_path), speeds=False)
    assert gpu.main(options) == (1 if status == "failed" else 0)
    found = from_json((tmp_path / "gpu.json").read_text())
    assert [one["member"] for one in found["laws"]] == ["rope", "linear"]
    assert found["setting"]["device"] == "cpu"
    assert found["environment"]["packages"]["torch"]
    said = (tmp_path / "gpu.txt").read_text()
    assert said.strip() in capsys.readouterr().out
    assert ("FAILED rope, limits: of rope" in said) == (status == "failed")


def test_layers_are_measured_where_and_as_it_is_told(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(gpu, "verify_in_processes", lambda *_, **__: iter(()))
    monkeypatch.setattr(gpu, "bench_together", lambda *a, **k: asked.append((*a, k)) or [])
    given = gpu.GpuOptions(
        ("gpt", "linear", "knn-lm"), "cpu", str(tmp_path), length=99, precision="float32"
    )
    assert gpu.main(given) == 0
    members, length, setting = asked[0]
    assert (members, length) == (["attention", "linear"], 99)
    assert (setting["device"], setting["precision"], setting["peers"]) == ("cpu", "float32", True)
