"""`Draft`: a model while it is described, from a member's row and loose options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from everyformer.blocks.options import BlockOptions
from everyformer.core.config import Choice, field_types, to_dict
from everyformer.core.errors import ConfigError, GeneError, nearest
from everyformer.core.member import Member
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.feedforward import FEEDFORWARD, FeedForwardOptions
from everyformer.genes.gene import plain_choice
from everyformer.genes.mixers import CROSS, ENCODER, MIXER, MIXERS
from everyformer.models.defaults import require_task

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
            ConfigError, GeneError: one is unknown, or has no meaning beside the mixer.
        """
        for key in sorted(options, key=lambda name: (name not in GENES, name in OF_FEEDFORWARD)):
            self.put(key, options[key])

    def put(self, key: str, value: Any) -> None:
        """Put one option where it belongs."""
        gene = key.removesuffix("_options")
        if key in OF_FEEDFORWARD and not (key in GENES and self._has(key, value)):
            require_feedforward(self.genes["mixer"], key)
        if isinstance(value, ByLayer):
            self.schedule[key] = value.values
        elif isinstance(value, HeadSplit):
            if key != "mixer":
                raise ConfigError(
                    f"by_head names mixers, so it is no value of '{key}': give a tuple"
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
            f"unknown option '{option}' for member '{self.member}'; {nearest(option, known)}"
        )


def require_feedforward(mixer: Choice, option: str) -> None:
    """Refuse an option of feed-forwards beside a mixer whose layers have none."""
    if MIXERS.get(str(mixer.name)).feeds(mixer.plain()):
        return
    own = (f.name for f in dataclasses.fields(MIXER.options(mixer.name)))
    raise GeneError(
        f"mixer '{mixer.name}' holds its own channel projections, so its blocks have no "
        f"feed-forward and '{option}' has no meaning; its own options: {', '.join(sorted(own))}"
    )
