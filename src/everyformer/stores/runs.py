"""Training of any model, those that look things up in a store of their training text included.

`train_run` is `everyformer.training.train` for who trains members by name. What a retrieval needs
before or behind the training lies in the run's folder ``retrieval/``, and `reading_model` and
`reading_data` find it there again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import Tensor

from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVAL
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.parallel.world import read_launch
from everyformer.training.result import TrainResult
from everyformer.training.run import RunDirectory

if TYPE_CHECKING:
    from everyformer.models.base import Model
    from everyformer.models.language import LanguageModel

FOLDER = "retrieval"
"""of a run, where its store lies and what it is read with"""
Say = Callable[[str], None]


@dataclass(frozen=True)
class JobOutcome:
    """Result of a training, with the model and data as they predict and are read."""

    result: TrainResult
    model: Any
    """as it predicts: with its store, where it has one"""
    dataset: Dataset
    """as the model reads it"""
    job: Any = None
    """of a run with a store, whose temporary folder lasts as long as this"""


class RetrievalRunner(Protocol):
    """Functions of the module that trains and opens runs of a retrieval."""

    def train_with(
        self, model: LanguageModel, dataset: TextDataset, config: TrainingConfig,
        run: RunDirectory | None, say: Say, more: dict[str, Any],
    ) -> JobOutcome:  # fmt: skip
        """Train, with what is needed before and behind; ``more``: as of `train_run`."""

    def open_model(self, folder: Path, model: LanguageModel, tokenizer: Tokenizer | None,
                   say: Say) -> Any:  # fmt: skip
        """The model of a run as it predicts."""

    def extra_inputs(self, reading: Any, inputs: Tensor) -> dict[str, Tensor]:
        """Arguments of the model itself besides ``inputs``, by the one that ``open_model`` made."""

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
) -> JobOutcome:
    """Training as by `everyformer.training.train`, with the store that the model needs.

    Args:
        say: called with what else is done.
        more: further arguments of `train`.

    Raises:
        ConfigError: a text that is too short, or no text in order.
    """
    known = getattr(model, "config", None)
    runner = runner_of(known) if isinstance(known, ModelConfig) else None
    if runner is None:
        return JobOutcome(train(model, dataset, config, run, **more), model, dataset)
    text = dataset.running_text
    if text is None:
        raise ConfigError(
            f"retrieval '{model.config.genes[RETRIEVAL.name].name}' stores a text that goes on; "
            f"{dataset.name} has none: give text, or `retrieval=none`"
        )
    if read_launch().size > 1:
        raise ConfigError(
            f"{model.config.member} stores its training text, which one process does: start it "
            "without torchrun"
        )
    return runner.train_with(model, text, config, run, say, more)


def runner_of(config: ModelConfig) -> RetrievalRunner | None:
    """Module that trains and opens runs of such a model; None where it has no retrieval."""
    retrieval = RETRIEVAL.of(config)
    if retrieval is None:
        return None
    # a file of this package, named after it, which is read where a model has it
    name = f"{__package__}.{retrieval.name}_run"
    if find_spec(name) is None:
        raise UnsupportedError(
            f"no run is known that makes a store for retrieval '{retrieval.name}': take knn or "
            "spalm"
        )
    return cast(RetrievalRunner, import_module(name))


def reading_model(model: Model, path: Path, tokenizer: Tokenizer | None, say: Say) -> Any:
    """The model of the run at ``path`` as it predicts: with the store of the run, if it has one."""
    runner = runner_of(model.config)
    if runner is None:
        return model
    return runner.open_model(
        _there(path, model.config), cast("LanguageModel", model), tokenizer, say
    )


def reading_data(config: ModelConfig, path: Path, dataset: Dataset, say: Say) -> Dataset:
    """``dataset`` as the model of the run at ``path`` reads it."""
    runner = runner_of(config)
    text = dataset.running_text
    if runner is None or text is None:
        return dataset
    return runner.open_data(_there(path, config), config, text, say)


def _there(path: Path, config: ModelConfig) -> Path:
    folder = path / FOLDER
    if not folder.is_dir():
        name = config.genes[RETRIEVAL.name].name
        raise CheckpointError(
            f"{path} holds a model with retrieval '{name}', but no folder {FOLDER} with its store: "
            "give the run that it was trained in"
        )
    return folder
