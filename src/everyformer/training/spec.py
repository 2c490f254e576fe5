"""`RunSpec`: one training described once, for `train`, comparisons, resumed runs and warm starts.

A description is complete when it is read: every gene with all its options, every size. What the
data decides (vocabulary, classes, the shape of pictures) is added by `model_config`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from everyformer.core.config import Choice, Options, to_dict
from everyformer.core.errors import ConfigError
from everyformer.core.tasks import TASKS
from everyformer.data.config import DataConfig
from everyformer.family import info
from everyformer.genes import GENES, plain_genes
from everyformer.genes.config import Architecture, ModelConfig
from everyformer.genes.gene import NONE
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
    """a member's name (`everyformer list`)"""
    genes: dict[str, Choice] = field(default_factory=plain_genes)
    """what stands for every gene, with its own options"""
    task: str | None = None
    """lm, mlm, seq2seq, pixels or super-resolution; classify or regress, of what the data holds:
    text, images or series (default: what the data suggests, of what the member can do)"""
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


def preset(member: str, task: str | None = None, **chosen: str | None) -> RunSpec:
    """The run that a member's own row describes, before anything is changed.

    Args:
        task: what it does (default: the member's first task).
        chosen: by gene, the name of what replaces the member's own.
    """
    from everyformer.models.build import configure

    row = info(member)
    task = task or row.tasks[0]
    spec = described(configure(member, task, **chosen))
    training = TrainingConfig(**TASKS[task].training)
    return dataclasses.replace(spec, data=DataConfig(**row.genes.data), training=training)


def described(config: ModelConfig) -> RunSpec:
    """A model as the description of a run; what `configure` chooses by itself is left open."""
    from everyformer.models.build import is_causal, scales_embedding

    shape = {f.name: getattr(config, f.name) for f in dataclasses.fields(Architecture)}
    if config.scale_embedding == scales_embedding(config):
        shape["scale_embedding"] = None
    if config.causal == is_causal(info(config.member), dataclasses.replace(config, causal=None)):
        shape["causal"] = None
    schedule = tuple(
        f"{name}={','.join(to_json(value) for value in values)}"
        for name, values in config.schedule.items()
    )
    genes = {name: GENES[name].typed(choice) for name, choice in config.genes.items()}
    return RunSpec(config.member, genes, model=Architecture(**shape), schedule=schedule)


def model_config(spec: RunSpec, dataset: Dataset, origin: ModelConfig | None = None) -> ModelConfig:
    """The complete model: what was chosen, sized for what the data brings.

    Args:
        origin: of a warm start, the model that it begins with. A classifier that starts from a
            causal model stays causal; one that starts from a masked model hides no sentences.
    """
    from everyformer.data.sentences import with_sentences
    from everyformer.models.build import configure

    options = {
        f.name: to_dict(getattr(spec.model, f.name)) for f in dataclasses.fields(Architecture)
    }
    options["max_length"] = max(spec.model.max_length or 0, dataset.length)
    if origin is not None and origin.causal and TASKS[dataset.task].answers:
        options["causal"] = True
    if (
        origin is not None
        and TASKS[origin.task].predicts == "hidden"
        and origin.task != dataset.task
    ):
        options["summaries"] |= {"cpc": 0.0, "mask_token": None}
    genes = dict(spec.genes)
    if spec.by_head is not None:
        names, mixer = spec.by_head.split(","), genes["mixer"]
        own = {name: mixer.plain() for name in names if name == mixer.name}
        genes["mixer"] = Choice("by-head", {"mixers": names, "own": own})
    complete = configure(
        spec.member,
        dataset.task,
        schedule=dict(_by_layer(item) for item in spec.schedule),
        **dataset.model_options,
        **options,
        **genes,
    )
    return with_sentences(complete, dataset)


def build_run(spec: RunSpec, dataset: Dataset, origin: ModelConfig | None = None) -> Model:
    """The model of a run as it is before its first step: weights follow from the run's seed."""
    import torch

    from everyformer.models.build import build_model

    config = model_config(spec, dataset, origin)
    torch.manual_seed(spec.training.seed)
    return build_model(config)


def _by_layer(item: str) -> tuple[str, list[Any]]:
    name, equals, values = item.partition("=")
    if not equals:
        raise ConfigError(f"--by-layer takes option=value,value,..., not '{item}'")
    return name.replace("-", "_"), [_value(v) for v in values.split(",")]


def _value(text: str) -> Any:
    try:
        return from_json(text)
    except json.JSONDecodeError:
        return None if text in NONE else text
