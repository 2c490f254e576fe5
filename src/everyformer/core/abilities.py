"""Protocols of what few mixers can do; callers test them with ``isinstance``."""

from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from torch import Tensor

from everyformer.core.chosen import Chosen
from everyformer.core.mask import Mask
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State


class Picture(NamedTuple):
    """Layout of a picture's tokens."""

    grid: tuple[int, int]
    """rows and columns; a column is a channel of a pixel where these are tokens"""
    tile: tuple[int, int] | None
    """rows and columns of the blocks that are drawn one after the other; None: raster order"""
    causal: bool
    """whether the mixer sees earlier tokens alone"""


@runtime_checkable
class FitsPictures(Protocol):
    """Classes of mixers whose options depend on the shape of pictures."""

    def for_pictures(self, options: Any, picture: Picture) -> Any:
        """``options`` as they are in a model of such pictures: what they leave open is filled in.

        A class method. Raises `GeneError` for options that are for other pictures.
        """


@runtime_checkable
class Narrows(Protocol):
    """Mixers whose windows stages of a training begin narrow."""

    def narrow(self, by: int) -> None:
        """See only a ``by``-th of what the windows show, until the next call; 1 is all of it."""


@runtime_checkable
class Leads(Protocol):
    """Mixers that want learned tokens in front of every text, for all layers of a stack."""

    lead: int
    """how many"""


@runtime_checkable
class TakesIn(Protocol):
    """Mixers that extend a state with less work than computing outputs."""

    def take_in(self, x: Tensor, mask: Mask | None, state: State) -> State:
        """The state after ``x`` (batch, length, width); see `Mixer.extend`."""


@runtime_checkable
class AnswersSome(Protocol):
    """Mixers that give outputs for some of their tokens, at the cost of those and of all keys."""

    answers_some: bool
    """whether it can as it is built; else all outputs are computed and some are picked"""

    def answer(
        self, x: Tensor, chosen: Chosen, mask: Mask | None, state: State | None
    ) -> MixerOutput:
        """As `Mixer.forward` of ``x`` (batch, length, width), whose outputs (rows, n, width) are
        those of the tokens ``chosen``."""


def answers_some(mixer: object) -> TypeGuard[AnswersSome]:
    """True if a mixer gives outputs for some of its tokens at less than the cost of all."""
    return isinstance(mixer, AnswersSome) and mixer.answers_some
