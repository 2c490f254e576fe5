"""Sizes of what is worked on at once: the cache of a CPU, and more elsewhere.

A GPU takes as long to begin an operation as to compute a million numbers, and has no cache to stay
within; ``meta`` stands for whatever comes later and counts as a CPU does.
"""

import torch

MORE = 16
"""times as much where operations are begun from afar"""


def at_once(numbers: int, device: torch.device) -> int:
    """``numbers`` that a CPU works on at once, or more on another device."""
    return numbers if device.type in ("cpu", "meta") else MORE * numbers
