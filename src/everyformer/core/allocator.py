"""The memory that a process frees stays its own, so that the next step need not claim it again.

glibc hands every large block back to the system when it is freed; the same block of the next step
is then cleared and mapped page by page, 20,000 page faults a pass for a mixer over 8,192 tokens,
a third of its time. Users of torch on CPUs preload another allocator for this; two settings of the
one that is there do the same for blocks up to 32 MB. Larger ones are worth their page faults, and
would leave holes that few others fit. Elsewhere than under glibc nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""mallopt's names (malloc.h)"""
_NEVER = 2**31 - 1
_LARGE = 2**25
"""bytes; also the largest threshold that every glibc takes on 64 bits"""


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process; whether the system's allocator can do so."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    mallopt = library.mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGE) and mallopt(_TRIM_THRESHOLD, _NEVER))
