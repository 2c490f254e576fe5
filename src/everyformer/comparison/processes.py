"""Processes of a comparison, so that one that crashes takes nothing with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from everyformer.core.pulse import Pulse, doing
from everyformer.core.stopping import Gentle


def launch(module: str, folder: Path, stop: Gentle, *words: str) -> int:
    """Run ``everyformer.comparison.MODULE`` on ``folder`` in a fresh process; its exit code.

    The process is in a session of its own, so that Ctrl-C reaches this one alone, which asks the
    other to stop. Its standard input is a pipe that ends when this process dies in any way.
    """
    start = [sys.executable, "-P", "-m", "everyformer.comparison.start", module, str(folder)]
    pulse = Pulse.active
    with (
        contextlib.nullcontext() if pulse is None or os.name == "nt" else pulse.lend() as shared,
        doing("waiting for a process"),
    ):
        child = subprocess.Popen(
            [*start, "-" if shared is None else str(shared), *words],
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,
            pass_fds=() if shared is None else (shared,),
        )
        return _wait(child, stop)


def _wait(child: subprocess.Popen[bytes], stop: Gentle) -> int:
    stopping = False
    try:
        while True:
            try:
                return child.wait(0.1)
            except subprocess.TimeoutExpired:
                if stop.received is not None and not stopping:
                    child.send_signal(signal.SIGTERM)
                    stopping = True
    except KeyboardInterrupt:
        child.kill()
        raise
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait()


def ended(code: int) -> str:
    """How a process ended that left no result."""
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    why = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"the process ended with {end}{why}"


def stopped_by(code: int) -> bool:
    """Whether an exit code is that of a process that was asked to stop."""
    return code == 128 + signal.SIGTERM


def stop_with_parent() -> None:
    """Stop as on SIGTERM, with a checkpoint, when the standard input ends: the parent has died."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
