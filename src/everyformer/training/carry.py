"""`TextCarry`: the state that a model with a memory carries from step to step.

The rows of a step are a function of its number. Those of a text that such a model reads go on where
the last step's ended.
"""

from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.modules import memories_of
from everyformer.core.state import StackState, filled, named_tensors, present_names
from everyformer.data.dataset import Dataset
from everyformer.training.parallel.world import World


class TextCarry:
    """The states of a batch's rows; row b of every step goes on where row b of the last ended.

    Each process has those of its own rows, in as many pieces as it works them through. What is
    saved are those of all, so that other pieces and processes can continue them.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model: Any = model
        self._world = world
        self._pieces: dict[tuple[int, int], StackState] = {}
        self._saved: StackState | None = None

    def of(self, start: int, stop: int) -> StackState:
        """The state that the step's rows from ``start`` up to ``stop`` go on from."""
        state = self._pieces.get((start, stop))
        if state is not None:
            return state
        if self._saved is not None and stop <= len(self._saved.num_tokens):
            return self._saved.reorder(torch.arange(start, stop))
        made: StackState = self._model.init_state(stop - start)
        return made

    def take(self, start: int, stop: int, state: StackState | None) -> None:
        """Take over the state that these rows came to."""
        assert state is not None
        overlapping = [rows for rows in self._pieces if rows[0] < stop and start < rows[1]]
        for rows in overlapping:
            del self._pieces[rows]
        self._pieces[start, stop] = state.detach()

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step needs, to be saved; all processes have to ask."""
        own = [named_tensors(self._pieces[rows]) for rows in sorted(self._pieces)]
        every = [part for parts in self._world.gathered(own) for part in parts]
        return {name: torch.cat([part[name].cpu() for part in every]) for name in every[0]}

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave."""
        tensors = present_names(tensors)
        initial = self._model.init_state(len(tensors["num_tokens"]))
        self._saved = filled(initial, tensors).to(next(self._model.parameters()).device)


def carry_of(model: nn.Module, dataset: Dataset, world: World) -> TextCarry | None:
    """The state that the training of a model on this data carries; None where nothing is."""
    if not memories_of(model) or dataset.running_text is None:
        return None
    return TextCarry(model, world)
