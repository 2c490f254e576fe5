"""Processes that start at once: forked from one that holds what they import (`multiprocessing`).

That one is started with the first of them, and ends with this process. Where a system cannot fork
safely, each imports for itself.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from typing import Any

FORKS = sys.platform not in ("win32", "darwin")


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
        context.set_forkserver_preload(list(imports))
    error = None if sys.platform == "win32" else Descriptor(2)
    words = (os.getcwd(), dict(os.environ), error, target, args)
    child: BaseProcess = context.Process(target=_call, args=words, daemon=daemon)
    with _without_main(), _without_interrupts():
        child.start()
    return child


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
