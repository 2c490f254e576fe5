"""Laws that whole models of someone else are held to before they are compared.

A model that sees the future would win every comparison; the laws of members are their own, and
hold in the tests.
"""

from collections.abc import Sequence

from everyformer.core.errors import EveryformerError
from everyformer.family.outside import outside_name
from everyformer.laws.adapters.small_configs import SMALL
from everyformer.laws.judging import judge
from everyformer.laws.targets import target
from everyformer.laws.verdict import LawResult
from everyformer.system.pulse import doing

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
Broken = dict[str, list[LawResult]]
"""laws that do not hold, by member; of a member that has twins by each name"""


def broken_laws(members: Sequence[str], *, causal: bool) -> Broken:
    """The laws that models of someone else break, made small where they take sizes.

    Args:
        causal: whether the task asks that they see the past alone.
    """
    found: Broken = {}
    for name in members:
        model = outside_name(name)
        if model is None:
            continue
        same = next((other for other in found if outside_name(other) == model), None)
        found[name] = found[same] if same else _broken(model, causal)
    return found


def _broken(name: str, causal: bool) -> list[LawResult]:
    claim = None if name.startswith("hf:") else causal
    with doing(f"checking the laws of {name}"):
        try:
            results = [*judge(target(name, SMALL, causal=claim), TRIED)]
        except EveryformerError as error:
            words = f"it cannot be tried small: {error}"
            return [LawResult(name, "laws", "undecided", words)]
    return [one for one in results if one.status in ("failed", "undecided")]


def sentence(one: LawResult) -> str:
    """What is wrong, as a predicate of the model."""
    if one.status == "undecided":
        return f"was not judged by the law of {one.law}: {one.detail}"
    return f"breaks the law of {one.law}: {one.detail}"
