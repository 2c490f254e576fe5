"""`Predictor`: a trained model with what it needs to read rows and to say what it answers.

Rows go through the model in batches, in their order, texts of any length padded beside each other;
padding changes nothing. What is longer than the model's training sequences is cut: texts that are
answered as a whole keep their beginning, those that go on their end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from everyformer.core.devices import forked_random
from everyformer.core.errors import ConfigError, DataError, DivergedError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.tasks import TASKS, Task
from everyformer.core.wording import counted, shortened
from everyformer.data.batch import batched
from everyformer.data.dataset import Dataset
from everyformer.data.labelled import cut
from everyformer.data.text import encode_prompt
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.datastores.job import Say
from everyformer.datastores.runs import reading_model
from everyformer.models.base import Model, evaluating
from everyformer.prediction.records import Candidate, Prediction, Row, ranked, share
from everyformer.prediction.words import Words, best
from everyformer.training.saved import load_model
from everyformer.training.storage import check_finite
from everyformer.training.warmstart import read_start

MARKS = re.compile(r"\[MASK\]|_{3,}")
"""what stands for one hidden token in a text"""
TOKENS = 5
"""tokens that are given where nobody says how many"""
UNKNOWN = 8
"""unknown characters that are named"""


class Predictor:
    """A model, read for prediction.

    Args:
        model: of a task that answers rows or writes or fills text.
        name: what messages call it.
        tokenizer: what makes its tokens; None of models that read no text.
        classes: names of its classes; () numbers them.
        length: tokens or steps that are read of a row (default: as many as the model takes).

    Raises:
        UnsupportedError: its task is not one of those.
    """

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
        self.config, self.task = model.config, TASKS[model.config.task]
        require_rows(self.task, name)
        if classes and len(classes) != self.config.classes:
            raise ConfigError(f"{name} has {self.config.classes} classes, not {len(classes)}")
        self.classes = tuple(classes) or tuple(map(str, range(self.config.classes)))
        self.named = bool(classes) or not self.task.classifies
        """whether the names of the classes are known"""
        hides = self.task.predicts == "hidden"
        self.words = Words(tokenizer, self.mask_token if hides else None)
        self.length = self.config.tokens if length is None else length
        self.text_column: str | None = None
        """of the tables that it was trained on, where that was said"""
        self.counts = Counter[str]()
        """rows that have been read, those cut, without text, or with unknown characters"""
        self.unknown: set[str] = set()
        """characters that the tokenizer does not know"""

    @classmethod
    def load(
        cls, path: str | Path, *, average: int | None = None, device: str = "auto",
        tokenizer: Tokenizer | None = None, classes: Sequence[str] = (),
        say: Say = lambda text: None,
    ) -> Predictor:  # fmt: skip
        """The best weights of the run at ``path``, or the model that was saved there.

        A run that made a datastore answers with it; of a saved model there is none.

        Args:
            average: the mean over a run's newest so many checkpoints instead.
            device: where it is computed; auto: an accelerator if there is one.
            tokenizer, classes: replace the run's own.
            say: told what store is read.

        Raises:
            CheckpointError: nothing is there, or it is damaged, or the run's store is gone.
            DivergedError: its weights are not finite.
        """
        start = read_start(path)
        name = f"the {'run' if 'model' in start.values else 'model'} in {start.path}"
        require_rows(TASKS[start.config.task], name)
        model = load_model(path, average=average, device=device)
        assert isinstance(model, Model)
        check_finite(model, start.path)
        if "model" in start.values:
            model = reading_model(model, start.path, start.tokenizer, say)
        data = start.values.get("data", {})
        result = cls(
            model,
            name,
            tokenizer=tokenizer or start.tokenizer,
            classes=tuple(classes) or tuple(data.get("classes", ())),
            length=data.get("length"),
        )
        known = start.values.get("run")
        result.text_column = known["data"].get("text_column") if isinstance(known, dict) else None
        return result

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
        top = top or (1 if self.task.answers else TOKENS)
        if batch < 1:
            raise ConfigError(f"'batch' is a number of rows from 1 on, not {batch}")
        answer = self._answer()
        for chunk in batched(rows, batch):
            read = [self._read(row) for row in chunk]
            filled = [one for one in read if one is not None]
            result = iter(answer(filled, top) if filled else ())
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
                if part.keep is not None:
                    inputs = inputs[part.keep[index]]
                value = inputs.numpy()
                target = self._target(part.targets[index], value)
                if self.task.predicts == "hidden" and self.mask_token not in value:
                    continue
                text = self.tokenizer is not None and value.ndim == 1
                shown = self.words.text(value.tolist()) if text else f"held-out row {number}"
                yield Row(shown, value, target=target)

    @property
    def mask_token(self) -> int:
        """The id of hidden tokens."""
        token = None if self.tokenizer is None else self.tokenizer.mask
        return self.config.vocabulary - 1 if token is None else token

    def columns(
        self, top: int | None = None, target: bool = False, shares: bool = False
    ) -> list[str]:
        """The names that `Prediction.cells` has of its predictions.

        Args:
            top: as in `predict`.
            target: of held-out rows, of which it is known.
            shares: with the probability of each class; `predict` must be asked for all of them.
        """
        count, config = top or (1 if self.task.answers else TOKENS), self.config
        if self.task.measures:
            several = [f"_{number}" for number in range(1, config.outputs + 1)]
            ends = several if config.outputs > 1 else [""]
            names = ["target", "value"] if target else ["value"]
            return [name + end for name in names for end in ends]
        result = ["target"] if target and self.task.predicts != "hidden" else []
        if self.task.predicts == "hidden":
            return [*result, "filled", "masks"]
        name, most = (
            ("label", config.classes) if self.task.classifies else ("token", config.vocabulary)
        )
        for rank in range(1, min(count, most) + 1):
            result += [ranked(name, rank), ranked("probability", rank)]
        return [*result, *map(share, self.classes)] if shares and self.task.classifies else result

    def notes(self) -> list[str]:
        """Remarks on the rows that have been read, a sentence each."""
        counts, result = self.counts, []
        if not self.named:
            result.append(f"{self.name} does not know the names of its classes: they are numbered")
        if counts["cut"]:
            unit = "steps" if self.task.series else "tokens"
            part = f"the first {self.length:,} of each"
            if not self.task.answers:
                continues = self.task.continues
                part = f"the last {self.length:,} of each" if continues else "what is about a mask"
            result.append(
                f"{counts['cut']:,} of {counted(counts['rows'], 'row')} longer than "
                f"{self.length:,} {unit}: {part} is read"
            )
        if counts["unknown"]:
            characters = ", ".join(map(repr, sorted(self.unknown)[:UNKNOWN]))
            known = getattr(self.tokenizer, "characters", None) or ()
            upper = self.unknown.isdisjoint(known) and {*"".join(self.unknown).upper()} <= {*known}
            mend = ": write them in upper case, which is known" if upper else ""
            result.append(
                f"{counted(counts['unknown'], 'text')} with characters that the training text "
                f"never had ({characters}), which are read as unknown ones{mend}"
            )
        if counts["empty"]:
            rows = counted(counts["empty"], "row")
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
        if self.task.continues:
            return value[-self.length :]
        if self.task.predicts == "hidden":
            first = int(np.argmax(value == self.mask_token)) - self.length // 2
            return value[max(0, min(first, len(value) - self.length)) :][: self.length]
        return cut(value, self.length, () if self.tokenizer is None else self.tokenizer.closing)

    def _encode(self, row: Row) -> np.ndarray:
        """The tokens of a row's text; none of white space alone where that answers nothing."""
        text, tokenizer = str(row.value), self.tokenizer
        if tokenizer is None:
            raise ConfigError(
                f"{self.name} has no tokenizer, so it reads no text: give arrays of tokens (.npy), "
                "or put one beside a saved model with ef.save(model, folder, tokenizer=...)"
            )
        if not (text.strip() if self.task.answers else text):
            return np.empty(0, dtype=np.int64)
        if self.task.continues:
            return encode_prompt(tokenizer, text)[0].numpy()
        hides = self.task.predicts == "hidden"
        if tokenizer.characters is not None:
            unknown = {*(MARKS.sub("", text) if hides else text)} - {*tokenizer.characters}
            self.counts["unknown"] += bool(unknown)
            self.unknown |= unknown
        if hides:
            return self._marked(text, tokenizer)
        return tokenizer.encode_alone(text).astype(np.int64)

    def _marked(self, text: str, tokenizer: Tokenizer) -> np.ndarray:
        """The tokens of a text in which marks stand for hidden ones."""
        parts = MARKS.split(text)
        if len(parts) == 1:
            raise DataError(
                f"'{shortened(text, 60)}' has no hidden token: write [MASK] or ___ for each that "
                "is to be filled in"
            )
        result = list(tokenizer.opening)
        # where tokens begin with their space, the one before a mark is the hidden token's own
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            result += tokenizer.encode(
                part.removesuffix(" ") if tokenizer.spaced and not last else part
            )
            result += [] if last else [self.mask_token]
        return np.array([*result, *tokenizer.closing], dtype=np.int64)

    def _answer(self) -> Callable[[Sequence[np.ndarray], int], Iterator[dict[str, Any]]]:
        if self.task.classifies:
            return self._classes
        if self.task.measures:
            return self._numbers
        return self._next if self.task.continues else self._hidden

    def _classes(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        for p in self._logits(rows).softmax(-1):
            results = [Candidate(self.classes[id_], value, id_) for value, id_ in best(p, top)]
            yield {
                "label": results[0].text,
                "probability": results[0].probability,
                "top": (*results,),
            }

    def _numbers(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        for values in self._logits(rows).tolist():
            yield {"value": values[0] if len(values) == 1 else (*values,)}

    def _next(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        # padded in front, so that the last position is every row's own
        logits = self._logits(rows, front=True, last=1)[:, -1]
        for row, p in zip(rows, logits.softmax(-1), strict=True):
            yield {"tokens": self.words.likeliest(row.tolist(), p, top)}

    def _hidden(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        logits = self._logits(rows)
        for row, z in zip(rows, logits, strict=True):
            places = np.flatnonzero(row == self.mask_token)
            ids, masks = row.tolist(), []
            z[:, self.mask_token] = -torch.inf  # nothing hides a mask
            for place in places.tolist():
                masks.append(self.words.likeliest(ids[:place], z[place].softmax(-1), top))
                ids[place] = masks[-1][0].id
            yield {"masks": (*masks,), "filled": self.words.text(ids)}

    def _logits(self, rows: Sequence[np.ndarray], front: bool = False, **how: Any) -> Tensor:
        """The model's output of rows in one batch, on the CPU in double precision.

        Raises:
            DataError: tokens that the model does not have.
            DivergedError: it is not finite.
        """
        device = next(self.model.parameters()).device
        inputs, keep = _padded(rows, front)
        if inputs.dtype == torch.int64 and inputs.dim() == 2:
            most = int(inputs.max())
            if most >= self.config.vocabulary:
                raise DataError(
                    f"there is a token {most}, but {self.name} has {self.config.vocabulary:,} "
                    "tokens, counted from 0: give tokens of its own tokenizer"
                )
        mask = None if keep is None else Mask(keep=keep.to(device))
        with forked_random(device), torch.no_grad(), evaluating(self.model):
            # members that draw random numbers draw the same for every batch
            torch.manual_seed(0)
            result: Tensor = self.model(inputs.to(device), mask=mask, **how).logits.cpu().double()
        real = result if keep is None or result.dim() != 3 or front else result[keep]
        if not bool(real.isfinite().all()):
            raise DivergedError(
                f"{self.name} gives no finite numbers: its training diverged, or what it reads is "
                "far from what it learned"
            )
        return result

    def _target(self, target: Tensor, read: np.ndarray) -> Any:
        """The truth of a held-out row that is ``read``, as its prediction says it."""
        if self.task.classifies:
            return self.classes[int(target)]
        if self.task.measures:
            values = target.flatten().tolist()
            return values[0] if len(values) == 1 else (*values,)
        if self.task.continues:
            last = int(target[-1])
            return None if last < 0 else self.words.after(read.tolist(), last)
        return None


def require_rows(task: Task, name: str) -> None:
    """Refuse a task of which a row has no class, no numbers, and no next or hidden tokens.

    Raises:
        UnsupportedError: names the verb that shows what such a model does.
    """
    if not (task.answers or task.continues or task.predicts == "hidden"):
        does = "writes whole sequences: everyformer generate shows them"
        if task.acts:
            does = "acts: everyformer.generation.acting.DecisionPolicy does, step by step"
        raise UnsupportedError(
            f"{name} has the task {task.name}, which {does}; "
            "predict is for runs that classify, measure, go on with a text or fill it"
        )


def _padded(rows: Sequence[np.ndarray], front: bool) -> tuple[Tensor, Tensor | None]:
    """Rows beside each other, and flags of what is real where they differ in length."""
    inputs = pad_sequence([*map(torch.from_numpy, rows)], True, 0, "left" if front else "right")
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    if int(lengths.min()) == inputs.shape[1]:
        return inputs, None
    keep = torch.arange(inputs.shape[1]) < lengths
    return inputs, keep.flip(1) if front else keep
