"""`Carry`: what a training carries from step to step beside weights, and where its rows come from.

Of most models nothing: the rows of a step are a function of its number. A model with a memory reads
texts that go on (`TextCarry`), a policy what it did itself (`everyformer.training.rollouts`).
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from everyformer.core.state import StackState, filled, named_tensors
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.data.streams import training_segment
from everyformer.data.text import TextDataset


class Carry(ABC):
    """Rows of every step, and what they go on from; a checkpoint saves what `tensors` gives."""

    @abstractmethod
    def batch(self, dataset: Dataset, step: int, size: int, seed: int) -> Batch:
        """The ``size`` rows of a step; steps are asked for one after the other."""

    @abstractmethod
    def of(self, number: int, rows: int) -> StackState:
        """The state that slice ``number`` of the step's rows, of ``rows`` rows, goes on from."""

    @abstractmethod
    def take(self, number: int, state: StackState | None) -> None:
        """Take over the state that slice ``number`` came to."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that the next step needs, to be saved."""

    @abstractmethod
    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave."""

    def counted(self, positions: int) -> int:
        """Tokens that a budget counts of the last step, which computed so many positions."""
        return positions

    def report(self) -> dict[str, float]:
        """Numbers of its own for the curves."""
        return {}

    def close(self) -> None:  # noqa: B027 (a hook)
        """Let go of what was opened."""


class TextCarry(Carry):
    """The states of a batch's slices; row b of every step goes on where row b of the last ended."""

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self.states: dict[int, StackState] = {}

    def batch(self, dataset: Dataset, step: int, size: int, seed: int) -> Batch:
        assert isinstance(dataset, TextDataset)
        return training_segment(dataset, step, size)

    def of(self, number: int, rows: int) -> StackState:
        state = self.states.get(number)
        if state is None or state.seen.shape[0] != rows:
            state = self._model.init_state(rows)
        return state

    def take(self, number: int, state: StackState | None) -> None:
        assert state is not None
        self.states[number] = state.detach()

    def tensors(self) -> dict[str, Tensor]:
        return named_tensors([self.states[n] for n in sorted(self.states)])

    def fill(self, tensors: dict[str, Tensor]) -> None:
        count = len({name.split(".")[0] for name in tensors})
        for number in range(count):
            prefix = f"{number}."
            own_tensors = {
                k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
            }
            device = next(self._model.parameters()).device
            initial = self._model.init_state(own_tensors["seen"].shape[0])
            self.states[number] = filled(initial, own_tensors).to(device)
