"""The laws of every member, on a device that is not the host."""

import subprocess
import sys
from pathlib import Path

import pytest

from everyformer.family import list_members
from everyformer.verification.verify import LAWS

SANDBOX = Path(__file__).parents[1] / "sandbox_device.py"
ELSEWHERE = {"compiles", "devices", "traffic"}
"""laws of graphs, of devices without numbers, and of bytes, which are the same everywhere"""


@pytest.mark.full("minutes a member; the verbs are tried on the device every time", parts=20)
@pytest.mark.parametrize("member", [row.name for row in list_members()])
def test_laws_hold_on_a_device_that_is_not_the_host(member: str) -> None:
    laws = [law for law in LAWS if law not in ELSEWHERE]
    line = [sys.executable, SANDBOX, "verify", member, "--device", "sandbox", "--laws", *laws]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
