"""Mixers, one file per member or close family; `MIXERS` finds them by name, `MIXER` is the gene.

An encoder-decoder has three: `MIXER` of the decoder, `ENCODER`, and `CROSS` between them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from everyformer.core.config import Choice
from everyformer.core.errors import ConfigError, GeneError, nearest
from everyformer.core.gene import Blueprint, Gene
from everyformer.core.registry import Registry

if TYPE_CHECKING:
    from everyformer.core.mixer import Mixer

MIXERS: Registry[type[Mixer]] = Registry("mixer", __name__, files={"amlp": "gmlp"})


class MixerGene(Gene):
    """How information moves across positions, the same in all layers or by a schedule."""

    name = "mixer"
    question = "how information moves across positions"
    always_named = True

    def check(self, plan: Blueprint) -> None:
        for name, values in plan.schedule.items():
            if len(values) != plan.layers:
                raise GeneError(
                    f"the schedule of '{name}' has {len(values)} entries, but the model has "
                    f"layers={plan.layers}: give one value a layer"
                )
        used = {layer_choice(plan, layer).name for layer in range(plan.layers)}
        known = {f.name for name in used for f in dataclasses.fields(self.options(name))}
        for option in [*plan.genes[self.name].options, *plan.schedule]:
            if option != self.name and option not in known:
                raise ConfigError(
                    f"unknown option '{option}' for mixer {', '.join(sorted(map(str, used)))}; "
                    f"{nearest(option, known)}"
                )


def layer_choice(plan: Blueprint, layer: int) -> Choice:
    """Name and options of the mixer of one layer, counted from 0."""
    chosen: dict[str, Any] = {name: values[layer] for name, values in plan.schedule.items()}
    every = plan.genes["mixer"]
    return Choice(chosen.pop("mixer", every.name), {**every.options, **chosen})


class EncoderGene(Gene):
    """How the encoder of an encoder-decoder moves information."""

    name = "encoder"
    question = (
        "how an encoder moves information, both ways (default: seq2seq, as the decoder; "
        "super-resolution, attention)"
    )


class CrossGene(Gene):
    """How the decoder of an encoder-decoder reads."""

    name = "cross"
    question = "how a decoder reads the encoder's output (seq2seq, super-resolution)"

    def check(self, plan: Blueprint) -> None:
        name = str(plan.genes[self.name].name)
        if not MIXERS.get(name).crosses:
            able = [known for known in MIXERS.names() if MIXERS.get(known).crosses]
            raise GeneError(
                f"cross='{name}' cannot read another sequence; mixers that can: {', '.join(able)}"
            )


MIXER = MixerGene(MIXERS, "attention", needed=True)
ENCODER = EncoderGene(MIXERS)
CROSS = CrossGene(MIXERS, "attention", needed=True)
