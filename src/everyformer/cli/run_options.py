"""The words of `everyformer train` as the description of one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from everyformer import family
from everyformer.cli.messages import refuse_files
from everyformer.cli.parsing import Line, VerbOptions
from everyformer.cli.proposals import propose
from everyformer.core.config import Choice, NoOptions, from_dict, part_of
from everyformer.core.errors import CheckpointError, ConfigError, unknown
from everyformer.core.given import Given
from everyformer.core.plugins import allow_model
from everyformer.core.wording import listed
from everyformer.family import info
from everyformer.family.outside import outside_name
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.system.files import expanded, visible_files
from everyformer.training.spec import RunSpec, described, resolve

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
    """go on with the run in the directory --out; it knows its member and options. auto
    begins one where there is none, for programs that start this again"""
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
        return part_of(RunSpec, self)


@dataclass(frozen=True)
class GivenRun:
    """A run as the words and their config file say it."""

    said: Sequence[Given]
    base: RunSpec | None = None
    """the run that is resumed or started from, whose options hold where nothing is said"""

    def options(self, task: str | None = None) -> TrainOptions:
        """All options, of a run for ``task``, which data have been found to be for."""
        return resolve(TrainOptions, self.said, task, self.base)


def read_run(
    words: Sequence[str], typed: Sequence[str] | None = None
) -> tuple[GivenRun, TrainOptions]:
    """The words of a run, and its options as long as nothing is known of the data.

    The member, wherever it is named, decides which options there are, and so do the alternatives
    that are named for genes, the task, and the run that is resumed or started from.

    Args:
        typed: the words as they were typed, for commands that are proposed (default: ``words``).

    Raises:
        ConfigError: what is said is wrong, or no member is named; then three are proposed.
    """
    line = Line(TrainOptions, words, "train", family.names())
    resumes = _resumes(line)
    member = _named_member(line)
    base = None if line.helps or not resumes else _resumed(line, member)
    _refuse_another(line, member)
    member = member or line.peek("member")
    if base is None and (origin := line.peek("from_run")) is not None:
        base = inherited(origin, member)
    if base is not None:
        member = base.member
    if member is None and not line.helps:
        # what data are meant, whoever learns from them
        _, any_member = read_run(["attention", *(w for w in words if w != "--print-config")])
        raise propose(words if typed is None else typed, any_member.data, any_member.task)
    about, default = ABOUT, _nothing()
    if member is None:
        about += " `everyformer train MEMBER --help all` has that member's own too."
    else:
        first = Given({"member": member, "task": line.peek("task")})
        default = GivenRun([first], base).options()
    run = GivenRun(line.read(about, EXAMPLES, default), base)
    return run, line.printed(run.options())


def _resumes(line: Line[TrainOptions]) -> bool:
    """Whether a run goes on, by the line or its file; where it says auto, ``--resume`` or nothing
    comes in its place."""
    words, table = [*line.words], dict(line.file.values)
    in_file = table.get("resume", False) if "--no-resume" not in words else False
    if table.get("resume") == "auto":
        del table["resume"]
    line.file = dataclasses.replace(line.file, values=table)
    if "--resume=auto" in words:
        place, count = words.index("--resume=auto"), 1
    elif "--resume" in words[:-1] and words[words.index("--resume") + 1] == "auto":
        place, count = words.index("--resume"), 2
    elif in_file == "auto" and "--resume" not in words:
        place, count = 0, 0
    else:
        return "--resume" in words or in_file is True
    del words[place : place + count]
    out = line.peek("out")
    if out is None:
        raise ConfigError("--resume auto needs to know the run: give --out runs/NAME")
    begun = (expanded(out) / "config.json").exists()
    line.words = [*words, "--resume"] if begun else words
    return begun


def _named_member(line: Line[TrainOptions]) -> str | None:
    """The positional word, checked; None if there is none."""
    placed = line.placed(_nothing())
    # before the member is known, all but one of the words after a flag of its own stand there too
    named = [word for word in placed if word in line.names]
    for word in placed[:1] if not named else ():
        if (outside := outside_name(word)) is not None:
            allow_model(outside)
            return word
    if placed and not named:
        refuse_files(placed[:1], line.verb)
        raise unknown("member", placed[0], line.names)
    return named[0] if named else None


def _refuse_another(line: Line[TrainOptions], member: str | None) -> None:
    """Refuse a file with the genes of another member than the line names: it would be built of
    those under this one's name."""
    values = line.file.values
    genes = [name for name in GENES if name in values]
    if member is not None and genes and values.get("member", member) != member:
        raise ConfigError(
            f"{line.file.file} describes {values['member']} and its genes, and the command names "
            f"{member}: leave {member} out, or take 'member', {', '.join(genes)} out of the file"
        )


def _nothing() -> TrainOptions:
    """No member chosen yet: the options that all have."""
    return TrainOptions(tyro.MISSING, {n: Choice(g.default, NoOptions()) for n, g in GENES.items()})


def _resumed(line: Line[TrainOptions], member: str | None) -> RunSpec | None:
    """The run in --out, to go on with; None where it was killed before anything was written, of
    which the empty folder is left.

    Raises:
        CheckpointError, ConfigError: there is none, or it is another member's.
    """
    out = line.peek("out") or (member and str(Path("runs") / member))
    if out is None:
        raise ConfigError("--resume needs to know the run: give --out runs/NAME")
    path = expanded(out) / "config.json"
    if not path.exists():
        empty = path.parent.is_dir() and not visible_files(path.parent)
        if member is None or not empty:
            raise CheckpointError(f"there is no run in {out} to resume")
        return None
    from everyformer.training.saved import read_config, trained_on

    saved = read_config(path.parent)
    values, data = saved.get("run"), trained_on(saved)
    if not isinstance(values, dict):
        raise CheckpointError(f"{out} was not made by `everyformer train`: name the member again")
    if member is not None and member != values["member"]:
        raise ConfigError(
            f"the run in {out} trains {values['member']}, not {member}: choose another --out"
        )
    assert data is not None
    return dataclasses.replace(from_dict(RunSpec, values), data=data)


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
    return described(config)


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
    """The run's directory."""
    return Path("runs") / run.member if run.out is None else expanded(run.out)
