"""`Predictor`: a trained model with what it needs to read rows and to say what it answers.

Rows go through the model in batches, in their order, texts of any length padded to one length;
padding changes nothing. What is longer than the model's training sequences is cut: texts that are
answered as a whole keep their beginning, those that go on their end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from everyformer.core.devices import forked_random
from everyformer.core.errors import ConfigError, DataError, DivergedError
from everyformer.core.mask import Mask
from everyformer.core.modules import evaluating
from everyformer.core.wording import pluralise
from everyformer.data.batch import batched
from everyformer.data.dataset import Dataset
from everyformer.data.labelled import cut
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.models.base import Model
from everyformer.stores.runs import Say, reading_model
from everyformer.tasks.prediction.records import Prediction, Row
from everyformer.tasks.prediction.words import Words
from everyformer.training.saved import load_model
from everyformer.training.storage import check_finite
from everyformer.training.warmstart import read_start

if TYPE_CHECKING:
    from everyformer.tasks.prediction.inputs import Inputs, Reading

UNKNOWN = 8
"""unknown characters that are named"""


class Predictor(ABC):
    """A model, read for prediction: one class for each kind of answer (`Task.predictor`).

    Args:
        model: of a task with such answers.
        name: what messages call it.
        tokenizer: what makes its tokens; None of models that read no text.
        classes: names of its classes; () numbers them.
        length: tokens or steps that are read of a row (default: as many as the model takes).

    Raises:
        ConfigError: it has another number of classes.
    """

    top = 1
    """candidates that are given by default"""
    kept = "the first {} of each"
    """what is read of a row that is too long"""

    def __init__(
        self,
        model: Model,
        name: str = "the model",
        *,
        tokenizer: Tokenizer | None = None,
        classes: Sequence[str] = (),
        length: int | None = None,
    ) -> None:
        self.model, self.name, self.tokenizer = model, name, tokenizer
        self.config, self.task = model.config, model.config.does
        if classes and len(classes) != self.config.classes:
            raise ConfigError(f"{name} has {self.config.classes} classes, not {len(classes)}")
        self.classes = tuple(classes) or tuple(map(str, range(self.config.classes)))
        self.named = bool(classes)
        """whether the names of the classes are known"""
        self.words = Words(tokenizer, None)
        self.length = self.config.tokens if length is None else length
        self.text_column: str | None = None
        """of the tables that it was trained on, where known"""
        self.counts = Counter[str]()
        """rows that have been read, those cut, without text, or with unknown characters"""
        self.unknown: set[str] = set()
        """characters that the tokenizer does not know"""

    @staticmethod
    def of(model: Model, name: str = "the model", **known: Any) -> Predictor:
        """The predictor for the task of ``model``; ``known``: see the class.

        Raises:
            UnsupportedError: its task has none.
        """
        return model.config.does.predictor(name)(model, name, **known)

    @staticmethod
    def load(
        path: str | Path, *, average: int | None = None, device: str = "auto",
        tokenizer: Tokenizer | None = None, classes: Sequence[str] = (),
        say: Say = lambda text: None,
    ) -> Predictor:  # fmt: skip
        """The best weights of the run at ``path``, or the model that was saved there.

        A run that made a datastore answers with it; of a saved model there is none.

        Args:
            average: the mean over a run's newest so many checkpoints instead.
            device: where it is computed; auto: an accelerator if there is one.
            tokenizer, classes: replace the run's own.
            say: called with a note on the store that is read.

        Raises:
            CheckpointError: nothing is there, or it is damaged, or the run's store is gone.
            DivergedError: its weights are not finite.
            UnsupportedError: nothing answers rows, for its task.
        """
        start = read_start(path)
        name = f"the {'run' if 'model' in start.values else 'model'} in {start.path}"
        kind = start.config.does.predictor(name)
        model = load_model(path, average=average, device=device)
        assert isinstance(model, Model)
        check_finite(model, start.path)
        if "model" in start.values:
            model = reading_model(model, start.path, start.tokenizer, say)
        data = start.values.get("data", {})
        result = kind(
            model,
            name,
            tokenizer=tokenizer or start.tokenizer,
            classes=tuple(classes) or tuple(data.get("classes", ())),
            length=data.get("length"),
        )
        known = start.values.get("run")
        result.text_column = known["data"].get("text_column") if isinstance(known, dict) else None
        return result

    def open(self, words: Sequence[str | Path], how: Reading) -> Inputs:
        """The rows of sentences, files and folders."""
        from everyformer.tasks.prediction.inputs import open_inputs

        return open_inputs(words, self, how)

    @abstractmethod
    def answer(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        """Fields of the `Prediction` of each row, with ``top`` candidates."""

    @abstractmethod
    def columns(self, top: int | None = None, target: bool = False) -> list[str]:
        """The names that `Prediction.cells` has of its predictions.

        Args:
            top: as in `predict`.
            target: of held-out rows, of which it is known.
        """

    @abstractmethod
    def truth(self, target: Tensor, read: np.ndarray) -> Any:
        """The truth of a held-out row that is ``read``, in the form of its prediction."""

    def shares(self) -> list[str]:
        """Columns of the probability of each class; none where there are no classes."""
        return []

    @abstractmethod
    def shortened(self, row: np.ndarray) -> np.ndarray:
        """The part of a row that is read where the row is too long."""

    @abstractmethod
    def encode(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        """The tokens of a text; none where nothing can be answered."""

    def asks(self, row: np.ndarray) -> bool:
        """True if a held-out row asks for an answer."""
        return True

    def predict(
        self, rows: Iterable[Row], *, top: int | None = None, batch: int = 16
    ) -> Iterator[tuple[Row, Prediction]]:
        """Each row with its prediction, in order, ``batch`` rows a forward pass.

        Args:
            top: classes or tokens given with their probabilities (default: 1 class, 5 tokens).

        Raises:
            ConfigError: a ``batch`` of no row.
            DataError: a row that the model cannot read.
            DivergedError: the model gives no finite numbers.
        """
        top = top or self.top
        if batch < 1:
            raise ConfigError(f"`batch` is a number of rows from 1 on, not {batch}")
        for chunk in batched(rows, batch):
            read = [self._read(row) for row in chunk]
            filled = [one for one in read if one is not None]
            result = iter(self.answer(filled, top) if filled else ())
            for row, one in zip(chunk, read, strict=True):
                known = {"input": row.shown, "target": row.target}
                yield row, Prediction(**known, **({} if one is None else next(result)))
        if not self.counts["rows"]:
            raise DataError("there are no rows to predict: give at least one")

    def held_out(self, dataset: Dataset, batch: int, limit: int | None = None) -> Iterator[Row]:
        """The validation part of its own data as rows, with what is true of each."""
        number = 0
        for part in dataset.validation_batches(batch, limit):
            for index in range(len(part.inputs)):
                number += 1
                inputs = part.inputs[index]
                if part.padding_mask is not None:
                    inputs = inputs[part.padding_mask[index]]
                value = inputs.numpy()
                if not self.asks(value):
                    continue
                target = self.truth(part.targets[index], value)
                text = self.tokenizer is not None and value.ndim == 1
                shown = self.words.text(value.tolist()) if text else f"held-out row {number}"
                yield Row(shown, value, target=target)

    def notes(self) -> list[str]:
        """Remarks on the rows that have been read, a sentence each."""
        counts, result = self.counts, []
        if counts["cut"]:
            unit = "steps" if self.task.series else "tokens"
            part = self.kept.format(f"{self.length:,}")
            result.append(
                f"{counts['cut']:,} of {pluralise(counts['rows'], 'row')} longer than "
                f"{self.length:,} {unit}: {part} is read"
            )
        if counts["unknown"]:
            characters = ", ".join(map(repr, sorted(self.unknown)[:UNKNOWN]))
            known = getattr(self.tokenizer, "characters", None) or ()
            upper = self.unknown.isdisjoint(known) and {*"".join(self.unknown).upper()} <= {*known}
            mend = ": write them in upper case, which is known" if upper else ""
            result.append(
                f"{pluralise(counts['unknown'], 'text')} with characters that the training text "
                f"never had ({characters}), which are read as unknown ones{mend}"
            )
        if counts["empty"]:
            rows = pluralise(counts["empty"], "row")
            result.append(f"{rows} without text and so without a prediction")
        return result

    def _read(self, row: Row) -> np.ndarray | None:
        """A row as the model reads it; None where there is nothing."""
        value = self._encode(row) if isinstance(row.value, str) else row.value
        self.counts["rows"] += 1
        if not len(value):
            self.counts["empty"] += 1
            return None
        if self.task.pictures or len(value) <= self.length:
            return value
        self.counts["cut"] += 1
        return self.shortened(value)

    def _encode(self, row: Row) -> np.ndarray:
        if self.tokenizer is None:
            raise ConfigError(
                f"{self.name} has no tokenizer, so it reads no text: give arrays of tokens (.npy), "
                "or put one beside a saved model with ef.save(model, folder, tokenizer=...)"
            )
        return self.encode(str(row.value), self.tokenizer)

    def count_unknown(self, text: str, tokenizer: Tokenizer) -> None:
        """Note the characters that the tokenizer does not know."""
        if tokenizer.characters is not None:
            unknown = {*text} - {*tokenizer.characters}
            self.counts["unknown"] += bool(unknown)
            self.unknown |= unknown

    def logits(self, rows: Sequence[np.ndarray], front: bool = False, **how: Any) -> Tensor:
        """The model's output of rows in one batch, on the CPU in double precision.

        Raises:
            DataError: tokens that the model does not have.
            DivergedError: it is not finite.
        """
        device = next(self.model.parameters()).device
        inputs, padding_mask = _padded(rows, front)
        if inputs.dtype == torch.int64 and inputs.dim() == 2:
            most = int(inputs.max())
            if most >= self.config.vocabulary:
                raise DataError(
                    f"there is a token {most}, but {self.name} has {self.config.vocabulary:,} "
                    "tokens, counted from 0: give tokens of its own tokenizer"
                )
        mask = None if padding_mask is None else Mask(padding_mask=padding_mask.to(device))
        with forked_random(device), torch.no_grad(), evaluating(self.model):
            # members that draw random numbers draw the same for every batch
            torch.manual_seed(0)
            result: Tensor = self.model(inputs.to(device), mask=mask, **how).logits.cpu().double()
        real = (
            result if padding_mask is None or result.dim() != 3 or front else result[padding_mask]
        )
        if not bool(real.isfinite().all()):
            raise DivergedError(
                f"{self.name} gives no finite numbers: its training diverged, or what it reads is "
                "far from what it learned"
            )
        return result


class RowPredictor(Predictor):
    """Predicts one answer for a whole row, from its beginning."""

    def shortened(self, row: np.ndarray) -> np.ndarray:
        return cut(row, self.length, () if self.tokenizer is None else self.tokenizer.closing)

    def encode(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        if not text.strip():
            return np.empty(0, dtype=np.int64)
        self.count_unknown(text, tokenizer)
        return tokenizer.encode_alone(text).astype(np.int64)


def _padded(rows: Sequence[np.ndarray], front: bool) -> tuple[Tensor, Tensor | None]:
    """Rows as one tensor, and flags of what is real where they differ in length."""
    inputs = pad_sequence([*map(torch.from_numpy, rows)], True, 0, "left" if front else "right")
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    if int(lengths.min()) == inputs.shape[1]:
        return inputs, None
    padding_mask = torch.arange(inputs.shape[1]) < lengths
    return inputs, padding_mask.flip(1) if front else padding_mask
