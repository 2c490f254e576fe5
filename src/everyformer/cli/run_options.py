"""The options of one training run, and the model that they and the data make together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import tyro

from everyformer.cli.flags import NONE, arrange, flags_of
from everyformer.cli.parsing import parse, peek, read_config
from everyformer.core.config import Options, from_dict, to_dict
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.files import expanded
from everyformer.core.plain import from_json
from everyformer.data.config import DataConfig
from everyformer.family import info, list_members
from everyformer.models.config import Architecture, ModelConfig
from everyformer.training.config import TrainingConfig

if TYPE_CHECKING:
    from everyformer.data.dataset import Dataset

GENES = {"position": "--position", "memory": "--model.memory"}
"""genes that decide which options a run has, and the flags that name them"""

ABOUT = "Train a member on your data."
EXAMPLES = (
    "everyformer train aft-local --data mytext.txt --steps 2000",
    "everyformer train gmlp --data digits --budget-seconds 60 --model.width 64",
)


@dataclass(frozen=True)
class NoOptions(Options):
    """There is nothing to choose."""


@dataclass(frozen=True)
class RunConfig(Options):
    """One member, trained on one source of data."""

    missing: ClassVar[Any] = tyro.MISSING

    member: tyro.conf.Positional[str]
    """a member's name (`everyformer list`)"""
    mixer: Any
    """the mixer's own options"""
    place: Any
    """the position's own options"""
    memory: Any
    """the memory's own options"""
    task: str | None = None
    """lm, mlm, classify-text, classify-image, seq2seq, pixels or super-resolution (default: what
    the data suggests, of what the member can do)"""
    data: DataConfig = field(default_factory=DataConfig)
    """what is read, and how"""
    model: Architecture = field(default_factory=Architecture)
    """sizes and wiring"""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """budget, optimiser and rhythm"""
    schedule: tuple[str, ...] = ()
    """options that differ by layer, as option=value,value,... with one value a layer"""
    by_head: str | None = None
    """mixers of the heads as name,name,... with one name a head; the member's own mixer keeps its
    options"""
    from_run: str | None = None
    """fine-tuning: begin with the weights of this run, or of a model that was saved in this folder;
    its sizes, options and tokenizer hold"""
    out: str | None = None
    """directory of the run (default: runs/MEMBER)"""
    resume: bool = False
    """go on with the run in the directory --out; it knows its member and options"""


def read_run(words: Sequence[str], default: RunConfig | None = None) -> RunConfig:
    """Parse the flags of a run; the member, wherever it is named, decides which options exist.

    Args:
        default: what holds where nothing is said (default: the preset of the member's row).
    """
    member = named_member(words)
    if default is None:
        path = peek(words, "--config")
        table = read_config(path) if path is not None else {}
        member = member or table.get("member")
        origin = peek(words, "--from") or table.get("from_run")
        if origin is not None:
            default = inherited(str(origin), member)
            member = default.member
        if member is None and {"--help", "-h"}.isdisjoint(words):
            known = ", ".join(m.name for m in list_members())
            raise ConfigError(f"name the member to train; one of: {known}")
        chosen = {gene: peek(words, flag) or _gene_in(table, gene) for gene, flag in GENES.items()}
        if default is None:
            default = _nothing() if member is None else preset(str(member), **chosen)
    about = ABOUT
    if member is None and default.member is tyro.MISSING:
        about += " `everyformer train MEMBER --help` lists that member's own options too."
    names = [m.name for m in list_members()]
    return parse(
        RunConfig, words, verb="train", about=about, examples=EXAMPLES, default=default, names=names
    )


def named_member(words: Sequence[str]) -> str | None:
    """The positional word, checked; None if there is none."""
    names = [m.name for m in list_members()]
    placed, _ = arrange(words, flags_of(RunConfig, _nothing()), names)
    # before the member is known, all but one of the words after a flag of its own stand there too
    named = [word for word in placed if word in names]
    if placed and not named:
        raise unknown("member", placed[0], names)
    return named[0] if named else None


def _gene_in(table: dict[str, Any], gene: str) -> str | None:
    """What a config file says about the position or the memory; None if it says nothing."""
    model = table.get("model")
    if not isinstance(model, dict) or gene not in model:
        return None
    return NONE[0] if model[gene] is None else str(model[gene])


def _nothing() -> RunConfig:
    """No member chosen yet: the options that all have."""
    return RunConfig(tyro.MISSING, NoOptions(), NoOptions(), NoOptions())


def preset(
    member: str,
    position: str | None = None,
    memory: str | None = None,
    mixer: str | None = None,
) -> RunConfig:
    """The run that a member's own row describes, before anything is changed.

    Args:
        position, memory, mixer: stand in the place of the member's own.
    """
    from everyformer.models.build import configure

    other = {} if mixer in (None, info(member).genes.mixer) else {"mixer": mixer}
    return _described(configure(member, info(member).tasks[0], **other), position, memory)


def inherited(place: str, member: str | None = None) -> RunConfig:
    """The member, sizes and options of the run or saved model in ``place``, to start from it.

    Raises:
        ConfigError: it is of another member than ``member``.
    """
    from everyformer.training.warmstart import read_start

    config = read_start(place).config
    if member is not None and member != config.member:
        raise ConfigError(f"the model in {place} is of the member {config.member}, not {member}")
    schedule = tuple(
        f"{name}={','.join(json.dumps(value) for value in values)}"
        for name, values in config.schedule.items()
    )
    heads = None
    if config.mixer == "by-head":
        options = config.mixer_options
        heads = ",".join(options["mixers"])
        mixer = info(config.member).genes.mixer
        own = options.get("own", {}).get(mixer, {})
        config = dataclasses.replace(config, mixer=mixer, mixer_options=own)
    return dataclasses.replace(_described(config), schedule=schedule, by_head=heads)


def _described(
    config: ModelConfig, position: str | None = None, memory: str | None = None
) -> RunConfig:
    """A model as the options of a run; ``position`` and ``memory`` stand in for its own."""
    from everyformer.memory import MEMORIES
    from everyformer.mixers import MIXERS
    from everyformer.positions import POSITIONS

    mixer: Any = MIXERS.get(config.mixer)
    where = config.position if position is None else None if position in NONE else position
    place: Any = POSITIONS.get(where).Options if where is not None else NoOptions  # type: ignore[attr-defined]
    chosen = config.position_options if where == config.position else {}
    held = config.memory if memory is None else None if memory in NONE else memory
    store: Any = MEMORIES.get(held).Options if held is not None else NoOptions  # type: ignore[attr-defined]
    kept = config.memory_options if held == config.memory else {}
    shape = {f.name: getattr(config, f.name) for f in dataclasses.fields(Architecture)}
    return RunConfig(
        member=config.member,
        mixer=from_dict(mixer.Options, config.mixer_options),
        place=from_dict(place, chosen),
        memory=from_dict(store, kept),
        model=Architecture(**{**shape, "position": where, "memory": held}),
    )


def model_config(
    run: RunConfig, dataset: Dataset, origin: ModelConfig | None = None
) -> ModelConfig:
    """The complete model: what the user chose, sized for what the data brings.

    A classifier that starts from the causal model ``origin`` stays causal, and a model whose mixer
    is not its member's keeps it. One that starts from a masked model has no hidden sentences.
    """
    from everyformer.data.sentences import told
    from everyformer.models.build import configure

    options: dict[str, Any] = {
        f.name: to_dict(getattr(run.model, f.name)) for f in dataclasses.fields(Architecture)
    }
    options["max_length"] = max(run.model.max_length or 0, dataset.length)
    options["mixer_options"] = to_dict(run.mixer)
    if origin is not None and origin.mixer not in (_mixer(run), "by-head"):
        options["mixer"] = origin.mixer
    if origin is not None and origin.causal and dataset.task.startswith("classify"):
        options["causal"] = True
    if origin is not None and origin.task == "mlm" != dataset.task:
        options["summaries"] |= {"cpc": 0.0, "mask_token": None}
    if origin is not None and origin.task == dataset.task == "seq2seq":
        between = ("encoder_mixer", "encoder_options", "cross_mixer", "cross_options")
        options |= {name: to_dict(getattr(origin, name)) for name in between}
    if run.by_head is not None:
        names = run.by_head.split(",")
        own = {name: options["mixer_options"] for name in names if name == _mixer(run)}
        options |= {"mixer": "by-head", "mixer_options": {"mixers": names, "own": own}}
    complete = configure(
        run.member,
        dataset.task,
        position_options=to_dict(run.place),
        memory_options=to_dict(run.memory),
        schedule=dict(_schedule(item) for item in run.schedule),
        vocabulary=dataset.vocabulary,
        classes=max(len(dataset.classes), 1),
        **dataset.pictures,
        **dataset.target_ends,
        **options,
    )
    return told(complete, dataset)


def _mixer(run: RunConfig) -> str:
    return info(run.member).genes.mixer


def run_folder(run: RunConfig) -> Path:
    """Where the run is kept."""
    return expanded(run.out) if run.out is not None else Path("runs") / run.member


def _schedule(item: str) -> tuple[str, list[Any]]:
    name, equals, values = item.partition("=")
    if not equals:
        raise ConfigError(f"--schedule takes option=value,value,..., not '{item}'")
    return name.replace("-", "_"), [_value(v) for v in values.split(",")]


def _value(text: str) -> Any:
    try:
        return from_json(text)
    except json.JSONDecodeError:
        return None if text in NONE else text
