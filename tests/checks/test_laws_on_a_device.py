"""The laws of every member, on a device that is not the host and has no float64."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everyformer.checks.verify import LAWS
from everyformer.family import list_members

SANDBOX = Path(__file__).parents[1] / "sandbox_device.py"
ELSEWHERE = {"compiles", "devices", "traffic"}
"""laws of graphs, of devices without numbers, and of bytes, which are the same everywhere"""


def said(*words: str) -> dict[str, Any]:
    """Exit code and output of a command line on the device."""
    done = subprocess.run(
        [sys.executable, SANDBOX, "--lines"], input=json.dumps([words]), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    [line] = json.loads(done.stdout)
    result: dict[str, Any] = line
    return result


@pytest.mark.full("minutes a member; the verbs are tried on the device every time", parts=150)
@pytest.mark.parametrize("member", [row.name for row in list_members()])
def test_laws_hold_on_a_device_that_is_not_the_host(member: str) -> None:
    laws = [law for law in LAWS if law not in ELSEWHERE]
    where = ("--device", "sandbox", "--precision", "float32")
    line = said("verify", member, *where, "--laws", *laws)
    assert line["code"] == 0, line["out"]
    assert " 0 failed" in line["out"]


@pytest.mark.full("processes that import torch")
def test_laws_in_float64_are_refused_where_there_is_none() -> None:
    line = said("verify", "gpt", "--device", "sandbox")
    assert (line["code"], line["out"]) == (2, "")
    assert "'sandbox' has no float64, in which laws are checked by default: give" in line["err"]


DROPPED = """
import torch
import sandbox_device
sandbox_device.install()
from everyformer.engines.softmax import blocks
from everyformer.models.build import create_mixer

blocks.at_once = lambda *_: 1  # a few queries at a time
torch.manual_seed(0)
mixer = create_mixer("attention", width=8, heads=2, causal=True, **OPTIONS).to("sandbox").train()
x, g = torch.randn(2, 9, 8, device="sandbox"), torch.randn(2, 9, 8, device="sandbox")
y = mixer(x).y
torch.rand(7, device="sandbox")  # others draw between the passes
(y * g).sum().backward()
packed = mixer.project.weights[0]
print(float((y * g).sum()), float((packed.grad * packed)[-8:].sum()))
"""


REVERSED = """
import json
import torch
import sandbox_device
sandbox_device.install()
from helpers import both_ways, build_model

torch.manual_seed(0)
options = {"residual": "reversible", "reversible_output": "mean", "dropout": 0.5}
model = build_model("attention", dtype=torch.float32, **options).to("sandbox").train()
tokens = torch.arange(12, device="sandbox").view(2, 6)

def gradients():
    loss = model(tokens, targets=tokens).loss
    torch.rand(7, device="sandbox")
    return [float(g.abs().sum()) for g in torch.autograd.grad(loss, list(model.parameters()))]

print(json.dumps(both_ways(gradients)))
"""


def ran(code: str) -> str:
    """Output of a program that finds the modules of the tests."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(SANDBOX.parent)},
    ).stdout  # fmt: skip


@pytest.mark.full("processes that import torch")
def test_layers_rebuilt_on_a_device_draw_what_they_drew() -> None:
    rebuilt, kept = json.loads(ran(REVERSED))
    assert rebuilt == pytest.approx(kept, rel=1e-4)


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize("position", ["t5-relative", "xl-relative"])
def test_weights_are_dropped_alike_in_both_passes_on_a_device(position: str) -> None:
    # outputs are linear in the values, so their product with their gradient is the output's own
    code = DROPPED.replace("OPTIONS", repr({"position": position, "attention_dropout": 0.5}))
    total, of_gradient = map(float, ran(code).split())
    assert of_gradient == pytest.approx(total, rel=1e-5)
    assert abs(total) > 1e-3


@pytest.mark.full("processes that import torch")
def test_doctor_names_the_device_that_auto_picks() -> None:
    machine = json.loads(said("doctor", "--json")["out"])["machine"]
    assert machine["device"] == "sandbox"
