"""What a model with a memory carries from training step to training step."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from everyformer.core.errors import ConfigError
from everyformer.core.state import StackState, filled, named_tensors
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.data.streams import training_segment
from everyformer.data.text import TextDataset
from everyformer.memory.base import memories_of
from everyformer.training.distributed import World


class Carry:
    """The states of a batch's slices; row b of every step goes on where row b of the last ended."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self.states: dict[int, StackState] = {}

    def of(self, number: int, rows: int) -> StackState:
        """The state that slice ``number``, of ``rows`` rows, goes on from."""
        state = self.states.get(number)
        if state is None or state.seen.shape[0] != rows:
            state = self._model.init_state(rows)
        return state

    def take(self, number: int, state: StackState | None) -> None:
        """Keep what slice ``number`` came to, cut from the graph."""
        assert state is not None
        self.states[number] = state.detach()

    def tensors(self) -> dict[str, Tensor]:
        """All states, to be saved."""
        return named_tensors([self.states[n] for n in sorted(self.states)])

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave."""
        count = len({name.split(".")[0] for name in tensors})
        for number in range(count):
            prefix = f"{number}."
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            device = next(self._model.parameters()).device
            begun = self._model.init_state(own["seen"].shape[0])
            self.states[number] = filled(begun, own).to(device)


def carry_of(model: nn.Module, dataset: Dataset, world: World) -> Carry | None:
    """What carries the model's memory over this data; None where nothing is carried.

    Raises:
        ConfigError: several processes, each of which would have to save its own memory.
    """
    if not memories_of(model) or not isinstance(dataset, TextDataset):
        return None
    if world.size > 1:
        raise ConfigError(
            f"a model with a memory is trained by one process, not {world.size}: each row's memory "
            "would lie with another one. Start it without torchrun"
        )
    return Carry(model)


def training_batch(dataset: Dataset, carry: Carry | None, step: int, size: int, seed: int) -> Batch:
    """The rows of a step: at random positions, or the next segments of texts that go on."""
    if carry is None:
        return dataset.train_batch(step, size, seed)
    assert isinstance(dataset, TextDataset)
    return training_segment(dataset, step, size)
