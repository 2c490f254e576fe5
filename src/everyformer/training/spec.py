"""`RunSpec`: one training described once, for `train`, comparisons, resumed runs and warm starts.

A description is complete when it is read: every gene with all its options, every size. What the
data decides (vocabulary, classes, the shape of pictures) is added by `model_config`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from everyformer.core.config import (
    Choice,
    Given,
    Options,
    field_types,
    from_dict,
    over,
    part_of,
    to_dict,
)
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.core.seeds import seed_of
from everyformer.core.wording import join_names
from everyformer.data.config import DataConfig
from everyformer.family import info
from everyformer.genes import GENES, plain_genes
from everyformer.genes.config import Architecture, ModelConfig
from everyformer.genes.feedforward import FEEDFORWARD
from everyformer.genes.gene import NONE
from everyformer.genes.mixers import MIXER
from everyformer.models.draft import (
    Draft,
    HeadSplit,
    completed,
    is_causal,
    require_feedforward,
    scales_embedding,
)
from everyformer.system.files import expanded, visible_files
from everyformer.system.plain import from_json, to_json
from everyformer.training.config import TrainingConfig

if TYPE_CHECKING:
    from everyformer.data.dataset import Dataset
    from everyformer.models.base import Model


@dataclass(frozen=True)
class RunSpec(Options):
    """One member, trained on one source of data."""

    choices_in: ClassVar[str | None] = "genes"

    member: str
    """a member's name (`everyformer list`), or a whole model: file.py:factory, module:factory,
    hf:KIND"""
    genes: dict[str, Choice] = field(default_factory=plain_genes)
    """what stands for every gene, with its own options"""
    task: str | None = None
    """lm, mlm, seq2seq, pixels or super-resolution; classify or regress, of what the data holds:
    text, images or series (default: what the data suggests, of what the member can do)"""
    data: DataConfig = field(default_factory=DataConfig)
    """what is read, and how"""
    model: Architecture = field(default_factory=Architecture)
    """sizes and layout"""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """budget, optimiser and rhythm"""
    by_layer: tuple[str, ...] = ()
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
    """continue the run in the directory --out; it knows its member and options. auto
    begins one where there is none, for programs that start this again"""
    overwrite: bool = False
    """replace an earlier run in that directory"""
    json: bool = False
    """machine output"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.overwrite:
            raise ConfigError("resume and overwrite contradict each other: give one of them")
        object.__setattr__(
            self, "genes", {n: GENES[n].typed(choice) for n, choice in self.genes.items()}
        )

    def record(self) -> dict[str, Any]:
        """The options of the run as plain values, without where it is and how it is reported."""
        here = ("out", "resume", "overwrite", "json")
        return {name: value for name, value in to_dict(self).items() if name not in here}


def resolve(
    given: Sequence[Given], task: str | None = None, base: RunSpec | None = None
) -> RunSpec:
    """Run that was given, every option of it decided.

    Args:
        given: later places over earlier ones.
        task: what the data are for, where that is known (default: what was given); one that the
            member lacks is refused once data are known.
        base: what holds where nothing was given (default: the row of the member for the task).

    Raises:
        ConfigError: unknown options, wrong values; see `from_dict`.
    """
    if base is None:
        named: dict[str, Any] = {}
        for values, _ in given:
            named |= {name: value for name, value in values.items() if value is not None}
        member, task = str(named.get("member")), task or named.get("task")
        base = preset(member, task if task in info(member).tasks else None)
    return over(base, given)


def preset(member: str, task: str | None = None, **options: Any) -> RunSpec:
    """The run that a member's own row describes.

    Args:
        task: what it does (default: the member's first task).
        options: what differs of the model, by the names that `create_model` has.
    """
    row = info(member)
    task = task or row.tasks[0]
    draft = Draft.of(row, task)
    draft.put_all(options)
    return RunSpec(
        member,
        draft.genes,
        data=DataConfig(**row.genes.data),
        model=from_dict(Architecture, to_dict(draft.fields)),
        by_layer=_as_words(draft.schedule),
    )


def described(config: ModelConfig) -> RunSpec:
    """A model as the description of a run; what `configure` chooses by itself is left open."""
    shape = part_of(Architecture, config)
    if config.scale_embedding == scales_embedding(config):
        shape = dataclasses.replace(shape, scale_embedding=None)
    if config.causal == is_causal(dataclasses.replace(config, causal=None)):
        shape = dataclasses.replace(shape, causal=None)
    heads, mixer = None, config.genes["mixer"]
    if mixer.name == "by-head":
        heads, own = ",".join(mixer.get("mixers")), str(info(config.member).genes["mixer"].name)
        mixer = Choice(own, mixer.get("own", {}).get(own, {}))
    return RunSpec(
        config.member,
        config.genes | {"mixer": mixer},
        model=shape,
        by_layer=_as_words(config.schedule),
        by_head=heads,
    )


def resumed(folder: str, member: str | None) -> RunSpec | None:
    """The run in ``folder``, to continue; None where it was killed before anything was written,
    of which the empty folder is left.

    Raises:
        CheckpointError, ConfigError: there is none, or it is another member's.
    """
    path = expanded(folder) / "config.json"
    if not path.exists():
        empty = path.parent.is_dir() and not visible_files(path.parent)
        if member is None or not empty:
            raise CheckpointError(f"there is no run in {folder} to resume")
        return None
    from everyformer.training.saved import read_config, trained_on

    saved = read_config(path.parent)
    values, data = saved.get("run"), trained_on(saved)
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{folder} was not made by `everyformer train`: name the member again"
        )
    if member is not None and member != values["member"]:
        raise ConfigError(
            f"the run in {folder} trains {values['member']}, not {member}: choose another `out`"
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
            f"differs in {join_names(differing)}: continue with `train {config.member} --from "
            f"{folder}` and the same other options, or leave out --from"
        )
    brought = {
        name: Choice(after[name].name, gene.learned_without(after[name]) | after[name].options)
        for name, gene in GENES.items()
        if not gene.holds_weights and before[name].name != after[name].name
    }
    return dataclasses.replace(config.with_genes(**brought), member=member)


def model_config(spec: RunSpec, dataset: Dataset, origin: ModelConfig | None = None) -> ModelConfig:
    """The complete model: what was chosen, sized for what the data brings.

    Args:
        origin: of a warm start, the model that it begins with. A classifier that starts from a
            causal model stays causal; one that starts from a masked model hides no sentences.
    """
    from everyformer.data.masking import with_sentences

    spec.training.check_task(dataset.does)
    task, row = dataset.does, Draft.of(info(spec.member), dataset.task)
    facts = {"max_length": max(spec.model.max_length or 0, dataset.length), **dataset.model_options}
    if origin is not None and origin.causal and task.answers:
        facts["causal"] = True
    if origin is not None and origin.does.predicts == "hidden" and origin.task != dataset.task:
        facts["summaries"] = dataclasses.replace(spec.model.summaries, cpc=0.0, mask_token=None)
    genes = dict(spec.genes)
    if spec.by_head is not None:
        genes["mixer"] = HeadSplit(tuple(spec.by_head.split(","))).over(genes["mixer"])
    if spec.genes["feedforward"] != FEEDFORWARD.typed(row.genes["feedforward"]):
        require_feedforward(genes["mixer"], "feedforward")
    schedule = dict(_values_by_layer(item) for item in spec.by_layer)
    mixer, usual = genes["mixer"], MIXER.typed(row.genes["mixer"])
    known: Any = type(usual.options)
    for name in field_types(known) if mixer.name == usual.name else ():
        if name in schedule and mixer.get(name) != usual.get(name):
            raise ConfigError(
                f"`mixer.{name}` and `by_layer` {name}=... both say what it is: give one of them"
            )
    config = ModelConfig(
        **{**vars(spec.model), **facts},
        member=spec.member,
        task=dataset.task,
        genes={
            name: Choice(choice.name, to_dict(choice.options)) for name, choice in genes.items()
        },
        schedule={name: tuple(values) for name, values in schedule.items()},
    )
    return with_sentences(completed(config), dataset)


def build_run(spec: RunSpec, dataset: Dataset, origin: ModelConfig | None = None) -> Model:
    """The model of a run as it is before its first step: weights follow from the run's seed.

    Raises:
        UnsupportedError: the run compiles it, and there is no compiler.
    """
    import torch

    from everyformer.core.devices import check_compiler, pick_device
    from everyformer.models.build import build_model

    if spec.training.compile:
        check_compiler(pick_device(spec.training.device))

    config = model_config(spec, dataset, origin)
    torch.manual_seed(seed_of(spec.training.seed, spec.member))
    return build_model(config)


def _as_words(schedule: Mapping[str, Sequence[Any]]) -> tuple[str, ...]:
    """Options that differ by layer as option=value,value,..."""
    return tuple(
        f"{name}={','.join(to_json(value) for value in values)}"
        for name, values in schedule.items()
    )


def _values_by_layer(item: str) -> tuple[str, list[Any]]:
    name, equals, values = item.partition("=")
    if not equals:
        raise ConfigError(f"`by_layer` takes option=value,value,..., not '{item}'")
    return name.replace("-", "_"), [value_of(text) for text in values.split(",")]


def value_of(text: str) -> Any:
    """The value that a word stands for: JSON, none, or else the word itself."""
    try:
        return from_json(text)
    except json.JSONDecodeError:
        return None if text in NONE else text
