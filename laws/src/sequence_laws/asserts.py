"""One function a law, for tests: each raises `LawBroken` (an AssertionError) with its evidence, or
returns what was tried or why the law does not apply.

``model`` is a module or a `Subject`; ``known`` are ``causal``, ``vocabulary``, ``width``,
``inputs`` and ``name``, as those of `sequence_laws.check`.
"""

from typing import Any, Protocol

from torch import nn

from sequence_laws.adapters import subject_of
from sequence_laws.cost import cost
from sequence_laws.judging import LAWS, known_claim, one_thread
from sequence_laws.subject import Subject
from sequence_laws.verdict import NotJudged

Model = nn.Module | Subject


class Assertion(Protocol):
    """A law that a test asserts of a model."""

    def __call__(self, model: Model, **known: Any) -> str: ...


def _assertion(law: str, words: str) -> Assertion:
    def check(model: Model, **known: Any) -> str:
        return _held(law, model, known)

    check.__name__ = check.__qualname__ = f"check_{law}"
    check.__doc__ = words
    return check


check_causality = _assertion("causality", "No output moves, or has a gradient, by later inputs.")
check_streaming = _assertion("streaming", "Pieces with a cache give what one pass gives.")
check_padding = _assertion(
    "padding", "Padding does not matter, whatever stands in it; a padded row is the row alone."
)
check_packing = _assertion("packing", "A document in a row of several is the document alone.")
check_batch = _assertion("batch", "A row is what it is in any company and order.")
check_lengths = _assertion(
    "lengths", "One input, odd lengths, one too many: a right answer or a clear error."
)
check_numbers = _assertion("numbers", "Finite at large inputs; bfloat16 leaves a digit.")
check_gradients = _assertion("gradients", "Every parameter gets a gradient.")
check_order = _assertion("order", "Says whether the order of inputs matters; never raises.")
check_determinism = _assertion("determinism", "Equal inputs and random numbers give equal outputs.")
check_saving = _assertion("saving", "Weights that are written and read give equal outputs.")
check_compiles = _assertion("compiles", "Compiled outputs are those of the model.")


def check_cost(model: Model, claims: str | float | None = None, **known: Any) -> str:
    """Operations and bytes grow with length no faster than ``claims``; None: says how."""
    return _held("cost", model, known, known_claim(claims))


def _held(law: str, model: Model, known: dict[str, Any], *claim: float | None) -> str:
    subject = subject_of(model, **known)
    try:
        with one_thread():
            return cost(subject, *claim) if law == "cost" else LAWS[law](subject)
    except NotJudged as reason:
        return f"{reason.status}: {reason}"
