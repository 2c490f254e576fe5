"""The Triton kernels, run by Triton's interpreter: each file of ``fused`` in a process of its own.

Triton decides when a kernel is decorated whether it is interpreted or compiled.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from everyformer.engines import cuda
from everyformer.engines.averages.dense import _dense_average
from everyformer.engines.softmax import distances
from sequence_laws.operations import Counter


@pytest.mark.full("half a minute each, in the interpreter", parts=5)
@pytest.mark.parametrize(
    "cases",
    [
        *("running", "kernel", "dense", "banded"),
        pytest.param("distances", marks=pytest.mark.full("a minute and a half", parts=12)),
    ],
)
def test_kernels_are_their_equations(cases):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed (it is for Linux only)")
    file = Path(__file__).parent / "fused" / f"{cases}.py"
    # numpy, which interprets, warns of the log of 0
    command = [sys.executable, "-m", "pytest", "-x", "-W", "ignore::RuntimeWarning", str(file)]
    command += ["-p", "no:cacheprovider"]
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=interpreted, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("device", "dtype", "found", "taken"),
    [
        ("cuda", torch.float32, True, True),
        ("cuda", torch.bfloat16, True, True),
        ("cuda", torch.float64, True, False),
        ("cuda", torch.float32, False, False),
        ("cpu", torch.float32, True, False),
    ],
)
def test_what_triton_computes(device, dtype, found, taken, monkeypatch):
    monkeypatch.setattr(cuda, "triton_found", lambda: found)
    with FakeTensorMode():
        x = torch.empty(1, 20, 2, 3, device=device, dtype=dtype)
        assert cuda.fused(x, None, torch.empty(2, dtype=torch.long), 1.0) is taken
        # what kernels make again is not saved
        bias = torch.empty(2, 20, 20, device=device)
        saved = _dense_average(x, x, bias, None, None, True, True)[2]
        assert saved.numel() == (0 if taken else 2 * 20 * 20)


def test_kernels_of_distances_wait_while_operations_are_counted(monkeypatch):
    monkeypatch.setattr(distances, "fused", lambda q: True)
    q = torch.zeros(1, 2, 3, 4)
    assert distances.able(q, q, q)
    assert not distances.able(q, q, q.double())
    with Counter():
        assert not distances.able(q, q, q)


def test_what_kernels_do_not_take_goes_the_old_way(monkeypatch):
    monkeypatch.setattr(cuda, "triton_found", lambda: True)
    operation = torch.library.custom_op(
        "everyformer::tested_route", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    given = []
    monkeypatch.setattr(operation, "register_kernel", lambda device: given.append)
    cuda.on_cuda(operation, "running.forward", lambda x: x + 2)
    assert given[0](torch.zeros(1)) == 2
    monkeypatch.setattr(cuda, "triton_found", lambda: False)
    cuda.on_cuda(operation, "running.forward", lambda x: x + 2)
    assert len(given) == 1
