"""Memory that was freed stays with the process."""

import mmap
import platform
import subprocess
import sys

import pytest

LEFT = """
import sys
import torch
from everyformer.system.process import keep_freed_memory

def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])

if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.ones(10)
before = resident()
torch.ones(5_000_000)
print(resident() - before)
"""
PAGES = 5_000_000 * 4 // mmap.PAGESIZE


def pages_left(how: str) -> int:
    """Pages of a freed block of 20 MB that the process still holds."""
    words = [sys.executable, "-c", LEFT, how]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a trait of glibc")
def test_a_block_that_was_freed_is_given_back_unless_it_is_kept() -> None:
    assert pages_left("give back") < PAGES / 2
    assert pages_left("keep") > PAGES * 0.9
