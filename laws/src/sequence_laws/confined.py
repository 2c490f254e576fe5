"""What code that is checked may not do: fork processes, reach other machines, ask for a GPU."""

import contextlib
import ipaddress
import os
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

from sequence_laws.clashes import their_lines
from sequence_laws.errors import LawsError

_CUDA = re.compile(
    "not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available|0 active drivers"
    "|CUDA driver initialization failed"
)
"""what torch and triton say where there is no GPU"""


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """A block that forks no process, of which each would go on with what this one does."""
    before, here = getattr(os, "fork", None), threading.get_ident()

    def refused() -> int:
        if before is not None and threading.get_ident() != here:
            return before()
        raise RuntimeError("it forks a process, which nothing that is checked may do")

    if before is not None:
        os.fork = refused
    try:
        yield
    finally:
        if before is not None:
            os.fork = before


@contextlib.contextmanager
def offline() -> Iterator[list[str]]:
    """A block that reaches no other machine; gives the names of those that it tried to reach."""
    tried: list[str] = []
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def check(host: Any) -> None:
        name = host.decode() if isinstance(host, bytes) else str(host or "localhost")
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(name).is_loopback:
                return
        if name != "localhost":
            tried.append(name)
            raise OSError(f"nothing is downloaded here (from {name})")

    def looks_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        check(host)
        return look_up(host, *args, **kwargs)

    def connects(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):  # others are of this machine
            check(address[0])
        connect(self, address)

    socket.getaddrinfo, socket.socket.connect = looks_up, connects  # type: ignore[method-assign, assignment]
    try:
        yield tried
    finally:
        socket.getaddrinfo, socket.socket.connect = look_up, connect  # type: ignore[method-assign]


def needs_cuda(error: BaseException | None) -> str:
    """Sentence on code that asks for a GPU where there is none; "" of any other error."""
    while error is not None:
        if not isinstance(error, LawsError) and _CUDA.search(str(error)):
            asks = their_lines(error)
            at = f" ({asks[-1]})" if asks else ""
            return f"its code needs CUDA{at}: check it on a machine with a GPU"
        error = getattr(error, "first", None) or error.__cause__ or error.__context__
    return ""
