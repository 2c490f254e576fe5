"""Laws that third-party models are held to before they are compared.

A model that sees the future would win every comparison; the laws of members are their own, and
hold in the tests.
"""

import dataclasses
from collections.abc import Sequence

from everyformer.core.errors import EveryformerError
from everyformer.lab.compare.plan import Candidate
from everyformer.system.status import status
from sequence_laws.verdict import LawResult

TRIED = (
    "causality",
    "streaming",
    "padding",
    "batch",
    "lengths",
    "numbers",
    "gradients",
    "determinism",
    "saving",
)
"""all that say right or wrong, but for compiling, which takes long"""


def with_laws(ready: Sequence[Candidate], *, causal: bool) -> list[Candidate]:
    """The same, third-party models with the laws that they break, made small where they
    take sizes; twins are judged once.

    Args:
        causal: whether the task asks that they see the past alone.
    """
    judged: dict[str, tuple[LawResult, ...]] = {}
    for candidate in ready:
        model = None if candidate.config is None else candidate.config.outside
        if model is not None and model not in judged:
            judged[model] = tuple(_broken(model, causal))
    return [
        dataclasses.replace(e, broken=judged.get(str(e.config.outside), ())) if e.config else e
        for e in ready
    ]


def _broken(name: str, causal: bool) -> list[LawResult]:
    from sequence_laws.adapters.small_configs import SMALL
    from sequence_laws.judging import judge
    from sequence_laws.targets import target

    claim = None if name.startswith("hf:") else causal
    with status(f"checking the laws of {name}"):
        try:
            results = [*judge(target(name, SMALL, causal=claim), TRIED)]
        except EveryformerError as error:
            words = f"it cannot be tried small: {error}"
            return [LawResult(name, "laws", "undecided", words)]
    return [one for one in results if one.status in ("failed", "undecided")]


def sentence(one: LawResult) -> str:
    """A broken law as a predicate of the model."""
    if one.status == "undecided":
        return f"was not judged by the law of {one.law}: {one.detail}"
    return f"breaks the law of {one.law}: {one.detail}"
