"""One function a law, for tests: each raises `LawBroken` (an AssertionError) with its evidence, or
returns what was tried or why the law does not apply.

``model`` is a module or a `Subject`; ``known`` are ``causal``, ``vocabulary``, ``width``,
``inputs`` and ``name``, as those of `everyformer.laws.check`.
"""

from typing import Any

from torch import nn

from everyformer.laws.adapters import subject_of
from everyformer.laws.growth import growth
from everyformer.laws.judging import LAWS, known_claim, one_thread
from everyformer.laws.subject import Subject
from everyformer.laws.verdict import NotJudged

Model = nn.Module | Subject


def check_causality(model: Model, **known: Any) -> str:
    """No output moves, or has a gradient, by later inputs."""
    return _held("causality", model, known)


def check_streaming(model: Model, **known: Any) -> str:
    """Pieces with a cache give what one pass gives."""
    return _held("streaming", model, known)


def check_padding(model: Model, **known: Any) -> str:
    """Padding does not matter, whatever stands in it; a padded row is the row alone."""
    return _held("padding", model, known)


def check_packing(model: Model, **known: Any) -> str:
    """A document in a row of several is the document alone."""
    return _held("packing", model, known)


def check_batch(model: Model, **known: Any) -> str:
    """A row is what it is in any company and order."""
    return _held("batch", model, known)


def check_lengths(model: Model, **known: Any) -> str:
    """One input, odd lengths, one too many: a right answer or a clear error."""
    return _held("lengths", model, known)


def check_numbers(model: Model, **known: Any) -> str:
    """Finite at large inputs; bfloat16 leaves a digit."""
    return _held("numbers", model, known)


def check_gradients(model: Model, **known: Any) -> str:
    """Every parameter gets a gradient."""
    return _held("gradients", model, known)


def check_order(model: Model, **known: Any) -> str:
    """Says whether the order of inputs matters; never raises."""
    return _held("order", model, known)


def check_determinism(model: Model, **known: Any) -> str:
    """Equal inputs and random numbers give equal outputs."""
    return _held("determinism", model, known)


def check_saving(model: Model, **known: Any) -> str:
    """Weights that are written and read give equal outputs."""
    return _held("saving", model, known)


def check_compiles(model: Model, **known: Any) -> str:
    """Compiled outputs are those of the model."""
    return _held("compiles", model, known)


def check_growth(model: Model, claims: str | float | None = None, **known: Any) -> str:
    """Operations and bytes grow with length no faster than ``claims``; None: says how."""
    return _held("growth", model, known, known_claim(claims))


def _held(law: str, model: Model, known: dict[str, Any], *claim: float | None) -> str:
    subject = model if isinstance(model, Subject) else subject_of(model, **known)
    try:
        with one_thread():
            return growth(subject, *claim) if law == "growth" else LAWS[law](subject)
    except NotJudged as reason:
        return f"{reason.status}: {reason}"
