"""Ways in which a member's mixer is computed on this machine, call by call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everyformer.core.dispatch import Way, all_pairs_allowed, watched
from everyformer.core.mixer import DROPOUT, Mixer
from everyformer.family import info
from everyformer.genes.mixers import MIXERS
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_mixers

WIDTH = 32


def ways_of(name: str, length: int) -> dict[str, list[Way]]:
    """Ways of one text of ``length`` tokens: evaluated, trained with dropout on weights, compiled.

    Mixers without weights to drop have no second row. Nothing is timed.

    Raises:
        UnknownNameError: no such member.
    """
    result = {"evaluated": _ways(_build(name, length).eval(), length)}
    mixer: Any = MIXERS.get(str(info(name).genes.choices["mixer"].name))
    if hasattr(mixer.Options, DROPOUT):
        result["with dropout"] = _ways(_build(name, length, **{DROPOUT: 0.1}).train(), length)
    torch.compiler.reset()
    with torch.no_grad():
        compiled: Any = torch.compile(_build(name, length).eval(), backend="eager")
        result["compiled"] = _ways(compiled, length)
    return result


def _build(name: str, length: int, **options: float) -> Mixer:
    sizes = {"width": WIDTH, "heads": 2, "layers": 1}
    causal = bool(info(name).can("causal"))
    return build_mixers(configure_layers(name, causal, length, **sizes, **options))[0]


def _ways(mixer: Callable[[Tensor], Any], length: int) -> list[Way]:
    with all_pairs_allowed(), watched() as ways:
        mixer(torch.zeros(1, length, WIDTH))
    return list(dict.fromkeys(ways)) or [Way("mixer", "its own", "there is one way alone")]
