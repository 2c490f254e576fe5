"""`Dataset`: the interface of all data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from everyformer.core.config import to_dict
from everyformer.core.errors import DataError, UnsupportedError
from everyformer.core.tasks import TASKS, Task
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.selection import epoch_rows, majority, spread
from everyformer.data.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from everyformer.data.text import TextDataset
    from everyformer.genes.config import ModelConfig


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of each column of some numbers."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    """1 where all are the same"""

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        """Mean and deviation of (rows, columns), in double precision; 0 and 1 of no rows."""
        if not len(values):
            return cls((0.0,) * values.shape[1], (1.0,) * values.shape[1])
        mean, std = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
        return cls((*mean.tolist(),), (*np.where(std > 0, std, 1.0).tolist(),))


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset(ABC):
    """Data of a run: training batches by step, validation batches in a fixed order, and facts."""

    name: str
    """Name of the data in tables."""
    task: str
    """Task of a model on it."""
    kind: Literal["text", "images", "series", "episodes"]
    """Kind of the inputs."""
    vocabulary: int
    """Number of different tokens; of pixels 256."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their ids; () where there are none, or they are not
    read."""
    length: int
    """Tokens in a sequence that the model must take: of pixels height x width x channels, of
    pictures to classify height x width."""
    image: tuple[int, int, int] | None = None
    """(channels, height, width) of pictures."""
    source_image: tuple[int, int, int] | None = None
    """(channels, height, width) of small pictures that are enlarged (super-resolution)."""
    features: Spread | None = None
    """Spread of the numbers at each step of a series, over the training part."""
    numbers: Spread | None = None
    """Spread of the numbers that are predicted, over the training part."""
    bytes_per_token: float | None = None
    """Mean bytes of a validation token: nats per token / ln 2 / this = bits per byte. None when
    that has no meaning."""
    split: str
    """One sentence: what there is of labels, how training and validation were separated, with their
    sizes, which columns are read, what was guessed and left out."""
    fingerprint: str
    """Hash of content, split and tokenizer; equal data on another machine has the same."""
    tokenizer: Tokenizer | None = None
    """The tokenizer of text; None for pictures and generated tasks."""

    @abstractmethod
    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        """The ``size`` rows of training step ``step``: a pure function of its arguments.

        So a run resumes by its step alone, and processes of one run build rows of the same batch:
        those of their ``portion``, as they would be in the whole one, padding included.
        """

    @abstractmethod
    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Every validation target exactly once, always in this order, ``size`` rows at a time.

        The last batch may have fewer rows. With ``limit`` only that many sequences, taken at equal
        distances over the whole validation part.
        """

    @property
    def does(self) -> Task:
        """The task."""
        return TASKS[self.task]

    @property
    def running_text(self) -> TextDataset | None:
        """These data as a text that goes on from row to row, where they are one."""
        return None

    @property
    def commonest(self) -> int | None:
        """Id of the commonest class of training, which a constant answer gives; None where none is
        counted."""
        return None

    @property
    def balanced_weights(self) -> np.ndarray | None:
        """(classes,) weights that make all classes as common; None where none is counted."""
        return None

    def as_of(self, commonest: int | None) -> Self:
        """These data, whose constant answer is another training part's ``commonest`` class."""
        return self

    def require_like(  # noqa: B027 (most data fit by their sizes alone)
        self, config: ModelConfig, facts: Mapping[str, Any], what: str
    ) -> None:
        """Refuse what a trained model does not fit.

        Args:
            facts: `summary` of the data that it was trained on. what: what messages call it.

        Raises:
            DataError: says both, and what to do.
        """

    def held_out_pairs(self, limit: int | None = None) -> tuple[list[Tensor], list[str]]:
        """Sources (S,) as tokens and their translations as text, in the order of the files.

        Raises:
            UnsupportedError: these are no pairs.
        """
        raise UnsupportedError(
            f"only parallel text can be translated; {self.name} is data of the task {self.task}: "
            "leave out `bleu` and `translations`"
        )

    def held_out_pictures(self, count: int) -> tuple[Tensor, Tensor | None]:
        """``count`` held-out pictures (n, C, H, W) at equal distances, and their class ids.

        Raises:
            UnsupportedError: these are no pictures.
        """
        raise UnsupportedError(
            f"{self.name} is data of the task {self.task}, and holds no pictures"
        )

    @property
    def counting(self) -> float | None:
        """The loss a held-out target of whoever has counted those of the training part
        (`everyformer.data.counting`); None where that has no meaning."""
        return None

    @property
    def shortcut(self) -> float | None:
        """The share of answers that a cheap rule finds, of data that ask; None of all others."""
        return None

    @property
    def tested(self) -> Self | None:
        """These data with other held-out rows, for what was chosen by those here; None where there
        are no others."""
        return None

    @property
    def target_ends(self) -> dict[str, int]:
        """Start and end token of seq2seq, the separator for both; {} of other tasks."""
        if not self.does.translates:
            return {}
        end = 0 if self.tokenizer is None else self.tokenizer.separator
        assert end is not None
        return {"start_token": end, "end_token": end}

    @property
    def model_options(self) -> dict[str, Any]:
        """Fields of a model's config that the data decides."""
        options: dict[str, Any] = {
            "vocabulary": self.vocabulary,
            "classes": max(len(self.classes), 1),
            "image": self.image,
            "source_image": self.source_image,
            "class_names": self.classes if self.does.draws else (),
            **self.target_ends,
        }
        if self.numbers is not None:
            options |= {"target_mean": self.numbers.mean, "target_std": self.numbers.std}
        if self.features is not None:
            known = {"series_mean": self.features.mean, "series_std": self.features.std}
            options |= {"series": len(self.features.mean), **known}
        return options | self.shape_options

    @property
    def shape_options(self) -> dict[str, Any]:
        """Those of one kind of data alone."""
        return {}

    def summary(self) -> dict[str, Any]:
        """The facts above as plain values, for a run's files and reports."""
        values = {field.name: to_dict(getattr(self, field.name)) for field in fields(Dataset)}
        return values | {"tokenizer": self.tokenizer and self.tokenizer.name}

    def training_rows(self, count: int) -> int:
        """``count``, how much there is to train on, which is not nothing."""
        if count == 0:
            raise DataError(f"all of {self.name} is held out, so there is nothing to train on")
        return count


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassedDataset(Dataset):
    """Data of which each row has a class, or none: trained on in shuffled epochs."""

    labels: np.ndarray
    """(rows,) class ids, zeros without classes; or (rows, numbers) float32 to predict."""
    train_rows: np.ndarray
    """Rows for training."""
    validation_rows: np.ndarray
    """Rows that are held out."""
    usual: int | None = None
    """Id of the class that was commonest in another training part, that of the run that these rows
    measure; None: their own."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Rows of each class; () without classes."""
        if not self.classes:
            return ()
        return tuple(np.bincount(self.labels, minlength=len(self.classes)).tolist())

    @property
    def commonest(self) -> int | None:
        """Id of the commonest class of training, which a baseline always answers."""
        if not self.classes or self.usual is not None:
            return self.usual
        return majority(self.labels, self.train_rows, self.validation_rows)[0]

    def as_of(self, commonest: int | None) -> Self:
        return replace(self, usual=commonest) if self.classes else self

    @property
    def majority(self) -> float | None:
        """Validation accuracy of always giving the commonest class of training."""
        if not self.classes or not len(self.validation_rows):
            return None
        return float((self.labels[self.validation_rows] == self.commonest).mean())

    @property
    def balanced_weights(self) -> np.ndarray:
        """(classes,) rows / (classes that occur * rows of the class), over the training part; 0 of
        a class that has none."""
        counts = np.bincount(self.labels[self.train_rows], minlength=len(self.classes))
        weights: np.ndarray = counts.sum() / ((counts > 0).sum() * np.maximum(counts, 1))
        return np.where(counts > 0, weights, 0.0)

    def summary(self) -> dict[str, Any]:
        found = {"counts": list(self.counts), "majority": self.majority}
        return super().summary() | found | {"commonest": self.commonest}

    @abstractmethod
    def rows(self, chosen: np.ndarray) -> Batch:
        """The rows of these numbers."""

    def answers(self, chosen: np.ndarray) -> Tensor:
        """The targets of these rows: class ids (B,), or numbers (B, N)."""
        return torch.from_numpy(self.labels[chosen])

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        return self.rows(epoch_rows(self.train_rows, step, size, seed, portion))

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        rows = self.validation_rows[spread(len(self.validation_rows), limit)]
        for first in range(0, len(rows), size):
            yield self.rows(rows[first : first + size])
