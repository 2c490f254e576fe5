"""Layers of a model, from its config: mixers with the other genes inside them.

Contradictions between what is chosen about a model and its task are refused before it is built;
every refusal names both sides and says why. What genes say of one another stands with the genes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from everyformer.blocks.stack import Stack
from everyformer.core.config import Choice, to_dict
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.mixer import Mixer, Picture, set_options
from everyformer.core.tasks import TASKS, tasks_that
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.depth import DEPTH
from everyformer.genes.gene import layer_choice
from everyformer.genes.mixers import MIXER, MIXERS
from everyformer.genes.model_options import PixelOptions
from everyformer.genes.positions import POSITION
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
    mixers = build_mixers(config)
    cross = build_cross(config) if reads else None
    result = {name: gene.around(config) for name, gene in GENES.items()}
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
    drawn, chosen, wiring = config.pixels, config.genes["encoder"], config.genes["wiring"]
    mixer = Choice("attention", chosen.options) if chosen.name is None else chosen
    if wiring.name == "reversible":
        wiring = Choice("reversible", {"reversible_output": "mean"})
    return dataclasses.replace(
        config.with_genes(mixer=mixer, wiring=wiring),
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
    if TASKS[config.task].draws:
        checked = cls.for_pictures(checked, _picture(config))
    result = {n: g.inside(config, cls, checked, first.get(n), layer) for n, g in GENES.items()}
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


GLOBALS = frozenset({"keep", "global_tokens"})
"""parts of a mask that mark global tokens for a mixer"""


def check_model(config: ModelConfig) -> None:
    """Refuse what the task of a model contradicts."""
    if config.loss_chunk is not None and TASKS[config.task].answers:
        raise GeneError(
            f"loss_chunk={config.loss_chunk} cuts a text into pieces, but task '{config.task}' "
            "predicts once for a whole row: leave it out"
        )
    if config.loss_chunk is not None and TASKS[config.task].acts:
        raise GeneError(
            f"loss_chunk={config.loss_chunk} cuts a text into pieces, but task '{config.task}' "
            "reads none: leave it out"
        )
    task = TASKS[config.task]
    if len(config.target_mean) != len(config.target_std) or not config.target_mean:
        raise ConfigError(
            f"target_mean has {len(config.target_mean)} numbers and target_std "
            f"{len(config.target_std)}: each number that is predicted has both"
        )
    tied = config.tie and not (task.answers or task.pictures or task.acts)
    if config.init == "sparse-transformer" and tied:
        raise GeneError(
            "init='sparse-transformer' starts the output layer at 0, but tie=True makes it the "
            "table of tokens: use tie=False"
        )
    _check_summaries(config)
    if config.causal and config.pooling in ("class", "first"):
        raise GeneError(
            f"pooling='{config.pooling}' reads the first token, but causal=True lets it see only "
            "itself: use pooling='mean' or 'last' with a causal mixer"
        )


def _check_summaries(config: ModelConfig) -> None:
    """Refuse summaries that do not fit the task, the position or the pooling."""
    chosen, position = config.summaries, config.genes["position"].name
    if chosen.cpc and (chosen.per is None or TASKS[config.task].predicts != "hidden"):
        raise GeneError(
            f"summaries.cpc={chosen.cpc} teaches global tokens to foretell hidden sentences: it "
            f"needs task 'mlm', not '{config.task}', and summaries.per 'sentence' or 'tokens'"
        )
    if chosen.per is None:
        if config.pooling == "globals":
            raise GeneError(
                "pooling='globals' reads the global tokens that summaries give: choose "
                "summaries.per ('tokens' or 'sentence'), or pooling='mean'"
            )
        return
    what = f"summaries.per='{chosen.per}'"
    if not TASKS[config.task].summarised or config.causal:
        causal = " with causal=True" if config.causal else ""
        raise GeneError(
            f"{what} gives a text global tokens, which read all of it; task '{config.task}'"
            f"{causal} does not: it is for {' and '.join(tasks_that('summarised'))}, both ways"
        )
    if position is not None and POSITION.acts_on(config) != "embeddings":
        raise GeneError(
            f"{what} gives a text global tokens, which stand at no place that position "
            f"'{position}' could tell: use a position that is added to embeddings, or none"
        )
    if DEPTH.adds_positions(config):
        raise GeneError(
            f"{what} gives a text global tokens, which stand at no place that depth "
            f"'{config.genes['depth'].name}' could add at each step: use its order 'none'"
        )
    if config.pooling == "class":
        raise GeneError(
            f"{what} and pooling='class' both put tokens in front: use pooling='globals'"
        )
    if chosen.per == "sentence" and not chosen.ends:
        raise GeneError(
            f"{what} needs summaries.ends, the tokens that end a sentence (of bytes 0 10 33 46 63)"
        )
    named = {
        "ends": chosen.ends,
        "mask_token": () if chosen.mask_token is None else (chosen.mask_token,),
    }
    for name, tokens in named.items():
        outside = [token for token in tokens if not 0 <= token < config.vocabulary]
        if outside:
            raise ConfigError(
                f"summaries.{name} names token {outside[0]}, but there are {config.vocabulary}"
            )


def check_globals(mixers: Sequence[Mixer]) -> None:
    """Refuse mixers that know no global tokens, or want to know different things of them."""
    for mixer in mixers:
        if not mixer.honours >= GLOBALS:
            able = [name for name in MIXERS.names() if MIXERS.get(name).honours >= GLOBALS]
            raise GeneError(
                f"mixer '{mixer.name}' knows no global tokens, which summaries give: use "
                f"{', '.join(able)}, or summaries.per none"
            )
    asking = {"sentences" in mixer.honours: mixer.name for mixer in mixers}
    if len(asking) > 1:
        raise GeneError(
            f"mixer '{asking[True]}' asks what global tokens stand for, which mixer "
            f"'{asking[False]}' does not take: with summaries use either in all layers"
        )
