"""Processes of a comparison, so that one that crashes takes nothing with it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path

from everyformer.system.children import Descriptor, start
from everyformer.system.pulse import Pulse, doing
from everyformer.system.stopping import Gentle

IMPORTS = ("everyformer.comparison.worker", "everyformer.comparison.calibration")


def launch(module: str, folder: Path, stop: Gentle, *words: str) -> int:
    """Call ``MODULE.main(folder, *words)`` of this package in a fresh process; its exit code.

    The process is in a session of its own, so that Ctrl-C reaches this one alone, which asks the
    other to stop. It stops too when this process dies in any way.
    """
    with _lent() as shared, doing("waiting for a process"):
        child = start(run, module, folder, shared, *words, imports=IMPORTS)
        return _wait(child, stop)


def run(module: str, folder: Path, shared: int | None, *words: str) -> int:
    """What a process of a comparison does.

    ``shared``: what `Pulse.lend` gave to the program that started it.
    """
    if os.name != "nt":
        os.setsid()
    _stop_with_parent()
    with Pulse("starting a process", shared):
        main = importlib.import_module(f"everyformer.comparison.{module}").main
        code: int = main(folder, *words)
        return code


@contextlib.contextmanager
def _lent() -> Iterator[Descriptor | None]:
    """The pulse of this program for the process."""
    if Pulse.active is None or os.name == "nt":
        yield None
    else:
        with Pulse.active.lend() as shared:
            yield Descriptor(shared)


def _wait(child: BaseProcess, stop: Gentle) -> int:
    asked = False
    try:
        while child.exitcode is None:
            child.join(0.1)
            if stop.received is not None and not asked:
                child.terminate()
                asked = True
        return child.exitcode
    except BaseException:
        child.kill()
        child.join()
        raise


def ended(code: int) -> str:
    """How a process ended that left no result."""
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    why = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"the process ended with {end}{why}"


def stopped_by(code: int) -> bool:
    """Whether an exit code is that of a process that was asked to stop."""
    return code == 128 + signal.SIGTERM


def _stop_with_parent() -> None:
    """Stop as on SIGTERM, with a checkpoint, when the program that started this one has died."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
