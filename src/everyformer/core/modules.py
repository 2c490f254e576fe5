"""Properties of any module that trainings and verbs read: its mode, the memory of its layers."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Remembering(nn.Module):
    """A part of a layer that carries rows from one segment of a text to the next."""

    slots: int
    """rows of the past that a layer keeps; may be changed for evaluation"""

    @property
    def ahead(self) -> int:
        """Number of tokens that an evaluation of windows reads before each."""
        raise NotImplementedError


def memories_of(model: nn.Module) -> list[Remembering]:
    """The memories of a model's layers, first layer first; none of most models."""
    return [module for module in model.modules() if isinstance(module, Remembering)]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """``model`` is in evaluation mode while the block runs, and then in the mode it was in."""
    if not model.training:
        # setting the mode of every module takes as long as a layer on one token
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
