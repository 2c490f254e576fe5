"""Processes that start at once: forked from one that holds what they import (`multiprocessing`).

That one is started with the first of them, and ends with this process. Where a system cannot fork
safely, each imports for itself.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from typing import Any

FORKS = sys.platform not in ("win32", "darwin")
ASKS_THE_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""by which torch asks whether there is a GPU without starting to use it: what has used one cannot
be forked"""


class Descriptor:
    """A file descriptor among the arguments of a child, which is given one of its own as a number.

    There are none on Windows.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _detached, (reduction.DupFd(self._number),)


def start(
    target: Callable[..., int | None], *args: Any, imports: Sequence[str], daemon: bool = False
) -> BaseProcess:
    """Call ``target``, which must be importable, in a process of its own.

    It has the directory, the environment and the standard error of this process as they are now;
    what it prints goes to that too. A number that ``target`` returns is the exit code.

    Args:
        imports: modules that it will want, by name; those of the first child are held for all.
        daemon: whether it is ended when this process ends.
    """
    context: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
    if FORKS:
        os.environ.setdefault(ASKS_THE_DRIVER, "1")
        context.set_forkserver_preload(list(imports))
    error = None if sys.platform == "win32" else Descriptor(2)
    words = (os.getcwd(), dict(os.environ), error, target, args)
    child: BaseProcess = context.Process(target=_call, args=words, daemon=daemon)
    with _without_main(), _without_interrupts():
        child.start()
    return child


def each(
    target: Callable[..., int | None],
    calls: Sequence[tuple[Any, ...]],
    *,
    imports: Sequence[str],
    jobs: int,
    seconds: float,
) -> Iterator[tuple[int, int | None, float]]:
    """`start` of ``target`` with each of ``calls``, ``jobs`` at a time.

    Yields the number of each call as its process ends, its exit code, or None where it was ended
    after so many ``seconds``, and how long it took.
    """
    waiting = list(range(len(calls)))
    running: dict[BaseProcess, tuple[int, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.pop(0)
                child = start(target, *calls[number], imports=imports, daemon=True)
                running[child] = number, time.monotonic()
            time.sleep(0.05)
            for child, (number, began) in list(running.items()):
                took = time.monotonic() - began
                late = child.is_alive() and took >= seconds
                if child.is_alive() and not late:
                    continue
                del running[child]
                if late:
                    child.kill()
                child.join()
                yield number, None if late else child.exitcode, took
    finally:
        for child in running:
            child.kill()


def _call(
    folder: str,
    environment: dict[str, str],
    error: int | None,
    target: Callable[..., int | None],
    args: tuple[Any, ...],
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if error is not None:
        os.dup2(error, 2)
        os.close(error)
        os.dup2(2, 1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    sys.exit(target(*args))


def _detached(descriptor: Any) -> int:
    number: int = descriptor.detach()
    return number


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the running script: a child would import it, and so run it again if it has no guard."""
    main: Any = sys.modules["__main__"]
    hidden = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let no Ctrl-C reach a child before it can understand one, nor that from which it is forked:
    what starts in the block inherits that such signals wait."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
