"""The Triton kernels, run by Triton's interpreter: each file of ``fused`` in a process of its own.

Triton decides when a kernel is decorated whether it is interpreted or compiled.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("cases", ["running", "kernel", "dense"])
def test_kernels_are_their_equations(cases):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed (it is for Linux only)")
    file = Path(__file__).parent / "fused" / f"{cases}.py"
    # numpy, which interprets, warns of the log of 0
    command = [sys.executable, "-m", "pytest", "-x", "-W", "ignore::RuntimeWarning", str(file)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
