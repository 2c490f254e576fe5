"""Two other processes, in which the model is made again: what a process gives to it (hashes of
text, and with them the order of sets, the time, files that were left) is no part of its answer."""

import os
import subprocess
import sys
import tempfile

from torch import Tensor

from sequence_laws.foreign import cut
from sequence_laws.subject import YOURS, Subject
from sequence_laws.verdict import LawBroken

SECONDS = 300.0
"""of a process"""
CONFINED = (
    "import sys; from sequence_laws.confined import offline, one_process\n"
    "with offline(), one_process(): exec(sys.argv[2], {})"
)
"""a program that runs another, of whose code as little may be done as where it was made first"""


def processes(subject: Subject, x: Tensor) -> str:
    """Remark that outputs are equal in two processes, the second with the state of the first.

    Raises:
        LawBroken: they are not.
    """
    if subject.build == YOURS:
        return "; not in other processes, since nothing says how it is made"
    program = _program(subject, x)
    with tempfile.TemporaryDirectory() as folder:
        for hashes in "12":
            given = {"PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(sys.path)}
            given["OMP_NUM_THREADS"] = "1"  # as here: sums have one order
            try:
                ran = subprocess.run(
                    [sys.executable, "-c", CONFINED, os.path.join(folder, "kept"), program],
                    env={**os.environ, **given},
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                )
            except subprocess.TimeoutExpired:
                return f"; another process was not done in {SECONDS:.0f} s"
            if ran.returncode:
                return f"; another process fails: {cut(ran.stderr.strip().rpartition(chr(10))[2])}"
    try:
        off = float(ran.stdout.split()[-1])
    except (IndexError, ValueError):  # of code that prints as it ends
        return "; what another process says is not known"
    if not off <= subject.bound(x):
        raise LawBroken(
            f"in two processes, whose hashes of text differ, outputs differ by {off:.2g}, of the "
            f"same weights and random numbers (length {x.shape[1]})",
            "\n".join(
                [
                    "import os, subprocess, sys, tempfile",
                    f"program = r'''\n{program}\n'''",
                    "kept = os.path.join(tempfile.mkdtemp(), 'kept')",
                    "for hashes in '12':",
                    "    given = {**os.environ, 'PYTHONHASHSEED': hashes}",
                    "    subprocess.run([sys.executable, '-c', program, kept], env=given)  # not 0",
                ]
            ),
        )
    return "; in two processes equal"


def _program(subject: Subject, x: Tensor) -> str:
    """What keeps state and outputs of the model in a file or, where there is one, reads that state
    and prints how far its outputs are from those."""
    seeded = ["import random; random.seed(0)"]
    seeded += ["import numpy; numpy.random.seed(0)"] * ("numpy" in sys.modules)
    used = subject.code(
        subject.inputs.code(*x.shape[:2]),
        "import os, sys",
        "again = os.path.exists(sys.argv[1])",
        "state, y = torch.load(sys.argv[1]) if again else (model.state_dict(), 0)",
        "model.load_state_dict(state)",
        "torch.manual_seed(0)",
        *seeded,
        "with torch.no_grad():",
        f"    y = {subject.call_code('x')} - y",
        "print(float(y.abs().max())) if again else torch.save((state, y), sys.argv[1])",
    )
    return "\n".join([*seeded, used])
