"""What tests of stores do alike: rows from a seed, stores in one go, killed processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from everyformer.stores.store.record import Origin
from everyformer.stores.store.store import Store
from everyformer.stores.store.writing import Writer

ORIGIN = Origin("model-1", "bytes", "ffn-input:-1", context=64, stride=32, run="runs/one")
WIDTH = 6
SMALL = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "16", "--steps", "3",
         "--batch", "4", "--training.threads", "1")  # fmt: skip
"""words for a model of a moment"""


def rows(count: int, width: int = WIDTH, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal keys (count, width) of float32, and values beyond 16 bits."""
    generator = np.random.default_rng(seed)
    keys = generator.standard_normal((count, width), np.float32)
    return keys, generator.integers(0, 300_000, count)


def write(folder: Path, sizes: dict[str, int], dtype: str = "float32", width: int = WIDTH) -> Store:
    """A store in one go; the rows of a text depend on its name alone."""
    with Writer.create(folder, ORIGIN, width, dtype) as writer:
        for name, size in sizes.items():
            writer.add(*rows(size, width, seed=sum(name.encode())))
        writer.finish()
    return Store.open(folder, ORIGIN)


def every_distance(keys: Tensor, queries: Tensor, distance: str) -> Tensor:
    """All distances (N, n) in float64."""
    keys, q = keys.double(), queries.double()
    if distance == "l2":
        return (q[:, None] - keys).square().sum(-1)
    norms = q.norm(dim=-1)[:, None] * keys.norm(dim=-1)
    return 1 - (q @ keys.T / norms.masked_fill(norms == 0, 1.0))


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of all files by path; locks hold nothing."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def forked(work: Callable[[], object]) -> int:
    """A process that does ``work`` and ends with 0, or 1 after an error."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def ended(child: int) -> int:
    """The exit status of a process, or less the number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(work: Callable[[], object], call: int) -> bool:
    """Whether a process that does ``work`` was killed, before its change ``call`` of the disk."""

    def counted() -> None:
        left = iter(range(call))

        def counting(name: str, real: Callable[..., object]) -> None:
            def wrapper(*given: object, **options: object) -> object:
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **options)

            setattr(os, name, wrapper)

        for name in ("fsync", "replace", "rename", "unlink", "truncate", "mkdir"):
            counting(name, getattr(os, name))
        work()

    return ended(forked(counted)) == -signal.SIGKILL
