"""The least time that a step of one token could take here: what it reads, and what it begins.

    limit = max(bytes read / bandwidth, operations * 2 us)

The bandwidth is measured in the same process with the same threads, and 2 us are what an operation
takes to begin on a CPU. A token should take no more than a few times its limit.
"""

import functools

import torch

from everyformer.lab.bench.timing import seconds_of
from sequence_laws.operations import Counter

BEGIN = 2e-6
"""seconds that an operation takes before it computes"""
LARGE = 1 << 25
"""numbers that are read to measure a bandwidth: 128 MiB, more than caches hold"""
TRIES = 7


def least_seconds(counted: Counter, device: str) -> float:
    """The limit of the operations that were ``counted``."""
    return max(counted.read / bandwidth(device), counted.operations * BEGIN)


@functools.cache
def bandwidth(device: str) -> float:
    """Bytes a second that a sum over much memory reads, the best of several."""
    numbers = torch.ones(LARGE, device=device)
    best = min(seconds_of(numbers.sum, device) for _ in range(TRIES))
    return numbers.numel() * numbers.element_size() / best
