"""The laws of every member, on a device that is not the host and has no float64."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everyformer.family import list_members
from everyformer.verification.verify import LAWS

SANDBOX = Path(__file__).parents[1] / "sandbox_device.py"
ELSEWHERE = {"compiles", "devices", "traffic"}
"""laws of graphs, of devices without numbers, and of bytes, which are the same everywhere"""


def said(*words: str) -> dict[str, Any]:
    """What a command line gives on the device."""
    done = subprocess.run(
        [sys.executable, SANDBOX, "--lines"], input=json.dumps([words]), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    [line] = json.loads(done.stdout)
    result: dict[str, Any] = line
    return result


@pytest.mark.full("minutes a member; the verbs are tried on the device every time", parts=20)
@pytest.mark.parametrize("member", [row.name for row in list_members()])
def test_laws_hold_on_a_device_that_is_not_the_host(member: str) -> None:
    laws = [law for law in LAWS if law not in ELSEWHERE]
    where = ("--device", "sandbox", "--precision", "float32")
    line = said("verify", member, *where, "--laws", *laws)
    assert line["code"] == 0, line["out"]
    assert " 0 failed" in line["out"]


def test_laws_in_float64_are_refused_where_there_is_none() -> None:
    line = said("verify", "gpt", "--device", "sandbox")
    assert (line["code"], line["out"]) == (2, "")
    assert "'sandbox' has no float64, in which laws are checked unless told: give" in line["err"]
