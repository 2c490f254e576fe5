"""Mixers, one file per member or close family; `MIXERS` finds them by name, `MIXER` is the gene.

An encoder-decoder has three: `MIXER` of the decoder, `ENCODER`, and `CROSS` between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.core.errors import ConfigError, GeneError, nearest
from everyformer.core.registry import Registry
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene, layer_choice

if TYPE_CHECKING:
    from everyformer.core.mixer import Mixer

MIXERS: Registry[type[Mixer]] = Registry(
    "mixer", __name__, "everyformer:Mixer", files={"amlp": "gmlp"}, helpers=("patterned",)
)


class MixerGene(Gene):
    """The gene of how information moves across positions, in all layers or by a schedule."""

    name = "mixer"
    question = "how information moves across positions"
    always_named = True

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        known = {f.name for mixer in mixers for f in dataclasses.fields(mixer.Options)}
        for option in [*plan.genes[self.name].options, *plan.schedule]:
            if option != self.name and option not in known:
                used = sorted({mixer.name for mixer in mixers})
                raise ConfigError(
                    f"unknown option `{option}` for mixer {', '.join(used)}; "
                    f"{nearest(option, known)}"
                )

    def of_layers(self, plan: ModelConfig) -> list[Any]:
        """The class of every layer's mixer.

        Raises:
            GeneError: a schedule for another number of layers.
        """
        for name, values in plan.schedule.items():
            if len(values) != plan.layers:
                raise GeneError(
                    f"the schedule of `{name}` has {len(values)} entries, but the model has "
                    f"`layers={plan.layers}`: give one value a layer"
                )
        names = (layer_choice(plan, layer).name for layer in range(plan.layers))
        return [self.alternatives.get(str(name)) for name in names]


class EncoderGene(Gene):
    """The gene of how the encoder of an encoder-decoder moves information."""

    name = "encoder"
    question = (
        "how an encoder moves information, both ways (default: seq2seq, as the decoder; "
        "super-resolution, attention)"
    )


class CrossGene(Gene):
    """The gene of how the decoder of an encoder-decoder reads the encoder's output."""

    name = "cross"
    question = "how a decoder reads the encoder's output (seq2seq, super-resolution)"

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        name = str(plan.genes[self.name].name)
        if not MIXERS.get(name).supports_cross:
            able = [known for known in MIXERS.names() if MIXERS.get(known).supports_cross]
            raise GeneError(
                f"`cross='{name}'` cannot read another sequence; mixers that can: {', '.join(able)}"
            )


MIXER = MixerGene(MIXERS, "attention", needed=True)
ENCODER = EncoderGene(MIXERS)
CROSS = CrossGene(MIXERS, "attention", needed=True)
