"""Options of pixel models, of summaries and of models that act (plain data, no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import (
    Affects,
    Amount,
    Count,
    Part,
    Positive,
    Real,
    Unless,
    When,
    Whole,
)  # fmt: skip
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError


@dataclass(frozen=True)
class PixelOptions(Options):
    order: Literal["raster", "blocks"] = "raster"
    """row by row, or block by block and row by row inside each (Image Transformer, 2-D)"""
    tile: Annotated[tuple[Count, Count], When("order", "blocks")] = (4, 12)
    """rows and columns of a block; columns count tokens, of colours three a pixel (one with
    mixture); those at the edges are cut off"""
    shift: Literal["order", "block"] = "order"
    """what is read to predict a token: the one made before it; or that of its own block, the first
    reading nothing, as in tensor2tensor, where the last of a block is then never read"""
    output: Literal["categorical", "mixture"] = "categorical"
    """256 numbers for each channel of a pixel; or a token for the whole pixel and a mixture of
    discretised logistics over its channels (PixelCNN++)"""
    mixtures: Annotated[Count, When("output", "mixture")] = 10
    """components of a mixture"""
    tables: Literal["shared", "channel"] = "shared"
    """one table of 256 intensities, or one for each channel"""
    places: Literal["learned", "sinusoids"] = "learned"
    """learned vectors of row, column and channel, added up; or fixed waves of the row in half the
    width, and of column x channels + channel in the other"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift == "block" and self.order != "blocks":
            raise ConfigError("`pixels.shift='block'` needs `pixels.order='blocks'`")


@dataclass(frozen=True)
class SummaryOptions(Options):
    per: Literal["tokens", "sentence"] | None = None
    """a global token for every so many tokens of a text, or for every sentence; none: no such"""
    every: Annotated[Count, When("per", "tokens")] = 16
    """how many tokens each stands for (per tokens)"""
    ends: tuple[Whole, ...] = ()
    """tokens that end a sentence, of which several may follow each other (per sentence; default: in
    a run those of the data whose text ends with a full stop, ! or ?, or a line, and what separates
    documents; of bytes 0 10 33 46 63)"""
    cpc: Amount = 0.0
    """in training, weight of the loss by which the global tokens of hidden sentences foretell those
    of the same sentences in full, among all sentences that are computed together: those of one
    slice of one process; beside 1 of the hidden tokens (mlm; as far as is recalled, 0.25 is the
    paper's 0.8 to 0.2)"""
    cpc_share: Annotated[Part, Unless("cpc", 0)] = 0.15
    """probability that a sentence is hidden for it"""
    cpc_temperature: Annotated[Positive, Unless("cpc", 0)] = 1.0
    """what its inner products are divided by"""
    cpc_stop: Annotated[bool, Unless("cpc", 0)] = False
    """whether no gradient goes through the sentences in full"""
    mask_token: Whole | None = None
    """the token that stands for hidden ones (default: in a run the data's, else the last)"""

    def most(self, length: int) -> int:
        """Global tokens that a text of ``length`` tokens has at most."""
        if self.per is None:
            return 0
        return -(-length // self.every) if self.per == "tokens" else length


STEPS = 1000
"""timesteps that a model knows at least"""


@dataclass(frozen=True)
class DecisionOptions(Options):
    """Options of reading episodes and choosing actions (decision)."""

    body: Literal["layers", "mlp"] = "layers"
    """what reads a window: the layers, as tokens; or, as a baseline, a plain network of as many
    hidden layers, ReLU between, that reads the states side by side (behaviour cloning)"""
    variant: Annotated[Literal["gym", "atari"], When("body", "layers")] = "gym"
    """gym: each of a step's tokens has the step's own embedding of time, and a norm follows; atari:
    tanh of every embedding, a learned vector for every place in the window, one embedding of time
    for all of it, that of its first step"""
    return_to_go: Annotated[bool, When("body", "layers")] = True
    """whether the return that is still to come is read; no is the baseline without"""
    tanh: bool | None = None
    """whether actions that are numbers come out of a tanh, between their bounds (default: where all
    are bounded)"""
    table: Count | None = None
    """timesteps that have an embedding; an episode is no longer (default: 1,000, or as many as the
    longest episode of the data has)"""
    state_weight: Annotated[Amount | None, When("body", "layers")] = None
    """there is a head that predicts the next state from each action, whose squared error counts so
    much in the loss (none: there is no such head; of states that are numbers)"""
    return_weight: Annotated[Amount | None, When("body", "layers")] = None
    """the same of the return-to-go of the next step"""


@dataclass(frozen=True)
class EpisodeShape(Options):
    """Shape of the states and actions of some data (decision)."""

    state: tuple[Count, ...] = (1,)
    """(numbers,), or (channels, height, width) of a picture in bytes; () of whole numbers"""
    state_values: Count | None = None
    """how many values a state has that is a whole number"""
    state_mean: tuple[Real, ...] = ()
    """mean of each number over the training data (default: 0)"""
    state_std: tuple[Positive, ...] = ()
    """standard deviations of the same (default: 1)"""
    actions: Count = 2
    """how many numbers an action is, or how many there are to choose from"""
    discrete: bool = True
    """whether one of so many is chosen"""
    low: tuple[Real, ...] = ()
    """smallest values of the numbers of an action, or one for all; (): they are not all bounded"""
    high: tuple[Real, ...] = ()
    """largest values likewise"""
    scale: Positive = 1.0
    """what returns-to-go are divided by"""
    context: Count = 20
    """steps that are read at once (K)"""
    longest: Annotated[Count, Affects("nothing")] = 1
    """steps of the longest episode"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (not self.state) != (self.state_values is not None):
            raise ConfigError(
                f"states have the shape {self.state} and {self.state_values} values: whole numbers "
                "have values and no shape, others the reverse"
            )
        numbers = self.state[0] if len(self.state) == 1 else 0
        for name in ("state_mean", "state_std"):
            known = getattr(self, name)
            if known and len(known) != numbers:
                raise ConfigError(f"{name} has {len(known)} numbers, but states have {numbers}")
        if len(self.low) != len(self.high) or len(self.low) not in (0, 1, self.actions):
            raise ConfigError(
                f"low has {len(self.low)} numbers and high {len(self.high)}, but actions have "
                f"{self.actions}"
            )

    def misfit(self, other: EpisodeShape) -> str | None:
        """Reason why episodes of another shape are not of this kind; None if they are."""
        for what, mine, theirs in (
            ("states", self.states_are, other.states_are),
            ("actions", self.actions_are, other.actions_are),
        ):
            if mine != theirs:
                return f"the {what} are {theirs}, but the model was trained on {mine}"
        return None

    @property
    def states_are(self) -> str:
        """States, in words."""
        if self.state_values is not None:
            return f"whole numbers below {self.state_values}"
        sizes = "x".join(map(str, self.state))
        return f"{sizes} numbers" if len(self.state) == 1 else f"pictures of {sizes}"

    @property
    def actions_are(self) -> str:
        """Actions, in words."""
        return f"one of {self.actions}" if self.discrete else f"{self.actions} numbers"
