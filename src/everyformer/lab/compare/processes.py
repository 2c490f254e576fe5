"""Processes of a comparison, so that one that crashes takes nothing with it."""

import importlib
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path

from everyformer.system.signals import GracefulStop
from everyformer.system.status import show, shows
from sequence_laws.children import start

IMPORTS = ("everyformer.lab.compare.worker", "everyformer.lab.compare.rounds")


def launch(module: str, folder: Path, stop: GracefulStop, *words: str) -> int:
    """Call ``MODULE.main(folder, *words)`` of this package in a fresh process; its exit code.

    The process is in another session, so that Ctrl-C reaches this one alone, which asks the
    other to stop. It stops too when this process dies in any way.
    """
    [child] = wait([begun(module, folder, *words)], stop, set())
    return exit_code(child)


def begun(module: str, folder: Path, *words: str, quiet: bool = False) -> BaseProcess:
    """A process as that of `launch`, which has just been started.

    Args:
        quiet: whether it tells nothing of what it is doing.
    """
    more = (True,) if quiet else ()
    return start(run, module, folder, shows() and not quiet, *words, *more, imports=IMPORTS)


def wait(
    children: Sequence[BaseProcess], stop: GracefulStop, asked: set[BaseProcess]
) -> list[BaseProcess]:
    """Those of ``children`` that have ended, one at least.

    A signal asks all to stop that are not among those which were ``asked`` before: a second time
    means at once.
    """
    try:
        while not (done := [child for child in children if child.exitcode is not None]):
            connection.wait([child.sentinel for child in children], 0.1)
            if stop.received is not None:
                for child in {*children} - asked:
                    child.terminate()
                asked.update(children)
        return done
    except BaseException:
        for child in children:
            child.kill()
            child.join()
        raise


def exit_code(child: BaseProcess) -> int:
    """How a process ended."""
    assert child.exitcode is not None
    return child.exitcode


def run(module: str, folder: Path, shown: bool, *words: str | bool) -> int:
    """Work of a process of a comparison; ``shown``: whether it tells what it is doing."""
    if os.name != "nt":
        os.setsid()
    _stop_with_parent()
    show(shown)
    main = importlib.import_module(f"everyformer.lab.compare.{module}").main
    code: int = main(folder, *words)
    return code


def ended(code: int) -> str:
    """End of a process that left no result, in words."""
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    why = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"the process ended with {end}{why}"


def stopped_by(code: int) -> bool:
    """True if an exit code is that of a process that was terminated to stop."""
    return code == 128 + signal.SIGTERM


def _stop_with_parent() -> None:
    """Stop as on SIGTERM, with a checkpoint, when the program that started this one has died."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
