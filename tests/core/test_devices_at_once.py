"""What is worked on at once: a cache's worth on a CPU, more elsewhere."""

import pytest
import torch

from everyformer.core.devices import at_once
from everyformer.engines.kernel.chunks import CHUNK, segment_count, segment_length


@pytest.mark.parametrize(("kind", "numbers"), [("cpu", 100), ("meta", 100), ("cuda", 1600)])
def test_another_device_works_on_more_at_once(kind, numbers):
    assert at_once(100, torch.device(kind)) == numbers


def test_segments_are_longer_elsewhere_and_there_are_as_many_as_they_need():
    cpu, other = torch.device("cpu"), torch.device("cuda")
    assert segment_length(64, 63, cpu) == 16 * CHUNK
    assert segment_length(64, 63, other) == 256 * CHUNK
    assert [segment_count(16 * CHUNK + 1, 64, 63, each) for each in (cpu, other)] == [2, 1]
