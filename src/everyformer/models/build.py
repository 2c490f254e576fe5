"""`create_mixer` and `create_model`: from a member's name and loose options to a module."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from everyformer.blocks.options import BlockOptions
from everyformer.core.bounds import Count
from everyformer.core.config import Choice, converted, field_types, from_dict, to_dict
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError, nearest, unknown
from everyformer.core.mixer import DROPOUT, Mixer, no_weights, set_options
from everyformer.core.tasks import LM, TASKS, TEXT, tasks_called
from everyformer.family import Member, info, list_members
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene, plain_choice
from everyformer.genes.mixers import MIXERS
from everyformer.models.base import Model
from everyformer.models.layers import decoder_config, encoder_config
from everyformer.system.claims import within_memory

FIELDS = frozenset(field_types(ModelConfig)) - {"genes"}
"""of a model, by which they are given"""
FED = ("expansion", "feedforward", "feedforward_bias", "feedforward_chunk")
"""options that only blocks with a feed-forward read"""
ROLES = ("encoder", "cross")
"""genes whose options are given as ``<gene>_options`` alone: they are mixers as well"""


@dataclasses.dataclass(frozen=True)
class ByLayer:
    """One value a layer, first layer first; see `by_layer`."""

    values: tuple[Any, ...]


def by_layer(*values: Any) -> ByLayer:
    """A schedule: ``create_model(..., window=by_layer(32, 32, 64, 128))``."""
    return ByLayer(values)


@dataclasses.dataclass(frozen=True)
class HeadSplit:
    """One mixer a head, first head first; see `by_head`."""

    mixers: tuple[str, ...]
    own: dict[str, dict[str, Any]]


def by_head(*mixers: str, **own: dict[str, Any]) -> HeadSplit:
    """A split of the heads: ``create_model(..., heads=4, mixer=by_head("attention", "attention",
    "aft-local", "aft-local", aft_local={"window": 8}))``; ``own`` are options by mixer."""
    return HeadSplit(
        mixers, {name.replace("_", "-"): dict(options) for name, options in own.items()}
    )


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
    given = {name: _popped(options, name) for name, gene in GENES.items() if gene.in_mixers}
    heads = converted(Count, heads, "heads")
    width = converted(Count, width, "width")
    max_length = converted(Count | None, max_length, "max_length")
    checked = set_options(cls.Options, name, options)
    sizes = {"width": width, "heads": heads, "causal": causal, "max_length": max_length}
    inside = {
        gene: GENES[gene].alone(part, cls, checked, sizes) if isinstance(part, Choice) else part
        for gene, part in given.items()
        if part is not None
    }
    with within_memory(f"the mixer '{name}'"):
        return cls(options=checked, **sizes, **inside)


def _popped(options: dict[str, Any], gene: str) -> Any:
    """What is given for a gene: a `Choice` of a name and its options, a module, or None."""
    name, own = options.pop(gene, None), options.pop(f"{gene}_options", {})
    if isinstance(name, str):
        return Choice(name, own)
    if own:
        raise ConfigError(f"{gene}_options are read where '{gene}' is given as a name")
    return name


def create_model(name: str, task: str = LM, **options: Any) -> Model:
    """Build a member as a whole model.

    Args:
        name: a member (`list_members()`).
        task: a name in `core.tasks.TASKS`, or 'classify' or 'regress', whose options say what is
            read: ``image``, ``series``, the numbers at each step, else tokens.
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
    task = _named(task, options)
    if task not in member.tasks:
        able = [m.name for m in list_members(task=task)]
        if TASKS[task].interacts and isinstance(member.streaming, str):
            raise UnsupportedError(
                f"member '{name}' cannot be a policy, which reads step by step: "
                f"{member.streaming}. Members that can: {', '.join(able)}"
            )
        raise UnsupportedError(
            f"member '{name}' has no task '{task}' (it has {', '.join(member.tasks)}); "
            f"members that do: {', '.join(able)}"
        )
    genes = member.genes
    own = {"block": dict(genes.block), **genes.model}
    draft = _Draft(name, own, dict(genes.choices))
    differing = genes.tasks.get(task, {})
    # genes first: they decide which other options there are, and mixers whether blocks feed
    for given in (differing, options):
        for key in sorted(given, key=lambda name: (name not in GENES, name in FED)):
            draft.put(key, given[key])
    fields = {"member": name, "task": task, "schedule": draft.schedule, **draft.fields}
    config = from_dict(ModelConfig, to_dict(fields | draft.genes))
    scaled = config.scale_embedding
    if scaled is None:
        scaled = scales_embedding(config)
    return dataclasses.replace(config, causal=is_causal(member, config), scale_embedding=scaled)


def _named(task: str, options: dict[str, Any]) -> str:
    """The task that a word means (classify, regress), by what the options say is read."""
    called = tasks_called(task)
    if not called:
        raise unknown("task", task, [*TASKS, *(one.word for one in TASKS.values())])
    reads = "pictures" if options.get("image") else "series" if options.get("series") else ""
    fitting = (name for name in called if TASKS[name].reads == reads)
    return next(fitting, called[0])


def scales_embedding(config: ModelConfig) -> bool:
    """Whether embeddings are scaled where nothing is said: fixed waves of unit size must not
    dominate (2017 paper), and text is learnt late from embeddings of 0.02 before layers of usual
    size."""
    waves = config.genes["position"].name == "sinusoidal"
    return waves or (TASKS[config.task].embeds_text and config.init == "member")


def configure_layers(name: str, causal: bool, length: int, **options: Any) -> ModelConfig:
    """A config for `build_mixers`: the member's layers as they are for ``length`` tokens.

    The task is one in which the member's mixers are causal, or not, as given; of an
    encoder-decoder the layers are those of its decoder or encoder.
    """
    tasks = info(name).tasks
    task = LM if causal else TEXT
    if task not in tasks:
        task = next((name for name in tasks if TASKS[name].translates), tasks[0])
    sizes: dict[str, Any] = {"max_length": length, **options}
    if TASKS[task].translates:
        both = configure(name, task, **sizes)
        return decoder_config(both) if causal else encoder_config(both)
    if TASKS[task].pictures:
        sizes = {"image": (1, length, 1), "patch": 1, "pooling": "mean", **sizes}
    return configure(name, task, causal=causal, **sizes)


def build_model(config: ModelConfig) -> Model:
    """The module that a complete config describes."""
    with within_memory(f"the model '{config.member}'"):
        module, _, name = TASKS[config.task].model.partition(":")
        home = importlib.import_module(f"everyformer.models.{module}")
        make: Callable[[ModelConfig], Model] = getattr(home, name)
        return make(config)


def settled(config: ModelConfig) -> dict[str, Any]:
    """A model as plain values in which the options that were not given have their defaults."""
    genes = {name: _filled(GENES[name], choice) for name, choice in config.genes.items()}
    return to_dict(config.with_genes(**genes))


def _filled(gene: Gene, choice: Choice) -> Choice:
    values = to_dict(gene.options(choice.name)()) | choice.options
    for name, own in values.get("own", {}).items():
        values["own"][name] = to_dict(gene.options(name)()) | own
    return Choice(choice.name, values)


@dataclasses.dataclass
class _Draft:
    """A model that is being described: loose options are sorted into it."""

    member: str
    fields: dict[str, Any]
    """of `ModelConfig`"""
    genes: dict[str, Choice]
    schedule: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def put(self, key: str, value: Any) -> None:
        """Put one option where it belongs.

        Raises:
            ConfigError, GeneError: it is unknown, or has no meaning beside the mixer.
        """
        gene = key.removesuffix("_options")
        mixer = self.genes["mixer"]
        told = key in FED and not (key in GENES and self._stands(key, value))
        if told and not MIXERS.get(str(mixer.name)).feeds(mixer.options):
            own = (f.name for f in dataclasses.fields(GENES["mixer"].options(mixer.name)))
            raise GeneError(
                f"mixer '{mixer.name}' holds its own channel projections, so its blocks have no "
                f"feed-forward and '{key}' has no meaning; its own options: "
                f"{', '.join(sorted(own))}"
            )
        if isinstance(value, ByLayer):
            self.schedule[key] = value.values
        elif isinstance(value, HeadSplit):
            self._split(key, value)
        elif key in GENES:
            choice = plain_choice(value)
            if choice.name is None and GENES[key].needed:
                raise ConfigError(f"a model needs a {key}: name one, not none")
            if choice.name != self.genes[key].name or choice.options:
                self.genes[key] = Choice(choice.name, to_dict(choice.options))
        elif gene in GENES and key != gene:
            self._give(gene, to_dict(value))
        elif key in FIELDS:
            known: Any = self.fields.get(key)
            both = isinstance(value, dict) and isinstance(known, dict)
            self.fields[key] = {**known, **value} if both else value
        else:
            self._find(key, value)

    def _stands(self, gene: str, value: Any) -> bool:
        """Whether a choice is the one that there is already, defaults included."""
        record, choice = GENES[gene], plain_choice(value)
        return record.typed(choice) == record.typed(self.genes[gene])

    def _split(self, key: str, value: HeadSplit) -> None:
        """The mixer of a layer, head by head; the one that there was keeps its options."""
        if key != "mixer":
            raise ConfigError(f"by_head names mixers, so it is no value of '{key}': give a tuple")
        before: Any = self.genes["mixer"]
        kept: dict[str, Any] = {}
        if before.name in value.mixers:
            kept[before.name] = before.options
        self.genes["mixer"] = Choice("by-head", {"mixers": value.mixers, "own": kept | value.own})

    def _give(self, gene: str, options: dict[str, Any]) -> None:
        choice = self.genes[gene]
        self.genes[gene] = Choice(choice.name, {**choice.options, **options})

    def _find(self, key: str, value: Any) -> None:
        """An option by its own name alone: of the block, or of what a gene has chosen."""
        mixer = str(self.genes["mixer"].name)
        homes = {
            name: {f.name for f in dataclasses.fields(GENES[name].options(choice.name))}
            for name, choice in self.genes.items()
            if name not in ROLES
        }
        if key in field_types(BlockOptions):
            self.fields["block"][key] = value
            return
        for gene, names in homes.items():
            if key in names:
                self._give(gene, {key: to_dict(value)})
                return
        if key == DROPOUT:
            raise no_weights(mixer)
        known = {*FIELDS, *GENES, *field_types(BlockOptions)}.union(*homes.values())
        raise ConfigError(
            f"unknown option '{key}' for member '{self.member}'; {nearest(key, known)}"
        )


def is_causal(member: Member, config: ModelConfig) -> bool:
    """Whether a model is causal: for what is generated, or where the member cannot else."""
    generative = TASKS[config.task].forward_only
    if config.causal is False and generative:
        raise GeneError(
            f"task '{config.task}' predicts what comes next, so causal=False would leak"
        )
    if (
        TASKS[config.task].translates
        and config.genes["encoder"].name is None
        and not member.can("bidirectional")
    ):
        raise GeneError(
            f"member '{member.name}' cannot be an encoder: {member.bidirectional}; give another "
            "one with encoder=..."
        )
    if TASKS[config.task].predicts == "hidden" and config.causal:
        raise GeneError("task 'mlm' reads both sides of a hidden token; causal=True has no meaning")
    causal = generative or bool(config.causal) or not member.can("bidirectional")
    if causal and not member.can("causal"):
        raise GeneError(f"member '{member.name}' cannot be causal: {member.causal}")
    if config.causal is False and not member.can("bidirectional"):
        raise GeneError(f"member '{member.name}' is always causal: {member.bidirectional}")
    return causal
