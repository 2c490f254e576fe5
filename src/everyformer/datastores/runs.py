"""Training of any model, those that look things up in a store of their training text included.

`train_run` is `everyformer.training.train` for who trains members by name. What a retrieval needs
before or behind the training lies in the run's folder ``retrieval/``, and `reading_model` and
`reading_data` find it there again.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.datastores.indexing import Indexing
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVAL
from everyformer.genes.retrieval.base import StoreOptions
from everyformer.models.base import Model
from everyformer.models.language import LanguageModel
from everyformer.training.config import TrainingConfig
from everyformer.training.distributed import read_launch
from everyformer.training.loop import train
from everyformer.training.result import TrainResult
from everyformer.training.run import RunDirectory

FOLDER = "retrieval"
"""of a run, where its store lies and what it is read with"""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a training."""

    result: TrainResult
    model: Any
    """as it predicts: with its store, where it has one"""
    dataset: Dataset
    """as the model reads it"""
    job: Job | None = None
    """of a run with a store, whose temporary folder lasts as long as this"""


@dataclass(frozen=True, eq=False)
class Job:
    """A training of a model that has a retrieval."""

    model: LanguageModel
    dataset: TextDataset
    config: TrainingConfig
    run: RunDirectory | None
    say: Say
    more: dict[str, Any]
    """further arguments of `train`"""

    @property
    def options(self) -> Any:
        """Of the retrieval."""
        return options_of(self.model.config)

    @property
    def path(self) -> Path | None:
        """The run's directory, if it has one."""
        return None if self.run is None else self.run.path

    @cached_property
    def folder(self) -> Path:
        """Where its files go; of a training without a directory one that goes with this."""
        if self.run is None:
            temporary = tempfile.mkdtemp(prefix="everyformer-")
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
            return Path(temporary)
        found = self.run.path / FOLDER
        found.mkdir(parents=True, exist_ok=True)
        return found

    def outcome(self, result: TrainResult, model: Any = None, data: Any = None) -> Outcome:
        """What came of it; without a model and data those that it began with."""
        return Outcome(result, model or self.model, data or self.dataset, self)

    def train(self, dataset: TextDataset | None = None) -> TrainResult:
        """The model's own training."""
        data = self.dataset if dataset is None else dataset
        return train(self.model, data, self.config, self.run, **self.more)


class Companion(Protocol):
    """What a retrieval's `Retrieval.companion` module has."""

    def train_with(self, job: Job) -> Outcome:
        """Train, with what is needed before and behind."""

    def open_model(self, folder: Path, model: LanguageModel, tokenizer: Tokenizer | None,
                   say: Say) -> Any:  # fmt: skip
        """The model of a run as it predicts."""

    def beside(self, reading: Any, inputs: Tensor) -> dict[str, Tensor]:
        """What the model itself is given beside ``inputs`` by the one that ``open_model`` made."""

    def open_data(self, folder: Path, config: ModelConfig, dataset: TextDataset,
                  say: Say) -> TextDataset:  # fmt: skip
        """Data as such a model reads it."""


def train_run(
    model: Any,
    dataset: Dataset,
    config: TrainingConfig,
    run: RunDirectory | None = None,
    *,
    say: Say,
    **more: Any,
) -> Outcome:
    """As `everyformer.training.train`, with what the model's retrieval needs.

    Args:
        say: told what is done besides.
        more: further arguments of `train`.

    Raises:
        ConfigError: a text that is too short, or no text in order.
    """
    companion = companion_of(model.config) if isinstance(model, LanguageModel) else None
    if companion is None:
        return Outcome(train(model, dataset, config, run, **more), model, dataset)
    if not isinstance(dataset, TextDataset):
        raise ConfigError(
            f"retrieval '{model.config.genes[RETRIEVAL.name].name}' stores a text that goes on; "
            f"{dataset.name} has none: give text, or --retrieval none"
        )
    if read_launch().size > 1:
        raise ConfigError(
            f"{model.config.member} stores its training text, which one process does: start it "
            "without torchrun"
        )
    return companion.train_with(Job(model, dataset, config, run, say, more))


def companion_of(config: ModelConfig) -> Companion | None:
    """What trains and opens runs of such a model; None where it has no retrieval."""
    retrieval = RETRIEVAL.of(config)
    if retrieval is None:
        return None
    found: Any = importlib.import_module(f"everyformer.datastores.{retrieval.companion}")
    companion: Companion = found
    return companion


def options_of(config: ModelConfig) -> Any:
    """The options of a model's retrieval."""
    return RETRIEVAL.typed(config.genes[RETRIEVAL.name]).options


def reading_model(model: Model, path: Path, tokenizer: Tokenizer | None, say: Say) -> Any:
    """The model of the run at ``path`` as it predicts: with the store of the run, if it has one."""
    companion = companion_of(model.config)
    if companion is None:
        return model
    assert isinstance(model, LanguageModel)
    return companion.open_model(_there(path, model.config), model, tokenizer, say)


def reading_data(config: ModelConfig, path: Path, dataset: Dataset, say: Say) -> Dataset:
    """``dataset`` as the model of the run at ``path`` reads it."""
    companion = companion_of(config)
    if companion is None or not isinstance(dataset, TextDataset):
        return dataset
    return companion.open_data(_there(path, config), config, dataset, say)


def how_of(options: StoreOptions, dataset: TextDataset) -> Indexing:
    """How a text is read for keys; windows overlap by half."""
    context = options.context or dataset.length
    return Indexing(options.tap, context, max(1, context // 2))


def _there(path: Path, config: ModelConfig) -> Path:
    folder = path / FOLDER
    if not folder.is_dir():
        name = config.genes[RETRIEVAL.name].name
        raise CheckpointError(
            f"{path} holds a model with retrieval '{name}', but no folder {FOLDER} with its store: "
            "give the run that it was trained in"
        )
    return folder
