"""The words of `everyformer train` as the description of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from everyformer import family
from everyformer.cli.flags import arrange, flags_of
from everyformer.cli.messages import refuse_files
from everyformer.cli.parsing import VerbOptions, chosen_genes, parse, peek, read_config
from everyformer.core.config import Choice, NoOptions
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.tasks import tasks_that
from everyformer.core.wording import listed
from everyformer.family import info
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.system.files import expanded
from everyformer.training.spec import RunSpec, described, preset

if TYPE_CHECKING:
    from everyformer.genes.config import ModelConfig

ABOUT = "Train a member on your data."
EXAMPLES = (
    "everyformer train aft-local --data mytext.txt --steps 2000",
    "everyformer train gmlp --data digits --budget-seconds 60 --model.width 64",
)


@dataclass(frozen=True)
class TrainOptions(VerbOptions, RunSpec):
    """A run, and where it is kept."""

    out: str | None = None
    """directory of the run (default: runs/MEMBER)"""
    resume: bool = False
    """go on with the run in the directory --out; it knows its member and options"""
    overwrite: bool = False
    """replace an earlier run in that directory"""
    json: bool = False
    """machine output"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.overwrite:
            raise ConfigError("resume and overwrite contradict each other: give one of them")

    def spec(self) -> RunSpec:
        """The run alone."""
        return RunSpec(**{f.name: getattr(self, f.name) for f in dataclasses.fields(RunSpec)})


def train_options(spec: RunSpec, **more: Any) -> TrainOptions:
    """A run as options of the verb."""
    return TrainOptions(**{f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}, **more)


def read_run(
    words: Sequence[str], default: TrainOptions | None = None, task: str | None = None
) -> TrainOptions:
    """Parse the flags of a run; the member, wherever it is named, decides which options exist.

    Args:
        default: what holds where nothing is said (default: the preset of the member's row).
        task: that the data has been found to be for, if it is known.
    """
    member = named_member(words)
    if default is None:
        path = peek(words, "--config")
        table = read_config(path) if path is not None else {}
        member = member or table.get("member")
        if member is None and {"--help", "-h"}.isdisjoint(words) and not _origin(words, table):
            known = ", ".join(family.names())
            raise ConfigError(f"name the member to train; one of: {known}")
        default = _default(words, table, member, task)
        member = None if default.member is tyro.MISSING else default.member
    about = ABOUT
    if member is None and default.member is tyro.MISSING:
        about += " `everyformer train MEMBER --help` lists that member's own options too."
    return parse(
        TrainOptions,
        words,
        verb="train",
        about=about,
        examples=EXAMPLES,
        default=default,
        names=family.names(),
    )


def _default(
    words: Sequence[str], table: dict[str, Any], member: str | None, task: str | None
) -> TrainOptions:
    """What holds where nothing is said: of the run that is started from, or of the member's row."""
    said = chosen_genes(words, "train")
    chosen = {gene: None if name in NONE else name for gene, name in said.items()}
    origin = _origin(words, table)
    if origin is not None:
        spec = inherited(origin, member)
        # options are those of the alternative that is named
        other = {g: n for g, n in chosen.items() if n != spec.genes[g].name}
        named = {gene: GENES[gene].typed(Choice(name)) for gene, name in other.items()}
        return train_options(dataclasses.replace(spec, genes=spec.genes | named))
    if member is None:
        return _nothing()
    task = task or peek(words, "--task") or table.get("task")
    data = table.get("data")
    env = data.get("env") if isinstance(data, dict) else None
    if task is None and (peek(words, "--data.env") or env):
        [task] = tasks_that("interacts")
    if task not in info(member).tasks:
        # refused later, when the data is known
        task = None
    return train_options(preset(member, task, **chosen))


def _origin(words: Sequence[str], table: dict[str, Any]) -> str | None:
    origin = peek(words, "--from") or table.get("from_run")
    return None if origin is None else str(origin)


def named_member(words: Sequence[str]) -> str | None:
    """The positional word, checked; None if there is none."""
    names = family.names()
    placed, _ = arrange(words, flags_of(TrainOptions, _nothing()), names)
    # before the member is known, all but one of the words after a flag of its own stand there too
    named = [word for word in placed if word in names]
    if placed and not named:
        refuse_files(placed[:1], "train")
        raise unknown("member", placed[0], names)
    return named[0] if named else None


def _nothing() -> TrainOptions:
    """No member chosen yet: the options that all have."""
    return TrainOptions(tyro.MISSING, {n: Choice(g.default, NoOptions()) for n, g in GENES.items()})


def inherited(folder: str, member: str | None = None) -> RunSpec:
    """The member, sizes and options of the run or saved model in ``folder``, to start from it.

    Another ``member`` is one that differs in genes alone that mean nothing to weights, such as a
    memory: it brings those.

    Raises:
        ConfigError: it differs in others.
    """
    from everyformer.training.warmstart import read_start

    config = read_start(folder).config
    if member is not None and member != config.member:
        config = _as_member(config, member, folder)
    heads, mixer = None, config.genes["mixer"]
    if mixer.name == "by-head":
        heads, own = ",".join(mixer.options["mixers"]), info(config.member).genes["mixer"].name
        options = mixer.options.get("own", {}).get(own, {})
        config = config.with_genes(mixer=Choice(own, options))
    return dataclasses.replace(described(config), by_head=heads)


def _as_member(config: ModelConfig, member: str, folder: str) -> ModelConfig:
    """A learned model as one of another member."""
    before, after = config.genes, info(member).genes
    differing = [
        f"{name} ({before[name].name or NONE[0]} there, {after[name].name or NONE[0]} here)"
        for name, gene in GENES.items()
        if gene.holds_weights and before[name].name != after[name].name
    ]
    if differing:
        raise ConfigError(
            f"{folder} holds a model '{config.member}', whose weights do not fit '{member}', which "
            f"differs in {listed(differing)}: go on with `train {config.member} --from {folder}` "
            "and the same other options, or leave out --from"
        )
    brought = {
        name: Choice(after[name].name, gene.learned_without(after[name]) | after[name].options)
        for name, gene in GENES.items()
        if not gene.holds_weights and before[name].name != after[name].name
    }
    return dataclasses.replace(config.with_genes(**brought), member=member)


def run_folder(run: TrainOptions) -> Path:
    """Where the run is kept."""
    return expanded(run.out) if run.out is not None else Path("runs") / run.member
