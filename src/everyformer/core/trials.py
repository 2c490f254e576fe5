"""`Trials`: options on which the laws try an alternative of a gene.

They are with the class, as its attribute ``trials``, so that whoever registers an alternative,
in this package or in another, says with it how it is put to the test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

WIDTH, HEADS, LONGEST = 12, 3, 40
"""channels, heads and longest text of what is tried"""
LENGTH = 11
"""of the texts (2, 11, 12) that limits are compared on"""
OptionSets = tuple[Mapping[str, Any], ...]
"""options of `create_model`, once for each trial"""
Side = Callable[[Tensor], Tensor]
Pair = tuple[str, Side, Side]
"""what a limit is, and its two sides"""


class Make(Protocol):
    """Makes the two sides of a limit, of the sizes, device, dtype and direction of the check."""

    def __call__(self, name: str, **options: Any) -> Any:
        """A mixer, from its name and options."""

    def model(self, name: str, **options: Any) -> Any:
        """A causal language model of a member."""


Limits = Callable[[Make], list[Pair]]


@dataclass(frozen=True)
class Trials:
    """Trials of a member; it takes each field from the first of its alternatives that fills
    it: a mixer other than attention alone, else memory, position and attention."""

    variants: OptionSets = ()
    """options that take another path, causal and bidirectional where the member can be (a form
    without any is tried at its defaults)"""
    causal: OptionSets = ()
    """those that only the causal form has"""
    bidirectional: OptionSets = ()
    """those that only the bidirectional form has"""
    inside: OptionSets = ()
    """of a position: options with which plain attention is tried with it"""
    small: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """task -> options by which all that a model of it has is in use on twelve tokens"""
    limits: Limits | None = None
    """where a paper has a limit in which the member equals a simpler one: both sides"""


def output(mixer: Any) -> Side:
    """Output of a mixer for a text."""
    return lambda x: mixer(x).y


def are_attention(
    name: str, cases: Mapping[str, Mapping[str, Any]], then: Callable[[Any], None] | None = None
) -> Limits:
    """Limits in which a mixer that has attention's weights is attention: its options, by name.

    ``then`` is called with each such mixer, to set what attention has not.
    """

    def limits(make: Make) -> list[Pair]:
        plain, pairs = make("attention"), []
        for what, options in cases.items():
            mixer = make(name, **options)
            mixer.load_state_dict(plain.state_dict(), strict=False)
            if then is not None:
                then(mixer)
            pairs.append((f"{what} is attention", output(mixer), output(plain)))
        return pairs

    return limits


def in_two(mixer: Any) -> Side:
    """The same in two segments, the second with the state that the first left."""

    def run(x: Tensor) -> Tensor:
        state = mixer.init_state(len(x), device=x.device, dtype=x.dtype)
        first = mixer(x[:, :4], state=state)
        return torch.cat([first.y, mixer(x[:, 4:], state=first.state).y], 1)

    return run


def near(what: str, bound: float, got: Side, expected: Side) -> Pair:
    """A limit that is near: what exceeds ``bound`` times the largest expected value is 0."""

    def excess(x: Tensor) -> Tensor:
        reference = expected(x)
        return ((got(x) - reference).abs() / reference.abs().amax() - bound).clamp(min=0)

    return what, excess, torch.zeros_like
