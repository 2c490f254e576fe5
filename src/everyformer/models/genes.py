"""From names to parts: mixers and positions of a config, with contradictions refused.

Every refusal names both genes and says why, when the model is built and never later.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, GeneError, nearest
from everyformer.core.mixer import Mixer, Picture, set_options
from everyformer.family import LM, MLM, TEXT
from everyformer.memory import MEMORIES, Memory
from everyformer.mixers import MIXERS
from everyformer.models.config import ModelConfig
from everyformer.models.deep import TABLE
from everyformer.models.pixel_options import PIXEL_TASKS, PixelOptions
from everyformer.models.summary_options import SUMMARY_TASKS
from everyformer.positions import POSITIONS, Position
from everyformer.positions.base import EMBEDDING_STD

GLOBALS = frozenset({"keep", "global_tokens"})
"""parts of a mask by which a mixer is told of global tokens"""


def scales_embedding(position: str | None, task: str, init: str) -> bool:
    """What `configure` chooses: fixed waves of unit size must not dominate (2017 paper), and text
    is learnt late from embeddings of 0.02 before layers of usual size."""
    return position == "sinusoidal" or (task in (LM, MLM, TEXT) and init == "member")


def embedding_scale(config: ModelConfig) -> float:
    """sqrt(width), or 1; a config that was not made by `configure` scales beside waves alone."""
    scaled = config.scale_embedding
    if scaled is None:
        scaled = config.position == "sinusoidal"
    return math.sqrt(config.width) if scaled else 1.0


def embedding_std(config: ModelConfig) -> float:
    """Of token embeddings at the start, before they are scaled."""
    if config.init == "sparse-transformer":
        return TABLE
    return EMBEDDING_STD if embedding_scale(config) == 1.0 else config.width**-0.5


def build_position(config: ModelConfig) -> Position | None:
    """The position that is added to the embeddings, if the config names one of that kind."""
    if config.position is None or POSITIONS.get(config.position).acts_on != "embeddings":
        return None
    return _position(config)


def build_before(config: ModelConfig) -> list[Position] | None:
    """The positions that are added before the layers, one each, if the config names that kind."""
    if config.position is None or POSITIONS.get(config.position).acts_on != "layers":
        return None
    return [_position(config) for _ in range(config.layers)]


def make_position(
    name: str, options: dict[str, Any], beside: float = EMBEDDING_STD, **sizes: Any
) -> Position:
    """The position called ``name``; ``sizes`` are those of `Position`'s constructor, ``beside`` the
    standard deviation of the token embeddings at the start."""
    cls: Any = POSITIONS.get(name)
    if not cls.adds_to_values:
        sizes.pop("value_dim", None)
    return cls(options=cls.beside(from_dict(cls.Options, options, f"{name}."), beside), **sizes)


def make_memory(name: str, options: dict[str, Any], width: int) -> Memory:
    """The memory called ``name`` of one layer of ``width`` channels."""
    cls: Any = MEMORIES.get(name)
    return cls(width=width, options=from_dict(cls.Options, options, f"{name}."))


def head_sizes(options: Any, width: int, heads: int) -> dict[str, int]:
    """Channels of one head's queries and keys and of its values, by the options of a mixer."""
    equal = width // max(heads, 1)
    widths = getattr(options, "widths", None)
    if widths is None:
        return {"head_dim": getattr(options, "key_dim", None) or equal, "value_dim": equal}
    size = widths.key_dim or equal
    return {"head_dim": size, "value_dim": widths.value_dim or size}


def build_mixers(config: ModelConfig) -> list[Mixer]:
    """One mixer a layer, each with its own choice from the schedule."""
    _check(config)
    mixers: list[Mixer] = []
    held: Position | None = None
    for layer in range(config.layers):
        mixer, inside = _build_mixer(config, layer, held)
        held = held or inside
        mixers.append(mixer)
    _join(mixers)
    if config.summaries.per is not None:
        _check_globals(mixers)
    return mixers


def _join(mixers: list[Mixer]) -> None:
    """Let every mixer take over what it shares with the first of its kind."""
    first: dict[type[Mixer], Mixer] = {}
    for mixer in mixers:
        if first.setdefault(type(mixer), mixer) is not mixer:
            mixer.join(first[type(mixer)])


def encoder_config(config: ModelConfig) -> ModelConfig:
    """The encoder of an encoder-decoder, as the config of a stack of its own."""
    chosen = config.encoder_mixer or config.mixer
    options = config.encoder_options if config.encoder_mixer else config.mixer_options
    return dataclasses.replace(config, causal=False, mixer=chosen, mixer_options=options)


def source_config(config: ModelConfig) -> ModelConfig:
    """The encoder of a model that enlarges small images: attention both ways, unless told other."""
    assert config.source_image is not None
    block, drawn = config.block, config.pixels
    if block.wiring == "reversible":
        block = dataclasses.replace(block, reversible_output="mean")
    return dataclasses.replace(
        config,
        image=config.source_image,
        pixels=PixelOptions(tables=drawn.tables, places=drawn.places),
        causal=False,
        mixer=config.encoder_mixer or "attention",
        mixer_options=config.encoder_options,
        schedule={},
        block=block,
    )


def decoder_config(config: ModelConfig) -> ModelConfig:
    """Its decoder; without ``decoder_layers`` as deep as the encoder."""
    return dataclasses.replace(config, causal=True, layers=config.decoder_layers or config.layers)


def build_cross(config: ModelConfig) -> list[Mixer]:
    """The mixers by which the layers of a decoder read the encoder's output."""
    name = config.cross_mixer
    cls: Any = MIXERS.get(name)
    if not cls.crosses:
        able = [known for known in MIXERS.names() if MIXERS.get(known).crosses]
        raise GeneError(
            f"cross_mixer='{name}' cannot read another sequence; mixers that can: {', '.join(able)}"
        )
    options = set_options(cls.Options, name, config.cross_options)
    sizes: dict[str, Any] = {"width": config.width, "heads": config.heads}
    sizes["max_length"] = config.tokens
    mixers = [cls(causal=False, options=options, **sizes) for _ in range(config.layers)]
    _join(mixers)
    return mixers


def layer_choice(config: ModelConfig, layer: int) -> tuple[str, dict[str, Any]]:
    """Name and options of the mixer of one layer, counted from 0."""
    chosen = {name: values[layer] for name, values in config.schedule.items()}
    name = chosen.pop("mixer", config.mixer)
    return name, {**config.mixer_options, **chosen}


def _build_mixer(
    config: ModelConfig, layer: int, held: Position | None
) -> tuple[Mixer, Position | None]:
    """One layer's mixer and the position inside it; ``held`` is that of the first layer."""
    name, options = layer_choice(config, layer)
    cls: Any = MIXERS.get(name)
    known = {f.name for f in dataclasses.fields(cls.Options)}
    if "mixer" in config.schedule:
        options = {key: value for key, value in options.items() if key in known}
    checked = set_options(cls.Options, name, options)
    if config.task in PIXEL_TASKS:
        checked = cls.for_pictures(checked, _picture(config))
    inside: Position | None = None
    acts_on = None if config.position is None else POSITIONS.get(config.position).acts_on
    if acts_on in ("queries-keys", "scores"):
        if not cls.accepts_positions:
            kind = acts_on.replace("-", " and ")
            raise GeneError(
                f"position '{config.position}' acts on {kind}, but mixer '{name}' has none (it "
                "does not compare queries with keys): use position 'sinusoidal', 'learned' or none "
                f"with '{name}', or a softmax attention with '{config.position}'"
            )
        if held is not None and held.shared:
            inside = held
        else:
            inside = _position(config, checked)
            if held is not None:
                inside.join(held)
    genes: dict[str, Any] = {} if inside is None else {"position": inside}
    if config.memory is not None:
        _check_memory(config, name, bool(cls.accepts_memory))
        genes["memory"] = make_memory(config.memory, config.memory_options, config.width)
    mixer = cls(
        width=config.width,
        heads=config.heads,
        causal=bool(config.causal),
        max_length=config.tokens + config.summaries.most(config.tokens),
        options=checked,
        **genes,
    )
    return mixer, inside


def _picture(config: ModelConfig) -> Picture:
    """How the tokens of a pixel model lie in its pictures."""
    assert config.image is not None
    channels, height, width = config.image
    columns = width if config.pixels.output == "mixture" else width * channels
    tile = None if config.pixels.order == "raster" else config.pixels.tile
    return Picture((height, columns), tile, bool(config.causal))


def _check_memory(config: ModelConfig, mixer: str, able: bool) -> None:
    """Refuse a memory that nothing can read, or whose rows would be mistaken for one another."""
    MEMORIES.get(str(config.memory))
    if not able:
        raise GeneError(
            f"memory '{config.memory}' is read as further keys and values, which mixer '{mixer}' "
            "has not: use it with 'attention'"
        )
    if config.task != "lm":
        raise GeneError(
            f"memory '{config.memory}' carries a text from segment to segment (task lm); task "
            f"'{config.task}' reads each input by itself"
        )
    acts_on = None if config.position is None else POSITIONS.get(config.position).acts_on
    if acts_on in ("embeddings", "layers"):
        what = "the embeddings" if acts_on == "embeddings" else "every layer's input"
        raise GeneError(
            f"position '{config.position}' is added to {what} and so would be remembered too: "
            f"memory '{config.memory}' needs distances, as positions 'xl-relative', "
            "'t5-relative', 'alibi' or 'rope' give them"
        )


def _position(config: ModelConfig, options: Any = None) -> Position:
    """``options`` are those of the mixer that it lives in, if it does."""
    return make_position(
        str(config.position),
        config.position_options,
        embedding_std(config) * embedding_scale(config),
        width=config.width,
        heads=config.heads,
        **head_sizes(options, config.width, config.heads),
        max_length=config.tokens,
        causal=bool(config.causal),
    )


def _check(config: ModelConfig) -> None:
    if config.loss_chunk is not None and config.task.startswith("classify"):
        raise GeneError(
            f"loss_chunk={config.loss_chunk} cuts a text into pieces, but task '{config.task}' "
            "predicts once for a whole row: leave it out"
        )
    for name, values in config.schedule.items():
        if len(values) != config.layers:
            raise GeneError(
                f"the schedule of '{name}' has {len(values)} entries, but the model has "
                f"layers={config.layers}: give one value a layer"
            )
    used = {layer_choice(config, layer)[0] for layer in range(config.layers)}
    known = {f.name for name in used for f in dataclasses.fields(MIXERS.get(name).Options)}  # type: ignore[attr-defined]
    for name in [*config.mixer_options, *config.schedule]:
        if name != "mixer" and name not in known:
            raise ConfigError(
                f"unknown option '{name}' for mixer {', '.join(sorted(used))}; "
                f"{nearest(name, known)}"
            )
    _check_reversible(config)
    tied = config.tie and config.task in ("lm", "mlm", "seq2seq")
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
    """Global tokens have no place in the text, and what they stand for must be known."""
    chosen, position = config.summaries, config.position
    if chosen.cpc and (chosen.per is None or config.task != "mlm"):
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
    if config.task not in SUMMARY_TASKS or config.causal:
        causal = " with causal=True" if config.causal else ""
        raise GeneError(
            f"{what} gives a text global tokens, which read all of it; task '{config.task}'"
            f"{causal} does not: it is for {' and '.join(SUMMARY_TASKS)}, both ways"
        )
    if position is not None and POSITIONS.get(position).acts_on != "embeddings":
        raise GeneError(
            f"{what} gives a text global tokens, which stand at no place that position "
            f"'{position}' could tell: use a position that is added to embeddings, or none"
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


def _check_globals(mixers: list[Mixer]) -> None:
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


def _check_reversible(config: ModelConfig) -> None:
    """Two halves side by side fit neither tied embeddings nor a decoder that reads them."""
    if config.block.wiring != "reversible" or config.block.reversible_output == "mean":
        return
    if config.task == "seq2seq":
        raise GeneError(
            "reversible_output='concat' gives twice the width, which a decoder does not read: use "
            "reversible_output='mean' with task 'seq2seq'"
        )
    tied = config.tie and config.task in ("lm", "mlm")
    if tied and not (config.task == "mlm" and config.head_transform):
        raise GeneError(
            "reversible_output='concat' gives twice the width, but tie=True makes the output layer "
            "as wide as the embeddings: use tie=False, or reversible_output='mean'"
        )
