"""A finished run, or a model that was saved by itself, as a verb needs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from everyformer.cli.found import found_run
from everyformer.cli.parsing import say
from everyformer.core.config import from_dict
from everyformer.core.devices import pick_device
from everyformer.core.errors import CheckpointError, ConfigError, DataError, UnsupportedError
from everyformer.core.plugins import edited
from everyformer.core.tasks import Task
from everyformer.core.wording import join_first
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import load_tokenizer
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import KnnOptions
from everyformer.models.base import Model
from everyformer.system.files import expanded
from everyformer.training.saved import (
    best_checkpoint,
    is_model,
    load_model,
    read_config,
    trained_on,
)
from everyformer.training.storage import check_finite
from everyformer.training.warmstart import saved_tokenizer


@dataclass(frozen=True)
class TrainedRun:
    """A run directory, or the folder of a saved model, that has been read."""

    path: Path
    values: dict[str, Any]
    """the run's config.json; of a saved model ``model`` and some of ``data``"""
    saved: bool = False
    """a model by itself: it does not know its data or its beginning"""
    device: str = "cpu"
    """where its model is computed"""

    @property
    def config(self) -> ModelConfig:
        """The model's description."""
        return from_dict(ModelConfig, self.values["model"])

    @property
    def task(self) -> str:
        """Task of the model."""
        return str(self.values["model" if self.saved else "data"]["task"])

    @property
    def does(self) -> Task:
        """That task."""
        return self.config.does

    @property
    def length(self) -> int:
        """Tokens of a training sequence; of a saved model those that it takes at most."""
        return self.config.tokens if self.saved else int(self.values["data"]["length"])

    def model(self, average: int | None = None) -> Model:
        """The best weights of the run (the averaged ones where it kept an average), or the mean
        over its newest ``average`` checkpoints.

        Raises:
            DivergedError: they are not finite.
        """
        model = load_model(self.path, average=average, device=self.device)
        assert isinstance(model, Model)
        check_finite(model, self.path)
        return model

    def step(self, average: int | None = None) -> int | None:
        """The step that `model` gives the weights of; None of a saved model and of a mean."""
        if self.saved or average is not None:
            return None
        return int(best_checkpoint(self.path / "checkpoints").name.removeprefix("step-"))

    def reading(self, average: int | None, store: str | None, knn: KnnOptions) -> Any:
        """`model`, reading the datastore in the folder ``store`` if one is named.

        Raises:
            ConfigError: options of a datastore are given, but no datastore.
        """
        model = self.model(average)
        if store is None:
            if knn != KnnOptions():
                raise ConfigError("options of a datastore are given, but none itself: give --store")
            from everyformer.stores.runs import reading_model

            return reading_model(model, self.path, self.tokenizer(), say)
        from everyformer.stores.reader import with_store

        return with_store(model, self.text_tokenizer(), store, knn, say=say)

    def extra_inputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Inputs besides ``inputs`` that the run's own store finds."""
        from everyformer.stores.runs import reading_model, runner_of

        runner = runner_of(self.config)
        if runner is None:
            return {}
        reading = reading_model(self.model(), self.path, self.tokenizer(), say)
        return runner.extra_inputs(reading, inputs)

    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the model; None where they are no text, or it was saved without."""
        if self.saved:
            return saved_tokenizer(self.path)
        values = self.values.get("tokenizer")
        return None if values is None else load_tokenizer(values)

    def text_tokenizer(self) -> Tokenizer:
        """`tokenizer` of a model that reads text.

        Raises:
            UnsupportedError: it reads none.
        """
        if (tokenizer := self.tokenizer()) is None:
            raise UnsupportedError(self.no_text())
        return tokenizer

    def no_text(self) -> str:
        """Reason why there is no tokenizer."""
        if self.saved:
            return (
                f"the model in {self.path} was saved without a tokenizer, so it reads no text: put "
                "one beside it with ef.save(model, folder, tokenizer=...)"
            )
        return (
            f"the run in {self.path} learned tokens that no tokenizer made (an array, a generated "
            "task): it reads no text"
        )

    @property
    def data(self) -> DataConfig | None:
        """The data options that a run was trained with; None if it was not made by `train`."""
        return None if self.saved else trained_on(self.values)

    def own_dataset(self, instead: str) -> Dataset:
        """The run's own data as they are now, with a note where they have changed since.

        Args:
            instead: what to do where they are not known.

        Raises:
            ConfigError: they are not.
        """
        if self.data is None:
            what = "a saved model" if self.saved else "the run"
            raise ConfigError(f"{what} in {self.path} does not say where its data is: {instead}")
        dataset = self.dataset(self.data)
        self.changed(self.data, dataset)
        return dataset

    def changed(self, config: DataConfig, dataset: Dataset) -> bool:
        """True, and said, where ``dataset`` by ``config`` is the run's own and not any more what it
        was trained on, so that what is held out now may have been learned."""
        known = self.values.get("data", {}).get("fingerprint")
        if config != self.data or dataset.fingerprint == known:
            return False
        say(
            f"{config.source} has changed since the run was trained on it, so what is held out of "
            "it now may have been learned then: measure a file that the run has not seen"
        )
        return True

    def dataset(self, config: DataConfig) -> Dataset:
        """Data read with the run's own tokenizer; refused if it does not fit the model."""
        model, facts, own = self.values["model"], self.values.get("data", {}), self.data
        known = facts.get("classes") if self.does.classifies else None
        dataset = load_dataset(
            config,
            self.task,
            tokenizer=self.tokenizer(),
            sides=self._sides(config),
            # of other data some of the classes will do
            classes=known if known and (own is None or config.source != own.source) else (),
            stored=own,
        )
        expected = model["vocabulary"]
        what = f"the {'model' if self.saved else 'run'} in {self.path}"
        if dataset.kind == "text" and dataset.vocabulary != expected:
            raise DataError(
                f"{dataset.name} has {dataset.vocabulary} different tokens, but {what} was trained "
                f"with {expected}: evaluate it on data of its own kind"
            )
        if dataset.does.classifies and len(dataset.classes) != model["classes"]:
            raise DataError(
                f"{dataset.name} has {len(dataset.classes)} classes, but {what} was trained with "
                f"{model['classes']}"
            )
        if config != own:
            dataset = dataset.as_of(facts.get("commonest"))
        if known and list(dataset.classes) != known:
            raise DataError(
                f"{dataset.name} has the classes {join_first(dataset.classes)}, but {what} was "
                f"trained with {join_first(known)}: give data with the same classes"
            )
        classes = self.config.class_names
        if dataset.does.draws and dataset.classes != classes:
            here, there = (", ".join(names) or "none" for names in (dataset.classes, classes))
            raise DataError(
                f"{what} was trained with the classes {there}, but {dataset.name} has {here}: give "
                "data with the same class folders, and --data.labels where a model draws by class"
            )
        small = self.config.source_image
        if dataset.source_image != small:
            raise DataError(
                f"{dataset.name} has small images of {dataset.source_image}, but {what} enlarges "
                f"{small}: choose with --data.small"
            )
        dataset.require_like(self.config, facts, what)
        if dataset.image is not None and list(dataset.image) != list(model["image"]):
            raise DataError(
                f"{dataset.name} has images of {dataset.image}, but {what} takes "
                f"{tuple(model['image'])}: resize with --data.size and --data.colour"
            )
        from everyformer.stores.runs import reading_data

        return reading_data(self.config, self.path, dataset, say)

    def _sides(self, config: DataConfig) -> tuple[str, str] | None:
        """The names in the run's data of what it translates from and to; None of its own data, and
        where the options say otherwise."""
        sides, own = self.values.get("data", {}).get("sides"), self.data
        if not sides or own is None or config.source == own.source:
            return None
        for name in ("languages", "source_column", "target_column"):
            if getattr(config, name) not in (None, getattr(own, name)):
                return None
        return sides[0], sides[1]


def open_run(folder: str, device: str = "cpu", quiet: bool = False) -> TrainedRun:
    """Read the config of a run's directory, or of a saved model's folder; see also `found_run`.

    Args:
        device: where its model is computed; auto: an accelerator if there is one.
        quiet: report nothing of what the path means, since it is opened again.

    Raises:
        CheckpointError: neither is there, or it is damaged.
        ConfigError: there is no such device.
    """
    device = str(pick_device(device))
    own_folder, note = found_run(folder)
    if note is not None and not quiet:
        say(note)
    path = expanded(own_folder)
    if not path.is_dir():
        raise CheckpointError(f"there is no run at {path}: give the directory that `train` made")
    values = read_config(path)
    if is_model(path):
        known = {"model": values["config"], "data": values.get("data", {})}
        return TrainedRun(path, known, True, device)
    for spec in () if quiet else edited(values.get("plugins", {})):
        say(f"{spec} was edited since this run was started")
    return TrainedRun(path, values, False, device)
