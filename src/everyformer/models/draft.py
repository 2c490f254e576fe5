"""`Draft`: a model while it is described, from a member's row and loose options.

`completed` decides what was not given and the rest implies: causality, scaled embeddings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from everyformer.blocks.options import BlockOptions
from everyformer.core.config import Choice, field_defaults, field_types, from_dict, to_dict
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError, nearest
from everyformer.core.former import renamed
from everyformer.core.member import Member
from everyformer.family import info, list_members
from everyformer.family.outside import outside_name
from everyformer.genes import GENES
from everyformer.genes.config import Architecture, ModelConfig
from everyformer.genes.feedforward import FEEDFORWARD, FeedForwardOptions
from everyformer.genes.gene import plain_choice
from everyformer.genes.mixers import CROSS, ENCODER, MIXER, MIXERS


def completed(config: ModelConfig) -> ModelConfig:
    """``config`` with what it leaves open decided.

    Raises:
        GeneError: causality that the task or the member contradicts.
        UnsupportedError: the member has not this task.
    """
    member, outside = info(config.member), outside_name(config.member)
    require_task(member, config.task)
    for name, gene in GENES.items() if outside else ():
        if gene.typed(config.genes[name]) != gene.typed(member.genes[name]):
            raise GeneError(
                f"'{outside}' is a whole model, to which sizes are given and no {name} "
                f"('{config.genes[name].name}'): choose it for members alone, in a comparison as "
                "--options MEMBER.OPTION=VALUE"
            )
    scaled = config.scale_embedding
    if scaled is None:
        scaled = scales_embedding(config)
    return dataclasses.replace(
        config,
        causal=is_causal(config),
        scale_embedding=scaled,
        outside=outside,
    )


READ_IN: dict[str, tuple[str, ...]] = {
    "layer_losses": ("lm",),
    "lookahead": ("lm",),
    "head_transform": ("mlm",),
    "decoder_layers": ("seq2seq", "super-resolution"),
    "pixels": ("pixels", "super-resolution"),
    "decision": ("decision",),
}
"""options of a model that some tasks alone read"""


def require_read(member: str, task: str, shape: Architecture) -> None:
    """Refuse options that other tasks read, unless the member's row says the same."""
    row = from_dict(Architecture, to_dict(Draft.of(info(member), task).fields))
    for name, tasks in READ_IN.items():
        value, usual = getattr(shape, name), field_defaults(Architecture)[name]
        if task not in tasks and value not in (usual, getattr(row, name)):
            raise GeneError(
                f"`{name}={value!r}` is read in the task{'s' * (len(tasks) > 1)} "
                f"{' and '.join(tasks)} alone, and this one is '{task}': leave it out"
            )


def require_task(member: Member, task: str) -> None:
    """Refuse a task that ``member`` has not, and name the members that have it."""
    if task in member.tasks:
        return
    able = [m.name for m in list_members(task=task)]
    raise UnsupportedError(
        f"member '{member.name}' has no task '{task}' (it has {', '.join(member.tasks)}); "
        f"members that do: {', '.join(able)}"
    )


def scales_embedding(config: ModelConfig) -> bool:
    """Scaling of embeddings by default: fixed waves of unit size must not
    dominate (2017 paper), and text is learnt late from embeddings of 0.02 before layers of usual
    size."""
    waves = config.genes["position"].name == "sinusoidal"
    return waves or (config.does.embeds_text and config.init == "member")


def is_causal(config: ModelConfig) -> bool:
    """Causality of a model: for what is generated, or where the member cannot else."""
    member = info(config.member)
    generative = config.does.forward_only
    if config.causal is False and generative:
        raise GeneError(
            f"task '{config.task}' predicts what comes next, so `causal=False` would leak"
        )
    if (
        config.does.translates
        and config.genes["encoder"].name is None
        and not member.can("bidirectional")
    ):
        raise GeneError(
            f"member '{member.name}' cannot be an encoder: {member.bidirectional}; give another "
            "one with `encoder=...`"
        )
    if config.does.predicts == "hidden" and config.causal:
        raise GeneError(
            "task 'mlm' reads both sides of a hidden token; `causal=True` has no meaning"
        )
    causal = generative or bool(config.causal) or not member.can("bidirectional")
    if causal and not member.can("causal"):
        raise GeneError(f"member '{member.name}' cannot be causal: {member.causal}")
    if config.causal is False and not member.can("bidirectional"):
        raise GeneError(f"member '{member.name}' is always causal: {member.bidirectional}")
    return causal


FIELDS = frozenset(field_types(ModelConfig)) - {"genes"}
"""of a model, by which they are given"""
OF_FEEDFORWARD = (FEEDFORWARD.name, *field_types(FeedForwardOptions), "feedforward_chunk")
"""options that only layers with a feed-forward read"""
SECOND_MIXERS = (ENCODER.name, CROSS.name)
"""genes whose options are given as ``<gene>_options`` alone: the mixer has the same names"""


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
    own: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """options by mixer"""

    def over(self, mixer: Choice) -> Choice:
        """The split in place of ``mixer``, which keeps its options if it is one of the split."""
        before = {name: mixer.plain() for name in self.mixers if name == mixer.name}
        return Choice("by-head", {"mixers": self.mixers, "own": before | self.own})


def by_head(*mixers: str, **own: dict[str, Any]) -> HeadSplit:
    """A split of the heads: ``create_model(..., heads=4, mixer=by_head("attention", "attention",
    "aft-local", "aft-local", aft_local={"window": 8}))``; ``own`` are options by mixer."""
    return HeadSplit(
        mixers, {name.replace("_", "-"): dict(options) for name, options in own.items()}
    )


@dataclasses.dataclass
class Draft:
    """Fields, genes and schedule of a model; loose options are sorted into them."""

    member: str
    fields: dict[str, Any]
    """of `ModelConfig`"""
    genes: dict[str, Choice]
    schedule: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, member: Member, task: str) -> Draft:
        """The row of a member, as it is for ``task``.

        Raises:
            UnsupportedError: it has not this task.
        """
        require_task(member, task)
        row = member.genes
        draft = cls(member.name, {"block": dict(row.block), **row.model}, dict(row.choices))
        draft.put_all(row.tasks.get(task, {}))
        return draft

    def put_all(self, options: Mapping[str, Any]) -> None:
        """Put every option where it belongs; genes first, since they decide which others there are,
        and mixers before feed-forwards, since they decide whether layers have one.

        Raises:
            ConfigError, GeneError: one is unknown, or has no meaning with the mixer.
        """
        options = renamed(options)
        for key in sorted(options, key=lambda name: (name not in GENES, name in OF_FEEDFORWARD)):
            self.put(key, options[key])

    def put(self, key: str, value: Any) -> None:
        """Put one option where it belongs."""
        gene = key.removesuffix("_options")
        if key in GENES and not isinstance(value, str | Choice | ByLayer | HeadSplit | None):
            names = ", ".join(GENES[key].alternatives.names())
            raise ConfigError(f"`{key}` is chosen by a name ({names}), not by {value!r}")
        if key in OF_FEEDFORWARD and not (key in GENES and self._has(key, value)):
            require_feedforward(self.genes["mixer"], key)
        if isinstance(value, ByLayer):
            self.schedule[key] = value.values
        elif isinstance(value, HeadSplit):
            if key != "mixer":
                raise ConfigError(
                    f"by_head names mixers, so it is no value of `{key}`: give a tuple"
                )
            self.genes["mixer"] = value.over(self.genes["mixer"])
        elif key in GENES:
            choice = plain_choice(value)
            GENES[key].options(choice.name)  # refuses what there is not
            if choice.name != self.genes[key].name or choice.options:
                self.genes[key] = Choice(choice.name, to_dict(choice.options))
        elif gene in GENES and key != gene:
            self._give(gene, to_dict(value))
        elif key in FIELDS:
            known: Any = self.fields.get(key)
            both = isinstance(value, dict) and isinstance(known, dict)
            self.fields[key] = {**known, **value} if both else value
        elif key in field_types(BlockOptions):
            self.fields["block"][key] = value
        else:
            self._give(self._home(key), {key: to_dict(value)})

    def _has(self, gene: str, value: Any) -> bool:
        """True where a choice is the one that there is already, defaults included."""
        record = GENES[gene]
        return record.typed(plain_choice(value)) == record.typed(self.genes[gene])

    def _give(self, gene: str, options: dict[str, Any]) -> None:
        choice = self.genes[gene]
        self.genes[gene] = Choice(choice.name, {**choice.options, **options})

    def _home(self, option: str) -> str:
        """The gene whose alternative has an option of this name."""
        homes = {
            name: {f.name for f in dataclasses.fields(GENES[name].options(choice.name))}
            for name, choice in self.genes.items()
            if name not in SECOND_MIXERS
        }
        for gene, names in homes.items():
            if option in names:
                return gene
        from everyformer.core.mixer import DROPOUT, no_weights

        if option == DROPOUT:
            raise no_weights(str(self.genes["mixer"].name))
        known = {*FIELDS, *GENES, *field_types(BlockOptions)}.union(*homes.values())
        raise ConfigError(
            f"unknown option `{option}` for member '{self.member}'; {nearest(option, known)}"
        )


def require_feedforward(mixer: Choice, option: str) -> None:
    """Refuse an option of feed-forwards with a mixer whose layers have none."""
    if MIXERS.get(str(mixer.name)).with_feedforward:
        return
    own = (f.name for f in dataclasses.fields(MIXER.options(mixer.name)))
    raise GeneError(
        f"mixer '{mixer.name}' holds its own channel projections, so its blocks have no "
        f"feed-forward and `{option}` has no meaning; its own options: {', '.join(sorted(own))}"
    )
