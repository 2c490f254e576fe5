"""Layers of a model, from its config: mixers with the other genes inside them."""

import dataclasses
from importlib import import_module
from typing import Any, cast

from everyformer.blocks.stack import Stack
from everyformer.core.config import Choice, to_dict
from everyformer.core.mixer import Mixer, Picture, set_options
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.depth import DEPTH
from everyformer.genes.gene import layer_choice
from everyformer.genes.mixers import MIXER, MIXERS
from everyformer.genes.model_options import PixelOptions
from everyformer.models.checks import check_globals, check_model
from everyformer.system.plain import to_json


def build_mixers(config: ModelConfig) -> list[Mixer]:
    """One mixer a layer, each with its own choice from the schedule.

    Raises:
        GeneError, ConfigError: what clashes with what, and why.
    """
    classes = MIXER.of_layers(config)
    for gene in GENES.values():
        gene.check(config, classes)
    check_model(config)
    mixers: list[Mixer] = []
    first: dict[str, Any] = {}
    for layer in range(config.layers):
        mixer, inside = _build_mixer(config, layer, first)
        first = inside | first
        mixers.append(mixer)
    _join(mixers)
    if config.summaries.per is not None:
        check_globals(mixers)
    return mixers


def build_stack(config: ModelConfig, *, reads: bool = False) -> Stack:
    """The layers of a model with what genes give to the whole stack.

    Args:
        reads: whether they read an encoder's output too.
    """
    if config.outside is not None:
        # what reads models of others is read where a config names one
        outside: Any = import_module("everyformer.models.outside")
        return cast(Stack, outside.OutsideStack(config))  # all that models without taps use
    mixers = build_mixers(config)
    cross = build_cross(config) if reads else None
    result = {name: gene.build_for_stack(config) for name, gene in GENES.items()}
    around = {name: part for name, part in result.items() if part is not None}
    return Stack(mixers, config.width, config.block, cross=cross, **around)


def layer_in_words(config: ModelConfig) -> str:
    """The first layer's mixer with all options: layers of one description are one function."""
    mixer, inside = _build_mixer(config, 0, {})
    parts = {name: to_dict(GENES[name].typed(config.genes[name])) for name in sorted(inside)}
    kind = f"{type(mixer).__module__}.{type(mixer).__qualname__}"
    return to_json([kind, mixer.causal, config.heads, to_dict(mixer.options), parts])


def _join(mixers: list[Mixer]) -> None:
    """Let every mixer take over what it shares with the first of its kind."""
    first: dict[type[Mixer], Mixer] = {}
    for mixer in mixers:
        if first.setdefault(type(mixer), mixer) is not mixer:
            mixer.join(first[type(mixer)])


def encoder_config(config: ModelConfig) -> ModelConfig:
    """The encoder of an encoder-decoder, as the config of a stack of its own."""
    chosen = config.genes["encoder"]
    mixer = config.genes["mixer"] if chosen.name is None else chosen
    # who decides where tokens leave is asked of what is written
    depth = Choice(DEPTH.default) if DEPTH.exits(config) else config.genes["depth"]
    return dataclasses.replace(config.with_genes(mixer=mixer, depth=depth), causal=False)


def source_config(config: ModelConfig) -> ModelConfig:
    """The encoder of a model that enlarges small images: attention both ways by default."""
    assert config.source_image is not None
    drawn, chosen, residual = config.pixels, config.genes["encoder"], config.genes["residual"]
    mixer = Choice("attention", chosen.options) if chosen.name is None else chosen
    if residual.name == "reversible":
        residual = Choice("reversible", {"reversible_output": "mean"})
    return dataclasses.replace(
        config.with_genes(mixer=mixer, residual=residual),
        image=config.source_image,
        pixels=PixelOptions(tables=drawn.tables, places=drawn.places),
        causal=False,
        schedule={},
    )


def decoder_config(config: ModelConfig) -> ModelConfig:
    """Its decoder; without ``decoder_layers`` as deep as the encoder."""
    return dataclasses.replace(config, causal=True, layers=config.decoder_layers or config.layers)


def build_cross(config: ModelConfig) -> list[Mixer]:
    """The mixers by which the layers of a decoder read the encoder's output."""
    choice = config.genes["cross"]
    name = str(choice.name)
    cls: Any = MIXERS.get(name)
    options = set_options(cls.Options, name, choice.options)
    cls.check_layer(options, config.width, "cross")
    sizes: dict[str, Any] = {"width": config.width, "heads": config.heads}
    sizes["max_length"] = config.tokens
    mixers = [cls(causal=False, options=options, **sizes) for _ in range(config.layers)]
    _join(mixers)
    return mixers


def _build_mixer(
    config: ModelConfig, layer: int, first: dict[str, Any]
) -> tuple[Mixer, dict[str, Any]]:
    """One layer's mixer and what other genes put inside; ``first`` is what the first layer has."""
    choice = layer_choice(config, layer)
    name, options = str(choice.name), choice.options
    cls: Any = MIXERS.get(name)
    known = {f.name for f in dataclasses.fields(cls.Options)}
    if "mixer" in config.schedule:
        options = {key: value for key, value in options.items() if key in known}
    checked = set_options(cls.Options, name, options)
    cls.check_layer(checked, config.width, "mixer")
    if config.does.draws:
        checked = cls.for_pictures(checked, _picture(config))
    result = {
        n: g.build_for_mixer(config, cls, checked, first.get(n), layer) for n, g in GENES.items()
    }
    inside = {name: part for name, part in result.items() if part is not None}
    mixer = cls(
        width=config.width,
        heads=config.heads,
        causal=bool(config.causal),
        max_length=config.tokens + config.summaries.most(config.tokens),
        options=checked,
        **inside,
    )
    return mixer, inside


def _picture(config: ModelConfig) -> Picture:
    """Layout of the tokens of a pixel model in its pictures."""
    assert config.image is not None
    channels, height, width = config.image
    columns = width if config.pixels.output == "mixture" else width * channels
    tile = None if config.pixels.order == "raster" else config.pixels.tile
    return Picture((height, columns), tile, bool(config.causal))
