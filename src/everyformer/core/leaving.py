"""Whether a graph leaves torch: for ONNX, say, whose operators are fewer."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_stays: ContextVar[bool] = ContextVar("stays", default=False)


def leaves_torch() -> bool:
    """True where `torch.export` traces a graph for others, whose length it may leave open."""
    return torch.compiler.is_exporting() and not _stays.get()


@contextmanager
def stays_in_torch() -> Iterator[None]:
    """Within it what is traced runs in torch, so that every form of an operator may be taken."""
    token = _stays.set(True)
    try:
        yield
    finally:
        _stays.reset(token)
