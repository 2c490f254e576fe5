"""`create_mixer` and `create_model`: from a member's name and loose options to a module."""

from __future__ import annotations

import dataclasses
from typing import Any

from everyformer.blocks.options import BlockOptions
from everyformer.core.bounds import Count
from everyformer.core.claims import within_memory
from everyformer.core.config import converted, from_dict, to_dict
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError, nearest, unknown
from everyformer.core.mixer import DROPOUT, Mixer, no_weights, set_options
from everyformer.core.registry import Registry
from everyformer.family import (
    ENLARGE,
    IMAGE,
    LM,
    MLM,
    PIXELS,
    SEQ2SEQ,
    TEXT,
    Member,
    info,
    list_members,
)
from everyformer.memory import MEMORIES
from everyformer.mixers import MIXERS
from everyformer.models.base import Model
from everyformer.models.classifier import ImageClassifier, TextClassifier
from everyformer.models.config import ModelConfig
from everyformer.models.enlarging import SuperResolution
from everyformer.models.genes import (
    decoder_config,
    encoder_config,
    head_sizes,
    make_memory,
    make_position,
    scales_embedding,
)
from everyformer.models.language import LanguageModel
from everyformer.models.masked import MaskedLanguageModel
from everyformer.models.pixels import PixelModel
from everyformer.models.seq2seq import EncoderDecoder
from everyformer.positions import POSITIONS

MODELS: dict[str, type[Model]] = {
    LM: LanguageModel,
    MLM: MaskedLanguageModel,
    TEXT: TextClassifier,
    IMAGE: ImageClassifier,
    PIXELS: PixelModel,
    SEQ2SEQ: EncoderDecoder,
    ENLARGE: SuperResolution,
}

GENES = ("mixer", "position", "memory")
"""choices that have options of their own"""


@dataclasses.dataclass(frozen=True)
class ByLayer:
    """One value a layer, first layer first; made by `by_layer`."""

    values: tuple[Any, ...]


def by_layer(*values: Any) -> ByLayer:
    """A schedule: ``create_model(..., window=by_layer(32, 32, 64, 128))``."""
    return ByLayer(values)


@dataclasses.dataclass(frozen=True)
class ByHead:
    """One mixer a head, first head first; made by `by_head`."""

    mixers: tuple[str, ...]
    own: dict[str, dict[str, Any]]


def by_head(*mixers: str, **own: dict[str, Any]) -> ByHead:
    """A split of the heads: ``create_model(..., heads=4, mixer=by_head("attention", "attention",
    "aft-local", "aft-local", aft_local={"window": 8}))``; ``own`` are options by mixer."""
    return ByHead(mixers, {name.replace("_", "-"): dict(options) for name, options in own.items()})


def create_mixer(
    name: str,
    *,
    width: int,
    heads: int = 1,
    causal: bool = False,
    max_length: int | None = None,
    **options: Any,
) -> Mixer:
    """Build the mixer of a member by name.

    Args:
        name: a member marked as mixer (`everyformer list --mixers`), or any registered mixer.
        width: channels of x. heads: number of heads. causal: each token sees only the past.
        max_length: longest sequence, needed by members with a table over positions.
        options: the mixer's own options by name (`everyformer info NAME`); ``position``, a name or
            a `Position`, acts inside mixers that compare tokens, ``position_options`` are its own;
            ``memory``, a name, is read beside the tokens, ``memory_options`` are its own.

    Raises:
        UnknownNameError, ConfigError, GeneError: with the nearest name, or both sides named.
    """
    mixers = [m.name for m in list_members() if m.is_mixer]
    if name not in MIXERS.names():
        if name in {m.name for m in list_members()}:
            raise UnsupportedError(
                f"member '{name}' is not a mixer but a choice of other genes: build it with "
                f"create_model('{name}'). Mixers: {', '.join(mixers)}"
            )
        raise unknown("mixer", name, MIXERS.names())
    cls: Any = MIXERS.get(name)
    position, chosen = options.pop("position", None), options.pop("position_options", {})
    if position is not None and not cls.accepts_positions:
        raise GeneError(f"mixer '{name}' takes no position inside; '{position}' was given")
    memory, kept = options.pop("memory", None), options.pop("memory_options", {})
    if memory is not None and not cls.accepts_memory:
        raise GeneError(f"mixer '{name}' reads no memory; '{memory}' was given")
    heads = converted(Count, heads, "heads")
    width = converted(Count, width, "width")
    max_length = converted(Count | None, max_length, "max_length")
    checked = set_options(cls.Options, name, options)
    sizes: dict[str, Any] = {"width": width, "heads": heads}
    sizes |= {"causal": causal, "max_length": max_length}
    if isinstance(position, str):
        inside_sizes = sizes | head_sizes(checked, width, heads)
        position = make_position(position, chosen, **inside_sizes)
    elif chosen:
        raise ConfigError("position_options are read where 'position' is given as a name")
    inside: dict[str, Any] = {} if position is None else {"position": position}
    if memory is not None:
        inside["memory"] = make_memory(memory, kept, width)
    elif kept:
        raise ConfigError("memory_options are read where 'memory' is given as a name")
    with within_memory(f"the mixer '{name}'"):
        return cls(options=checked, **sizes, **inside)


def create_model(name: str, task: str = LM, **options: Any) -> Model:
    """Build a member as a whole model.

    Args:
        name: a member (`list_members()`).
        task: 'lm', 'mlm', 'classify-text', 'classify-image', 'seq2seq', 'pixels' or
            'super-resolution'.
        options: fields of `ModelConfig` (width, layers, heads, max_length, vocabulary ...), of
            `BlockOptions` (wiring, feedforward, dropout ...), of the mixer, the position or the
            memory, by their names; ``by_layer(...)`` values differ by layer, a mixer
            ``by_head(...)`` by head.

    Raises:
        UnknownNameError, ConfigError, GeneError, UnsupportedError: what clashes with what, and why.
    """
    return build_model(configure(name, task, **options))


def configure(name: str, task: str = LM, **options: Any) -> ModelConfig:
    """The complete config that `create_model` would build."""
    member = info(name)
    if task not in MODELS:
        raise unknown("task", task, MODELS)
    if task not in member.tasks:
        able = [m.name for m in list_members(task=task)]
        raise UnsupportedError(
            f"member '{name}' has no task '{task}' (it has {', '.join(member.tasks)}); "
            f"members that do: {', '.join(able)}"
        )
    genes = member.genes
    preset: dict[str, Any] = {
        "member": name,
        "task": task,
        "mixer": genes.mixer,
        "mixer_options": dict(genes.mixer_options),
        "position": genes.position,
        "position_options": dict(genes.position_options),
        "memory": genes.memory,
        "memory_options": dict(genes.memory_options),
        "block": dict(genes.block),
        **genes.model,
        **genes.tasks.get(task, {}),
    }
    # these genes first: they decide which other options there are
    for key in sorted(options, key=lambda name: name not in GENES):
        _place(preset, key, options[key])
    config = from_dict(ModelConfig, to_dict(preset))
    scaled = config.scale_embedding
    if scaled is None:
        scaled = scales_embedding(config.position, task, config.init)
    return dataclasses.replace(config, causal=_causal(member, config), scale_embedding=scaled)


def configure_layers(name: str, causal: bool, length: int, **options: Any) -> ModelConfig:
    """A config for `build_mixers`: the member's layers as they are for ``length`` tokens.

    The task is one in which the member's mixers are causal, or not, as asked; of an
    encoder-decoder the layers are those of its decoder or encoder.
    """
    tasks = info(name).tasks
    task = LM if causal else TEXT
    if task not in tasks:
        task = SEQ2SEQ if SEQ2SEQ in tasks else tasks[0]
    sizes: dict[str, Any] = {"max_length": length, **options}
    if task == SEQ2SEQ:
        both = configure(name, task, **sizes)
        return decoder_config(both) if causal else encoder_config(both)
    if task == IMAGE:
        sizes = {"image": (1, length, 1), "patch": 1, "pooling": "mean", **sizes}
    return configure(name, task, causal=causal, **sizes)


def build_model(config: ModelConfig) -> Model:
    """The module that a complete config describes."""
    with within_memory(f"the model '{config.member}'"):
        return MODELS[config.task](config)


def settled(config: ModelConfig) -> dict[str, Any]:
    """A model as plain values in which the options that were not given have their defaults."""
    values: dict[str, Any] = to_dict(config)
    for genes, name, home in (
        (MIXERS, "mixer", "mixer_options"),
        (MIXERS, "encoder_mixer", "encoder_options"),
        (MIXERS, "cross_mixer", "cross_options"),
        (POSITIONS, "position", "position_options"),
        (MEMORIES, "memory", "memory_options"),
    ):
        if values[name] is not None:
            values[home] = _defaults(genes, values[name]) | values[home]
    for name, own in values["mixer_options"].get("own", {}).items():
        values["mixer_options"]["own"][name] = _defaults(MIXERS, name) | own
    return values


def _defaults(genes: Registry[Any], name: str) -> dict[str, Any]:
    options: dict[str, Any] = to_dict(genes.get(name).Options())
    return options


def _place(preset: dict[str, Any], key: str, value: Any) -> None:
    """Put a loose option where it belongs."""
    if isinstance(value, ByLayer):
        preset.setdefault("schedule", {})[key] = value.values
        return
    if isinstance(value, ByHead):
        if key != "mixer":
            raise ConfigError(f"by_head names mixers, so it is no value of '{key}': give a tuple")
        kept = {preset["mixer"]: preset["mixer_options"]}
        kept = {name: options for name, options in kept.items() if name in value.mixers}
        preset["mixer"] = "by-head"
        preset["mixer_options"] = {"mixers": value.mixers, "own": kept | value.own}
        return
    if key in GENES and value != preset[key]:
        preset[f"{key}_options"] = {}
    if key in {f.name for f in dataclasses.fields(ModelConfig)}:
        if isinstance(value, dict) and isinstance(preset.get(key), dict):
            value = {**preset[key], **value}
        preset[key] = value
        return
    homes = _homes(preset)
    own: Any = MIXERS.get(preset["mixer"])
    fed = ("expansion", "feedforward", "feedforward_bias", "feedforward_chunk")
    if not own.with_feedforward and key in fed:
        raise GeneError(
            f"mixer '{preset['mixer']}' holds its own channel projections, so its blocks have no "
            f"feed-forward and '{key}' has no meaning; its own options: "
            f"{', '.join(sorted(homes['mixer_options']))}"
        )
    for home, names in homes.items():
        if key in names:
            preset[home][key] = value
            return
    if key == DROPOUT:
        raise no_weights(preset["mixer"])
    known = {f.name for f in dataclasses.fields(ModelConfig)}.union(*homes.values())
    raise ConfigError(
        f"unknown option '{key}' for member '{preset['member']}'; {nearest(key, known)}"
    )


def _homes(preset: dict[str, Any]) -> dict[str, set[str]]:
    mixer: Any = MIXERS.get(preset["mixer"])
    homes = {
        "block": {f.name for f in dataclasses.fields(BlockOptions)},
        "mixer_options": {f.name for f in dataclasses.fields(mixer.Options)},
    }
    if preset["position"] is not None:
        position: Any = POSITIONS.get(preset["position"])
        homes["position_options"] = {f.name for f in dataclasses.fields(position.Options)}
    if preset["memory"] is not None:
        memory: Any = MEMORIES.get(preset["memory"])
        homes["memory_options"] = {f.name for f in dataclasses.fields(memory.Options)}
    return homes


def _causal(member: Member, config: ModelConfig) -> bool:
    """Causal for what is generated, bidirectional for the rest where the member can."""
    generative = config.task in (LM, PIXELS, SEQ2SEQ, ENLARGE)
    if config.causal is False and generative:
        raise GeneError(
            f"task '{config.task}' predicts what comes next, so causal=False would leak"
        )
    if config.task == SEQ2SEQ and config.encoder_mixer is None and not member.can("bidirectional"):
        raise GeneError(
            f"member '{member.name}' cannot be an encoder: {member.bidirectional}; give another "
            "one with encoder_mixer=..."
        )
    if config.task == MLM and config.causal:
        raise GeneError("task 'mlm' reads both sides of a hidden token; causal=True has no meaning")
    causal = generative or bool(config.causal) or not member.can("bidirectional")
    if causal and not member.can("causal"):
        raise GeneError(f"member '{member.name}' cannot be causal: {member.causal}")
    if config.causal is False and not member.can("bidirectional"):
        raise GeneError(f"member '{member.name}' is always causal: {member.bidirectional}")
    return causal
