"""Tasks of Ray on a machine of a cluster, for a comparison: `examine` and `train`.

The task is a process of Ray's, in which little is imported: a training is started by it as by
`compare` on one machine, so that it stops with a checkpoint when it is asked to, and whatever
becomes of it harms no process of Ray's. Arguments and results are plain values; data never is
among them.
"""

import importlib
import os
import platform
import signal
import time
from pathlib import Path
from typing import Any

from everyformer.comparison.files import read_result
from everyformer.comparison.processes import launch, stopped_by
from everyformer.core.config import from_dict
from everyformer.core.errors import DataError
from everyformer.core.foreign import FAILURES, describe
from everyformer.system.plain import from_json
from everyformer.system.stopping import Gentle

VERSION: str = importlib.import_module("everyformer").__version__
"""of this package, whose first module offers what lies above this one too"""
TOLD = "told.txt"
"""in the folder of a training: what it says, and before it each `MARK` and the machine's name"""
MARK = "machine: "
TAIL = 20
"""lines that are repeated of a training that died"""


class HaltedError(Exception):
    """A training was asked to stop, but not by its comparison: its machine may be shut down."""


def examine(
    folder: str, environment: dict[str, str], data: str, task: str, file: str
) -> dict[str, str]:
    """Facts of this machine: the ``version`` of this package, the ``fingerprint`` of the data as it
    is read here, or the ``error`` that keeps it from being read.

    Args:
        folder, environment: of the program that compares.
        data: `DataConfig` as JSON. task: its task.
        file: one of the comparison's, which must be here too.
    """
    facts = {"version": VERSION}
    try:
        _enter(folder, environment)
        if not Path(file).exists():
            raise DataError(f"{Path(file).absolute()} is not there: its disk must be shared")
        from everyformer.data import load_dataset
        from everyformer.data.config import DataConfig

        said = from_dict(DataConfig, from_json(data))
        found = load_dataset(said, task, stored=said)
        facts["fingerprint"] = found.fingerprint
    except FAILURES as error:
        facts["error"] = describe(error)
    return facts


def train(folder: str, environment: dict[str, str], place: str, *words: str) -> dict[str, Any]:
    """Run the training in the folder ``place``: exit ``code`` of its process, ``result`` or None,
    ``seconds``, and the ``tail`` of what it said.

    Raises:
        HaltedError: somebody else stopped it.
    """
    _enter(folder, environment)
    told = Path(place, TOLD)
    with told.open("ab", buffering=0) as file:
        file.write(f"{MARK}{platform.node()}\n".encode())
        # this process serves one task, and what it starts speaks where it does
        os.dup2(file.fileno(), 2)
    start = time.perf_counter()
    # ray.cancel raises SIGINT here, in whatever process the comparison is
    with Gentle() as stop:
        code = launch("worker", Path(place), stop, *words)
    if stopped_by(code) and stop.received != signal.SIGINT:
        raise HaltedError(f"the training was stopped on {platform.node()}")
    return {
        "code": code,
        "result": read_result(Path(place)),
        "seconds": time.perf_counter() - start,
        "tail": told.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:],
    }


def _enter(folder: str, environment: dict[str, str]) -> None:
    """Be where the program is that compares, with what it has said to those that it starts."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise DataError(f"{folder} is not there: its disk must be shared") from error
    os.environ.update(environment)
