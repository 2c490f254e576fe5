"""Settings of a process: how its threads wait, and what becomes of the memory that it frees.

Threads of OpenMP that wait for the next part of their work spin only briefly. By its own rule a
waiting thread turns in a loop, about 300,000 times, before it sleeps. That is the quickest on a
machine that does nothing else, and the slowest with other work: the thread that is waited for
cannot run while those that wait use up the cores. With 10,000 turns a training on two cores was
measured to be as quick when it was alone, and half as quick again with one or two busy processes.
The library reads this once, when torch is loaded.

The memory that a process frees stays its own, so that the next step need not claim it again. glibc
hands every large block back to the system when it is freed; the same block of the next step is then
cleared and mapped page by page, 20,000 page faults a pass for a mixer over 8,192 tokens, a third of
its time. Users of torch on CPUs preload another allocator for this; two settings of the one that is
there do the same for blocks up to 32 MB. Larger ones are worth their page faults, and would leave
holes that few others fit. Elsewhere than under glibc nothing is changed.
"""

import ctypes
import os
import sys

SPINS = "10000"
CHOSEN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""what a user may have set; then that holds"""


def wait_briefly() -> bool:
    """Let waiting threads spin briefly, in this process and those it starts; whether it was done.

    Not once torch is loaded, nor where the user has chosen.
    """
    if "torch" in sys.modules or any(name in os.environ for name in CHOSEN):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPINS
    return True


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8
"""mallopt's names (malloc.h)"""
_NEVER = 2**31 - 1
_SMALL = 2**16
"""bytes; what is smaller matters to no peak"""
_LARGE = 2**25
"""bytes; also the largest threshold that every glibc takes on 64 bits"""


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process; whether the system's allocator can do so."""
    library = _glibc()
    return library is not None and _set(library, _LARGE, _NEVER)


def return_freed_memory() -> bool:
    """Give back what is free, and from now on all but small blocks when they are freed, so that the
    memory of this process is that in use; whether the system's allocator can do so.

    Threads that begin later share one heap, which is exact where nothing else is called before.
    """
    library = _glibc()
    if library is None:
        return False
    done = bool(library.mallopt(_ARENAS, 1)) and _set(library, _SMALL, 0)
    library.malloc_trim(0)
    return done


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def _set(library: ctypes.CDLL, mapped_from: int, trimmed_from: int) -> bool:
    """Blocks of so many bytes are mapped one by one; so many free ones stay at the heap's end."""
    mallopt = library.mallopt
    return bool(mallopt(_MMAP_THRESHOLD, mapped_from) and mallopt(_TRIM_THRESHOLD, trimmed_from))
