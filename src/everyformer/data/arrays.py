"""Arrays of numpy as data: tokens, pictures or series in .npy or .npz, with classes or numbers.

An .npz brings inputs (x, inputs, data, images, series, tokens ...) and, to classify or to predict
numbers, targets (y, targets, labels ...), one a row; with the endings _train and _test (or _val)
the split is the source's. ``lengths`` says how much of each row is real. The form of an array
follows from its shape and dtype, or from the task:

    (N, H, W) uint8, (N, H, W, C), (N, C, H, W)    pictures; floats from 0 to 1, or 0 to 255
    (N, T) or (N, T, C) floats                     series of T steps
    (N, L) integers                                rows of tokens; (M,) one text of tokens

Nothing is unpickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.rounding import shortened
from everyformer.core.tasks import TASKS, Task
from everyformer.data.array_files import ArrayParts, read_parts
from everyformer.data.batch import Batch
from everyformer.data.cache import digest
from everyformer.data.classes import describe, hold_out, known_ids, refuse_groups
from everyformer.data.config import DRAWN, PICTURES, TABLE, DataConfig
from everyformer.data.dataset import ClassedDataset, Dataset, Spread
from everyformer.data.images import channels_first, image_dataset, reshaped
from everyformer.data.kind import Kind, Request
from everyformer.data.sources import ARRAYS, Source
from everyformer.data.text import TextDataset

FEW = 20
"""different whole numbers up to which they are taken for classes, where no task is said"""

Form = Literal["tokens", "pictures", "series"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayDataset(ClassedDataset):
    """Rows of tokens (N, L) or series (N, T, C) with padding on the right."""

    inputs: np.ndarray
    """int64 or floats"""
    lengths: np.ndarray | None
    """(N,) how much of each row is real; None: all"""

    def rows(self, chosen: np.ndarray) -> Batch:
        inputs = torch.from_numpy(self.inputs[chosen])
        padding_mask = None
        if self.lengths is not None:
            padding_mask = torch.from_numpy(np.arange(inputs.shape[1]) < self.lengths[chosen, None])
        return Batch(inputs, self.answers(chosen), padding_mask)


READ: dict[Form, tuple[str, ...]] = {
    "tokens": ("packing",),
    "pictures": (*PICTURES, *DRAWN),
    "series": (),
}
"""options that some arrays read"""


class Arrays(Kind):
    """One file of arrays."""

    name = "arrays"
    reads = ("length", "label_column", "split", *sum(READ.values(), ()))
    why: ClassVar = dict.fromkeys(
        TABLE, ": it is for tables; the arrays of an .npz go by their names"
    )

    @classmethod
    def recognises(cls, request: Request) -> bool:
        entries = request.source.entries
        return len(entries) == 1 and entries[0].suffix in ARRAYS

    @cached_property
    def parts(self) -> ArrayParts:
        """The arrays by what they are for."""
        return read_parts(self.request.source, self.config)

    @cached_property
    def form(self) -> Form:
        """The kind of the inputs."""
        return _form(self.parts.inputs, self.request.only_task, self.config.source)

    @cached_property
    def task(self) -> str:
        return _task(self.form, self.parts, self.request).name

    def load(self) -> Dataset:
        """The arrays as a dataset."""
        parts, config, source = self.parts, self.config, self.request.source
        self.refuse(name for name in sum(READ.values(), ()) if name not in READ[self.form])
        if self.form == "pictures":
            return _pictures(parts, config, self.does, source, self.request.classes)
        if not self.does.answers:
            return _text(parts, config, self.task, source)
        inputs, lengths = _rows_of(parts, self.form, source.spec)
        labels, classes = _targets(parts, self.does, source.spec, self.request.classes)
        held_out, split = _held_out(parts, labels, classes, config)
        train = inputs[~held_out]
        series = self.form == "series"
        what = "series" if series else "rows"
        counts = f"{len(train):,} training and {int(held_out.sum()):,} validation {what}"
        return ArrayDataset(
            name=source.name,
            task=self.task,
            kind="series" if series else "text",
            vocabulary=256 if series else int(inputs.max()) + 1,
            classes=classes,
            length=inputs.shape[1],
            features=Spread.of(_real(train, lengths, held_out)) if series else None,
            numbers=Spread.of(labels[~held_out]) if labels.ndim > 1 else None,
            split=f"{describe(labels, held_out, classes, what)}{split}: {counts}",
            fingerprint=digest(inputs.tobytes(), labels.tobytes(), held_out.tobytes(), classes),
            inputs=inputs,
            lengths=lengths,
            labels=labels,
            train_rows=np.flatnonzero(~held_out),
            validation_rows=np.flatnonzero(held_out),
        )


def read_inputs(source: Source, task: Task) -> tuple[np.ndarray, np.ndarray | None]:
    """The inputs of one file of arrays as a model of ``task`` reads them (see `rows_for`)."""
    parts = read_parts(source, DataConfig(source=source.spec), least=1)
    return rows_for(parts.inputs, task, source.spec, parts.lengths)


def rows_for(
    inputs: np.ndarray, task: Task, spec: str, lengths: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows as a model of ``task`` reads them, and how much of each is real (None: all).

    Pictures become (N, C, H, W) uint8, series (N, T, C) floats, tokens (N, L) int64. ``spec`` is
    their name in messages.
    """
    form = _form(inputs, task, spec)
    if form == "pictures":
        return channels_first(inputs, spec), None
    if form == "tokens" and inputs.ndim == 1:
        inputs = inputs[None]
    return _rows_of(ArrayParts(inputs, None, lengths, 0, ""), form, spec)


def _form(inputs: np.ndarray, task: Task | None, spec: str) -> Form:
    """Form of an array, by the task where one is said."""
    floats = inputs.dtype.kind == "f"
    if inputs.dtype.kind not in "iufb":
        raise DataError(f"the inputs in '{spec}' are of dtype {inputs.dtype}: give numbers")
    if task is not None:
        return "pictures" if task.pictures else "series" if task.series else "tokens"
    if inputs.ndim == 4 or (inputs.ndim == 3 and inputs.dtype == np.uint8):
        return "pictures"
    if floats and inputs.ndim in (2, 3):
        return "series"
    if not floats and inputs.ndim in (1, 2):
        return "tokens"
    raise DataError(
        f"the inputs in '{spec}' are {inputs.dtype} of shape {inputs.shape}, which may be several "
        "things: say with `task` (classify-image, regress-series ...), or give pictures "
        "(N, H, W, C), series (N, T, C) of floats, or tokens (N, L) of integers"
    )


def _task(form: Form, parts: ArrayParts, request: Request) -> Task:
    """Task of arrays: their targets say whether classes or numbers are predicted."""
    spec, requested = request.config.source, request.tasks if request.word else ()
    reads = {"tokens": ("labelled text", "text"), "pictures": ("pictures",), "series": ("series",)}
    readers = [t for t in TASKS.values() if t.reads in reads[form] and t.predicts != "hidden"]
    served = [task for task in readers if not task.answers and not task.encodes]
    if (targets := parts.targets) is not None:
        many = targets.dtype.kind in "iu" and len(np.unique(targets)) > FEW
        first = "number" if many or targets.dtype.kind == "f" else "class"
        served = sorted(readers, key=lambda task: (not task.answers, task.predicts != first))
    fitting = [task for task in served if not requested or task in requested]
    natural = [task for task in fitting if task.name in request.able] or fitting
    if natural:
        return natural[0]
    able_to = f"can serve {', '.join(task.name for task in served)}" if served else "serves no task"
    need = [task.name for task in readers if task.answers and (not requested or task in requested)]
    if parts.targets is None and need:
        raise DataError(
            f"'{spec}' has no targets: name them y, targets or labels in an .npz, or choose an "
            f"array of it with `data.label_column=NAME`, for {' or '.join(need)}; without them it "
            f"{able_to}"
        )
    raise DataError(
        f"'{spec}' holds {form}, which the task {request.word} cannot use; it {able_to}"
    )


def _targets(
    parts: ArrayParts, task: Task, spec: str, known: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class ids with the classes' names, those ``known`` of a run, or numbers (N, n) and none."""
    targets = parts.targets
    assert targets is not None
    if task.measures:
        if targets.dtype.kind not in "iuf" or targets.ndim > 2:
            raise DataError(
                f"the targets in '{spec}' are {targets.dtype} of shape {targets.shape}, where "
                "numbers, one or some a row, are to be predicted"
            )
        numbers = targets.reshape(len(targets), -1)
        _require_finite(numbers, "targets", spec)
        return shortened(numbers), ()
    flat = targets.reshape(len(targets), -1)
    if flat.shape[1] != 1:
        raise DataError(
            f"the targets in '{spec}' are of shape {targets.shape}, where one class a row is "
            "needed; of one-hot rows give their argmax"
        )
    if targets.dtype.kind == "f":
        raise DataError(
            f"the targets in '{spec}' are floats: to predict numbers take `task=regress`, of "
            "classes give integers or strings"
        )
    names, labels = np.unique(flat[:, 0], return_inverse=True)
    if known:
        return known_ids([*map(str, names)], known, spec)[labels.reshape(-1)], tuple(known)
    if len(names) < 2:
        raise DataError(f"all rows of '{spec}' are of one class, {names[0]}: give two or more")
    return labels.astype(np.int64), tuple(map(str, names))


def _rows_of(parts: ArrayParts, form: Form, spec: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens (N, L) or series (N, T, C), and the lengths of rows that are padded."""
    inputs, lengths, real = parts.inputs, parts.lengths, None
    if form == "series":
        inputs = inputs[..., None] if inputs.ndim == 2 else inputs
        if inputs.ndim != 3:
            raise DataError(f"series in '{spec}' must be (N, T) or (N, T, C), not {inputs.shape}")
    elif inputs.ndim != 2 or inputs.dtype.kind not in "iub":
        raise DataError(
            f"tokens in '{spec}' must be (N, L) integers, not {inputs.dtype} of {inputs.shape}"
        )
    else:
        inputs = inputs.astype(np.int64)
    if lengths is not None:
        whole = lengths.dtype.kind in "iuf" and lengths.ndim == 1 and not (lengths % 1).any()
        if not whole or lengths.min() < 1 or lengths.max() > inputs.shape[1]:
            raise DataError(
                f"lengths in '{spec}' must be (N,) whole numbers from 1 to {inputs.shape[1]}"
            )
        lengths = lengths.astype(np.int64)
        real = np.arange(inputs.shape[1]) < lengths[:, None]
        inputs = np.where(real if form == "tokens" else real[..., None], inputs, 0)
    if form == "series":
        _require_finite(inputs, "inputs", spec)
        inputs = shortened(inputs, real)
    elif inputs.min() < 0:
        raise DataError(
            f"tokens in '{spec}' go down to {inputs.min()}, but they count from 0: give what is "
            "padding as an array 'lengths'"
        )
    return inputs, lengths


def _require_finite(values: np.ndarray, what: str, spec: str) -> None:
    bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
    if len(bad):
        raise DataError(
            f"{len(bad):,} rows of the {what} in '{spec}' hold NaN or infinity, the first is row "
            f"{bad[0]}: leave them out or fill them"
        )


def _real(train: np.ndarray, lengths: np.ndarray | None, held_out: np.ndarray) -> np.ndarray:
    """All real steps of the training rows, (steps, C)."""
    if lengths is None:
        return train.reshape(-1, train.shape[-1])
    return train[np.arange(train.shape[1]) < lengths[~held_out, None]]


def _held_out(
    parts: ArrayParts, labels: np.ndarray, classes: Sequence[str], config: DataConfig
) -> tuple[np.ndarray, str]:
    """Flags of the rows that are held out, and how they were chosen."""
    if parts.held_out:
        refuse_groups(config, f"'{config.source}' is split already ({parts.note})")
        return np.arange(len(labels)) >= len(labels) - parts.held_out, parts.note
    held_out, how = hold_out(labels, classes, config, config.source, parts.groups)
    if not held_out.any():
        raise DataError(
            "every class has one row alone, so none can be held out; give more rows of each, or "
            "predict numbers with `task=regress`"
        )
    return held_out, how


def _text(parts: ArrayParts, config: DataConfig, task: str, source: Source) -> TextDataset:
    """Tokens as one text, rows one after the other; its end is held out."""
    tokens, spec = parts.inputs.reshape(-1), source.spec
    if tokens.dtype.kind not in "iub" or tokens.min() < 0:
        raise DataError(f"tokens in '{spec}' must be integers from 0 on, not {tokens.dtype}")
    if config.packing:
        raise ConfigError(
            "`data.packing` has no meaning for arrays of tokens: no token ends a text"
        )
    refuse_groups(config, f"'{spec}' is read as one text of tokens, whose end is held out")
    last = parts.held_out * (parts.inputs.size // len(parts.inputs))
    cut = len(tokens) - (last or round(config.validation * len(tokens)))
    train, validation = tokens[:cut], tokens[cut:]
    if min(len(validation), len(train) if cut else len(validation)) <= config.length:
        raise DataError(
            f"'{spec}' is too short: {len(train):,} training and {len(validation):,} validation "
            f"tokens, where `data.length={config.length}` needs {config.length + 1:,} in either. "
            "Give more tokens, a smaller `data.length` or another `data.validation`"
        )
    how = parts.note or f"the last {config.validation:.0%} of the tokens are held out"
    return TextDataset(
        name=source.name,
        task=task,
        kind="text",
        vocabulary=int(tokens.max()) + 1,
        length=config.length,
        split=f"{how}: {len(train):,} training and {len(validation):,} validation tokens",
        fingerprint=digest(tokens.astype(np.int64).tobytes(), cut),
        train=train,
        validation=validation,
    )


def _pictures(
    parts: ArrayParts, config: DataConfig, task: Task, source: Source, known: Sequence[str]
) -> Dataset:
    pixels = channels_first(parts.inputs, source.spec)
    labels = np.zeros(len(pixels), dtype=np.int64)
    classes: tuple[str, ...] = ()
    if task.answers or config.labels:
        labels, classes = _targets(parts, task, source.spec, known)
    held_out, split = _held_out(parts, labels, classes, config)
    return image_dataset(
        reshaped(pixels, config),
        labels,
        held_out,
        config,
        name=source.name,
        task=task,
        classes=classes,
        split=f"{describe(labels, held_out, classes, 'pictures')}{split}: COUNTS",
        checksum=digest(pixels.tobytes(), config.size, config.colour),
    )
