"""Memory that was freed is not claimed from the system again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import torch
from everyformer.core.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(20):  # until the heap has settled
    torch.ones(10_000_001)  # 40 MB: glibc always gives so large a block back
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(10_000_001)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    words = [sys.executable, "-c", COUNT, how]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a trait of glibc")
def test_a_block_that_was_freed_is_used_again_without_page_faults() -> None:
    kept, given_back = faults("keep"), faults("give back")
    assert kept * 10 < given_back, (kept, given_back)
