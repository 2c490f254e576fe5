"""A finished run as a verb needs it: its model, its data, its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyformer.core.config import from_dict
from everyformer.core.errors import CheckpointError, DataError
from everyformer.data import load_dataset
from everyformer.data.base import Dataset
from everyformer.data.config import DataConfig
from everyformer.data.tokenizers import Tokenizer, load_tokenizer
from everyformer.models.base import Model
from everyformer.training.checkpoint import load_model
from everyformer.training.run import RUN_FORMAT
from everyformer.training.storage import read_json


@dataclass(frozen=True)
class TrainedRun:
    """A run directory that has been read."""

    path: Path
    values: dict[str, Any]

    @property
    def task(self) -> str:
        """What the run's model does."""
        return str(self.values["data"]["task"])

    def model(self, average: int | None = None) -> Model:
        """The best weights of the run (the averaged ones where it kept an average), or the mean
        over its newest ``average`` checkpoints."""
        model = load_model(self.path, average=average)
        assert isinstance(model, Model)
        return model

    def tokenizer(self) -> Tokenizer | None:
        """What made the run's tokens."""
        held = self.values.get("tokenizer")
        return None if held is None else load_tokenizer(held)

    def dataset(self, config: DataConfig) -> Dataset:
        """Data read with the run's own tokenizer; refused if it does not fit the model."""
        dataset = load_dataset(config, self.task, tokenizer=self.tokenizer())
        model = self.values["model"]
        expected = model["vocabulary"]
        if dataset.kind == "text" and dataset.vocabulary != expected:
            raise DataError(
                f"{dataset.name} has {dataset.vocabulary} different tokens, but the run in "
                f"{self.path} was trained with {expected}: evaluate it on data of its own kind"
            )
        if dataset.task.startswith("classify") and len(dataset.classes) != model["classes"]:
            raise DataError(
                f"{dataset.name} has {len(dataset.classes)} classes, but the run in {self.path} "
                f"was trained with {model['classes']}"
            )
        if dataset.image is not None and list(dataset.image) != list(model["image"]):
            raise DataError(
                f"{dataset.name} has images of {dataset.image}, but the run in {self.path} takes "
                f"{tuple(model['image'])}: resize with --data.size and --data.colour"
            )
        return dataset


def open_run(place: str) -> TrainedRun:
    """Read a run directory's config."""
    path = Path(place)
    if not path.is_dir():
        raise CheckpointError(f"there is no run at {path}: give the directory that `train` made")
    return TrainedRun(path, read_json(path / "config.json", RUN_FORMAT))


def data_config(place: str) -> DataConfig | None:
    """The data options that a run was trained with; None if it was not made by `train`."""
    held = open_run(place).values.get("run")
    return from_dict(DataConfig, held["data"]) if isinstance(held, dict) else None
