"""`StoreJob`: a training with a store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from everyformer.data.text import TextDataset
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVAL, StoreOptions
from everyformer.models.language import LanguageModel
from everyformer.stores.chunks import Chunks, stored
from everyformer.stores.indexing import Indexing
from everyformer.stores.runs import FOLDER, JobOutcome, Say
from everyformer.stores.store.store import Store
from everyformer.system.signals import GracefulStop
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.result import TrainResult
from everyformer.training.run import RunDirectory


@dataclass(frozen=True, eq=False)
class StoreJob:
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
        """Options of the retrieval."""
        return options_of(self.model.config)

    @property
    def path(self) -> Path | None:
        """The run's directory, if it has one."""
        return None if self.run is None else self.run.path

    @cached_property
    def folder(self) -> Path:
        """Folder of its files; of a training without a directory one that goes with this."""
        if self.run is None:
            temporary = tempfile.mkdtemp(prefix="everyformer-")
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
            return Path(temporary)
        folder = self.run.path / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def outcome(self, result: TrainResult, model: Any = None, data: Any = None) -> JobOutcome:
        """Outcome of the job; without a model and data those that it began with."""
        return JobOutcome(result, model or self.model, data or self.dataset, self)

    def train(self, dataset: TextDataset | None = None) -> TrainResult:
        """The model's own training."""
        data = self.dataset if dataset is None else dataset
        return train(self.model, data, self.config, self.run, **self.more)

    def store(
        self, folder: Path, model: LanguageModel, texts: Chunks, how: Indexing
    ) -> tuple[Store | None, int | None]:
        """The store of ``texts`` by ``model``; None, and by which signal, where it was stopped."""
        data = self.dataset
        with GracefulStop("stopping after this batch; continue with --resume") as stop:
            store = stored(
                folder, model, data.tokenizer, texts, how, data.fingerprint,
                lambda: stop.received is not None,
            )  # fmt: skip
        return store, stop.received


def options_of(config: ModelConfig) -> Any:
    """The options of a model's retrieval."""
    return RETRIEVAL.typed(config.genes[RETRIEVAL.name]).options


def how_of(options: StoreOptions, dataset: TextDataset) -> Indexing:
    """Windows and tap by which a text is read for keys; windows overlap by half."""
    context = options.context or dataset.length
    return Indexing(options.tap, context, max(1, context // 2))
