"""The data that every machine has: Python's source code, scikit-learn's digits."""

import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from everyformer.core.errors import DataError
from everyformer.core.tasks import Task
from everyformer.data.builtins import BUILTINS
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.data.episodes.kind import Episodes, episode_dataset
from everyformer.data.episodes.walks import GraphWalk
from everyformer.data.images import ImageDataset, image_dataset, reshaped
from everyformer.data.kind import Kind, Request, first_served
from everyformer.data.masking import masked
from everyformer.data.picture_labels import check_labels
from everyformer.data.selection import held_out_draw
from everyformer.data.sources import Entry, Source
from everyformer.data.synthetic import load_generated
from everyformer.data.text import load_text
from everyformer.data.tokenizers.base import Tokenizer
from sequence_laws.extras import extra_module

WALKS = 1000
LARGEST = 10_000_000
"""Bytes of the standard library that are taken, in sorted order."""
LEFT_OUT = {
    "__pycache__",
    "dist-packages",
    "encodings",  # tables of character codes, not code
    "ensurepip",
    "idle_test",
    "idlelib",
    "lib2to3",
    "pydoc_data",  # one large string of documentation
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


class BuiltIn(Kind):
    """Data that needs no file."""

    name = "built-in"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        builtin = BUILTINS[self.config.source]
        self.reads = (*builtin.reads, *(builtin.options or ()))
        self.alone = Episodes.alone if "context" in self.reads else ""

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return request.config.source in BUILTINS

    @property
    def called(self) -> str:
        return f"the built-in '{self.config.source}'"

    @cached_property
    def task(self) -> str:
        served = BUILTINS[self.config.source].tasks
        first, *_ = tasks = [task.name for task in self.request.tasks]
        if self.request.word is None:
            return first_served(served, self.request.able)
        if any(name in served for name in tasks):
            return next(name for name in tasks if name in served)
        able = [name for name, one in BUILTINS.items() if first in one.tasks]
        raise DataError(
            f"{self.called} cannot serve the task {first}, only {' and '.join(served)}; "
            f"{', '.join(able)} can, or give your own data"
        )

    def load(self) -> Dataset:
        dataset, source = self._made(), self.config.source
        if not Path(source).exists():
            return dataset
        note = f"the built-in '{source}' is read, not what lies here as ./{source}"
        return replace(dataset, split=f"{note}; {dataset.split}")

    def _made(self) -> Dataset:
        config, task = self.config, self.does
        if config.source == "stdlib":
            text = load_stdlib(config, self.request.tokenizer)
            return masked(text, config) if task.predicts == "hidden" else text
        if config.source == "digits":
            return load_digits(config, task)
        if config.source == "walks":
            walks = GraphWalk().record(WALKS, config.seed)
            return episode_dataset(walks, config, task.name, config.source)
        return load_generated(config, task)


def load_stdlib(config: DataConfig, tokenizer: Tokenizer | None = None) -> Dataset:
    """The .py files of the running Python's standard library, sorted by path, as a corpus.

    Tests, installed packages, IDLE, character tables and other files that are hardly code stay out,
    and so do files whose names hold this machine's platform. Cut between files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    entries, total = [], 0
    for path in sorted(_python_files(root)):
        inside = path.relative_to(root)
        size = path.stat().st_size
        total += size
        if total > LARGEST:
            break
        entries.append(Entry(inside.as_posix(), size, path, inside.parts))
    if not entries:
        raise DataError(
            f"this Python keeps no source files in '{root}', so there is no stdlib corpus; give "
            "a text file or folder with `data`"
        )
    with Source("stdlib", entries) as source:
        text = load_text(source, config, tokenizer)
    return replace(text, split=f"Python {platform.python_version()}; {text.split}")


def _python_files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        for name in names:
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Path(folder, name)


def load_digits(config: DataConfig, task: Task) -> ImageDataset:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, 0 to 16 spread over 0 to 255."""
    check_labels(config, task)
    package = extra_module("sklearn.datasets", "images", "the built-in digits", "scikit-learn")
    digits = package.load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    held_out = held_out_draw(labels, config.validation, config.seed)
    labelled = task.classifies or config.labels
    if task.measures:
        labels = labels[:, None].astype(np.float32)
    return image_dataset(
        reshaped(pixels, config),
        labels,
        held_out,
        config,
        name="digits",
        task=task,
        classes=tuple("0123456789") if labelled else (),
        split=f"a draw of {config.validation:.0%} within each class (seed {config.seed}): COUNTS",
        checksum=digest(pixels.tobytes(), config.size, config.colour),
    )
