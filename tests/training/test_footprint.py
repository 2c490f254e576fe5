"""What a training surely takes: weights with gradients and moments, tokens, a slice's vectors."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from everyformer.core.errors import ResourceError
from everyformer.core.tasks import TASKS
from everyformer.training.checks import check_footprint, check_reading
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.world import World

MIB = 1 << 20
CASES = [
    # trained weights, frozen ones, length, width, batch, accumulate, bytes, what is refused
    # float32 weights: 4 bytes each, of which a gradient and two moments are held beside
    (32 * MIB, 0, 1, 1, 1, 1, 3 * 4 * 32 * MIB, "training this model"),
    (32 * MIB, 99 * MIB, 1, 1, 1, 1, 3 * 4 * 32 * MIB, "training this model"),
    # inputs and targets of 8 bytes each, and 64 numbers of 4 bytes for every token of a slice
    (0, 0, 1024, 64, 1024, 1, 16 * MIB + 256 * MIB, "a batch of 1,024 sequences of 1,024 tokens"),
    (0, 0, 1024, 64, 1024, 4, 16 * MIB + 64 * MIB, "a batch of 1,024 sequences of 1,024 tokens"),
    (MIB, 0, 1024, 64, 1024, 4, 12 * MIB + 16 * MIB + 64 * MIB, "a batch of 1,024 sequences"),
]


class Weights(nn.Module):
    def __init__(self, trained: int, frozen: int, width: int) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.empty(trained, device="meta"))
        self.frozen = nn.Parameter(torch.empty(frozen, device="meta"), requires_grad=False)
        self.config = SimpleNamespace(width=width)


@pytest.mark.parametrize(
    ("trained", "frozen", "length", "width", "batch", "accumulate", "needed", "what"), CASES
)
def test_a_training_is_refused_below_what_it_surely_takes(
    trained, frozen, length, width, batch, accumulate, needed, what, monkeypatch
):
    data: Any = SimpleNamespace(does=TASKS["lm"], length=length)
    config = TrainingConfig(batch=batch, accumulate=accumulate)
    model, world = Weights(trained, frozen, width), World(torch.device("cpu"))
    # inputs, targets and one vector of the single token that the first cases read
    room = needed + (16 + 4 if length == 1 else 0)
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: room)
    check_footprint(model, data, config, world)
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: needed - 1)
    with pytest.raises(ResourceError, match=f"{what}.* needs at least "):
        check_footprint(model, data, config, world)


def test_so_are_more_windows_of_a_text_than_there_is_room_for(monkeypatch):
    data: Any = SimpleNamespace(length=1024)
    model, cpu, needed = Weights(0, 0, 64), torch.device("cpu"), 512 * 1024 * (2 * 8 + 64 * 4)
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: needed)
    check_reading(model, data, 512, cpu)
    monkeypatch.setattr("sequence_laws.memory.free_memory", lambda: needed - 1)
    with pytest.raises(ResourceError, match="reading 512 windows of 1,024 tokens at once needs"):
        check_reading(model, data, 512, cpu)
