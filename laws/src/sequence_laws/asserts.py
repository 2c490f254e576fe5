"""One function a law, for tests: `check_causality`, `check_padding` and so on, by their names.

Each raises `LawBroken` (an AssertionError) with its evidence, or returns what was tried or why the
law does not apply. ``model`` is a module or a `Subject`; ``known`` are ``causal``, ``vocabulary``,
``width``, ``inputs`` and ``name``, as those of `sequence_laws.check`, and ``claims`` of
`check_cost`, without which it says what it found.
"""

from typing import Any, Protocol

from torch import nn

from sequence_laws.adapters import subject_of
from sequence_laws.cost import cost
from sequence_laws.judging import LAWS, kept, known_claim, one_thread
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable


class Assertion(Protocol):
    """A law that a test asserts of a model."""

    def __call__(
        self, model: nn.Module | Subject, claims: str | float | None = None, **known: Any
    ) -> str: ...


def __getattr__(name: str) -> Assertion:
    law = name.removeprefix("check_")
    if law == name or law not in LAWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def check(model: nn.Module | Subject, claims: str | float | None = None, **known: Any) -> str:
        claim, subject = known_claim(claims, (law,)), subject_of(model, **known)
        try:
            with one_thread():
                return cost(subject, claim) if law == "cost" else kept(subject, law, LAWS[law])
        except Inapplicable as reason:
            return f"{reason.status}: {reason}"

    check.__name__, check.__doc__ = name, LAWS[law].__doc__
    return check
