"""`Dataset`: the face of all data, and `load_dataset`, which finds the right kind for a source."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from everyformer.core.errors import ConfigError, DataError, nearest, unknown
from everyformer.data.batch import Batch
from everyformer.data.config import BUILTINS, TASKS, DataConfig
from everyformer.data.tokenizers import Tokenizer

Task = Literal[
    "lm", "mlm", "classify-text", "classify-image", "seq2seq", "pixels", "super-resolution"
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset(ABC):
    """Training batches by step, validation batches in a fixed order, and the facts beside them."""

    name: str
    """What the data is called in tables."""
    task: Task
    """What a model does with it."""
    kind: Literal["text", "images"]
    """What the inputs are."""
    vocabulary: int
    """Number of different tokens; of pixels 256."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their ids; () where classes are neither found nor
    told."""
    length: int
    """Tokens in a sequence that the model must take: of pixels height x width x channels, of
    pictures to classify height x width."""
    image: tuple[int, int, int] | None = None
    """(channels, height, width) of pictures."""
    source_image: tuple[int, int, int] | None = None
    """The same of the small pictures that are enlarged (super-resolution)."""
    bytes_per_token: float | None = None
    """Mean bytes behind a validation token: nats per token / ln 2 / this = bits per byte. None
    when that has no meaning."""
    split: str
    """One sentence: how training and validation were separated, with their sizes."""
    fingerprint: str
    """Hash of content, split and tokenizer; equal data on another machine has the same."""
    known_as: tuple[str, ...] = ()
    """Fingerprints that earlier versions gave the same data."""
    tokenizer: Tokenizer | None = None
    """What made the tokens of text; None for pictures and generated tasks."""

    @abstractmethod
    def train_batch(self, step: int, size: int, seed: int) -> Batch:
        """The ``size`` rows of training step ``step``: a pure function of its arguments.

        So a run resumes by its step alone, and processes of one run take rows of the same batch.
        """

    @abstractmethod
    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Every validation target exactly once, always in this order, ``size`` rows at a time.

        The last batch may have fewer rows. With ``limit`` only that many sequences, taken at equal
        distances over the whole validation part.
        """

    @property
    def target_ends(self) -> dict[str, int]:
        """Of seq2seq, the model's start and end token: the separator is both; {} of other tasks."""
        if self.task != "seq2seq":
            return {}
        end = 0 if self.tokenizer is None else self.tokenizer.separator
        assert end is not None
        return {"start_token": end, "end_token": end}

    @property
    def pictures(self) -> dict[str, Any]:
        """What a model of pictures must know of them, by the names of its config's fields."""
        told = self.classes if self.task in ("pixels", "super-resolution") else ()
        return {"image": self.image, "source_image": self.source_image, "class_names": told}

    def summary(self) -> dict[str, Any]:
        """The facts above as plain values, for a run's files and reports."""
        return {
            "name": self.name,
            "task": self.task,
            "kind": self.kind,
            "vocabulary": self.vocabulary,
            "classes": list(self.classes),
            "length": self.length,
            "image": None if self.image is None else list(self.image),
            "source_image": None if self.source_image is None else list(self.source_image),
            "bytes_per_token": self.bytes_per_token,
            "split": self.split,
            "fingerprint": self.fingerprint,
            "known_as": list(self.known_as),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.name,
        }


def load_dataset(
    config: DataConfig,
    task: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    able: Sequence[str] = TASKS,
) -> Dataset:
    """The data that ``config`` names, ready to give batches.

    Args:
        config: source, tokenizer, lengths, held-out part.
        task: one of lm, mlm, classify-text, classify-image, seq2seq, pixels, super-resolution;
            None takes what is natural: a text file lm, parallel text seq2seq, a folder or zip with
            a folder of texts for each class classify-text, pictures classify-image (pixels when
            they have no classes), a built-in its first task.
        tokenizer: a finished run's, to read other text as that run would; replaces the config's.
        able: the tasks that the model has; of what a text or a built-in can serve, the first of
            them is natural.

    Raises:
        ConfigError: an unknown built-in, task or option.
        DataError: the source is missing, unreadable, too short, or not fit for the task.
        MissingExtraError: pillow, scikit-learn or tokenizers is needed and not installed.
    """
    from everyformer.data.sources import open_source

    if task is not None and task not in TASKS:
        raise ConfigError(f"no data for the task '{task}'; {nearest(task, TASKS)}")
    if config.source in BUILTINS:
        from everyformer.data.builtin import TASKS as BUILTIN_TASKS
        from everyformer.data.builtin import load_builtin

        _refuse_idle(config, f"the built-in '{config.source}'", "part")
        if config.source != "stdlib":
            _refuse_packing(config, f"the built-in '{config.source}'")
        if config.source != "digits":
            _refuse_drawing(config, f"the built-in '{config.source}'")
        served = BUILTIN_TASKS[config.source]
        return load_builtin(config, task or _natural(served, able), tokenizer)
    _refuse_unknown_name(config.source)
    with open_source(config.source) as source:
        from everyformer.data.images import IMAGE_TASKS, holds_images, load_images

        if holds_images(source):
            _refuse_idle(config, "pictures")
            _refuse_packing(config, "pictures")
            return load_images(source, config, task)
        if task in IMAGE_TASKS:
            raise DataError(
                f"'{config.source}' holds no pictures, which the task {task} needs; give a folder "
                "or zip of .png or .jpg files, or take the task lm or classify-text"
            )
        _refuse_drawing(config, "text")
        from everyformer.data.labelled import holds_labels, load_labelled
        from everyformer.data.masking import masked
        from everyformer.data.pairs import holds_parallel
        from everyformer.data.parallel import load_parallel
        from everyformer.data.text import load_text

        if task is None:
            pairs = ("seq2seq",) if holds_parallel(source, config) else ()
            labels = ("classify-text",) if not pairs and holds_labels(source) else ()
            task = _natural((*pairs, *labels, "lm", "mlm"), able)
        if task not in ("lm", "mlm"):
            _refuse_packing(config, f"the task {task}")
        if task == "seq2seq":
            return load_parallel(source, config, tokenizer)
        _refuse_idle(config, f"the task {task}")
        if task == "classify-text":
            return load_labelled(source, config, tokenizer)
        text = load_text(source, config, tokenizer)
        return masked(text, config) if task == "mlm" else text


def _natural(served: Sequence[str], able: Sequence[str]) -> str:
    """The first task of ``served`` that the model has; its very first where it has none."""
    return next((task for task in served if task in able), served[0])


def _refuse_idle(config: DataConfig, data: str, *further: str) -> None:
    """Options of parallel text would have no meaning."""
    for name in ("target", "languages", "tokens", *further):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"'data.{name}' has no meaning for {data}; leave it out, or give files that it "
                "fits (parallel text is the task seq2seq)"
            )


def _refuse_packing(config: DataConfig, data: str) -> None:
    if config.packing:
        raise ConfigError(f"'data.packing' has no meaning for {data}: it is for lm and mlm on text")


def _refuse_drawing(config: DataConfig, data: str) -> None:
    for name in ("labels", "small"):
        if getattr(config, name):
            raise ConfigError(
                f"'data.{name}' has no meaning for {data}: it is for pictures that are drawn"
            )


def _refuse_unknown_name(source: str) -> None:
    """A missing source that looks like a name, not like a path, was meant as a built-in."""
    if source.replace("-", "").replace("_", "").isalnum() and not os.path.exists(source):
        error = unknown("data source", source, BUILTINS)
        raise type(error)(f"{error} (and there is no file or folder '{source}' here)")


def spread(count: int, limit: int | None) -> np.ndarray:
    """Indices of all ``count`` sequences, or of ``limit`` of them at equal distances."""
    if limit is not None and limit < 1:
        raise ConfigError(f"the limit of validation sequences must be at least 1, not {limit}")
    if limit is None or limit >= count:
        return np.arange(count)
    return (2 * np.arange(limit) + 1) * count // (2 * limit)


def epoch_rows(rows: np.ndarray, step: int, size: int, seed: int) -> np.ndarray:
    """The rows of step ``step`` when every epoch is a fresh shuffle of ``rows``.

    A batch that reaches past the end of an epoch takes its rest from the next, so all are full.
    """
    if len(rows) == 0:
        raise DataError("everything is held out (--data.validation 1), so there is no training")
    places = np.arange(step * size, (step + 1) * size)
    epochs = places // len(rows)
    picked = np.empty(size, dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        picked[here] = rows[_shuffle(len(rows), seed, int(epoch))[places[here] % len(rows)]]
    return picked


@lru_cache(maxsize=4)
def _shuffle(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


def held_out_draw(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Sorted indices of a seeded draw of ``fraction`` of every class.

    A class of two or more keeps at least one on either side; ``fraction`` 1 takes all.
    """
    if fraction == 1:
        return np.arange(len(labels))
    drawn = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        order = np.random.default_rng((seed, int(label))).permutation(len(members))
        drawn.append(members[order[:count]])
    return np.sort(np.concatenate(drawn))


def digest(*parts: Any) -> str:
    """A short hash of plain values and bytes, the same on every machine."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        made.update(len(raw).to_bytes(8, "little") + raw)
    return made.hexdigest()
