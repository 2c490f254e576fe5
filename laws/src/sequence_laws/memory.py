"""Sizes against the memory there is: what cannot fit is refused before it is claimed.

A machine that runs out of memory does not raise: it swaps, or ends the process without a word. So
whoever can tell beforehand what a job takes asks `check_memory`, and modules are built inside
`within_memory` of everyformer. What an allocator refuses after all, `out_of_memory` puts
into the library's words.
"""

import math
import os
import re
from pathlib import Path

from sequence_laws.errors import LawsError, ResourceError

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

LARGE = 1 << 26
"""bytes from which on a tensor is worth a look at what is free"""
_NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "Overflow when unpacking",
    "Storage size calculation overflowed",
    "negative dimension",
    "array is too big",
)
"""words of allocators, and of what computes sizes for them"""


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocator refused: Python's, numpy's, or torch's on any device."""
    if isinstance(error, LawsError):
        return False
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    taken = isinstance(error, RuntimeError | TypeError | ValueError)
    return taken and any(words in str(error) for words in _NO_MEMORY)


def out_of_memory(what: str, error: BaseException) -> ResourceError:
    """The error for an allocator that refused ``what``, with both numbers."""
    claim = re.search(r"allocate ([\d.]+ ?(?:bytes|[KMG]iB))", str(error))
    claimed = f"{int(claim[1].split()[0]):,} bytes" if claim and "bytes" in claim[1] else ""
    claimed = claimed or (claim[1] if claim else "more")
    return ResourceError(
        f"{what} does not fit into memory: {claimed} at once were requested, but "
        f"{size(free_memory())} are free: choose smaller sizes"
    )


def free_memory() -> float:
    """Bytes that this process may still claim: free on the machine, and in its control group."""
    free = _machine_free()
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        group = Path("/sys/fs/cgroup")
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
            free = min(free, left)
        except (OSError, ValueError):
            # no such group, or "max": no limit of its own
            continue
    return max(0, min(free, _own_limit()))


def check_memory(needed: float, what: str, mend: str) -> None:
    """Refuse ``what`` if it takes more than ``needed`` bytes and there are fewer.

    Raises:
        ResourceError: with both numbers, and ``mend``, what to do.
    """
    if needed >= LARGE and needed > (free := free_memory()):
        raise ResourceError(
            f"{what} needs at least {size(needed)} of memory, but {size(free)} are free: {mend}"
        )


def _machine_free() -> int:
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = next(row.split()[1] for row in rows if row.startswith("MemAvailable"))
        return int(kilobytes) << 10
    except (OSError, StopIteration):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62
        return pages * (os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1)


def _own_limit() -> float:
    """Bytes that `ulimit -v` leaves to this process."""
    if resource is None:
        return math.inf
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY:
        return math.inf
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return most
    return most - pages * resource.getpagesize()


def size(count: float | None) -> str:
    """A count of bytes: '512 B', '1.5 GiB'; '-' where there is none."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
