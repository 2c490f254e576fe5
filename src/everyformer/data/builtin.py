"""The data that every machine has: Python's own source code, scikit-learn's digits."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from everyformer.core.errors import DataError
from everyformer.core.tasks import TASKS, TaskName
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset, Spread
from everyformer.data.episodes import episode_dataset
from everyformer.data.images import ImageDataset, image_dataset, reshaped
from everyformer.data.masking import masked
from everyformer.data.picture_labels import check_labels
from everyformer.data.selection import held_out_draw
from everyformer.data.sources import Entry, Source
from everyformer.data.synthetic import load_generated
from everyformer.data.tasks import SERVED
from everyformer.data.text import load_text
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.waves import load_waves
from everyformer.rl.build import EnvironmentConfig
from everyformer.rl.collection import collect
from everyformer.rl.recipes import recipe
from everyformer.system.extras import extra_module

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


def load_builtin(config: DataConfig, task: str | None, tokenizer: Tokenizer | None) -> Dataset:
    """The built-in that ``config.source`` names.

    Raises:
        DataError: it does not serve the task; the standard library has no source files.
        ConfigError: options of a generated task that do not fit together.
        MissingExtraError: digits without scikit-learn, walks without gymnasium.
    """
    served = SERVED[config.source]
    if task is not None and task not in served:
        able = [name for name, tasks in SERVED.items() if task in tasks]
        raise DataError(
            f"the built-in '{config.source}' cannot serve the task {task}, only "
            f"{' and '.join(served)}; {', '.join(able)} can, or give your own data"
        )
    if config.source == "stdlib":
        text = load_stdlib(config, tokenizer)
        return masked(text, config) if task and TASKS[task].predicts == "hidden" else text
    if config.source == "digits":
        return load_digits(config, task or served[0])
    if config.source == "waves":
        return load_waves(config, task or served[0])
    if config.source == "walks":
        graph = EnvironmentConfig("everyformer/GraphPath-v0")
        found = collect(graph, recipe("random", graph), WALKS, config.seed)
        return episode_dataset(found, config, task or served[0], config.source)
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
            "a text file or folder with --data"
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


def load_digits(config: DataConfig, task: str) -> ImageDataset:
    """scikit-learn's 1,797 handwritten digits, 8x8 grey, 0 to 16 spread over 0 to 255."""
    check_labels(config, task)
    package = extra_module("sklearn.datasets", "images", "the built-in digits", "scikit-learn")
    found = package.load_digits()
    pixels = np.rint(found.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = found.target.astype(np.int64)
    held_out = np.zeros(len(labels), dtype=bool)
    held_out[held_out_draw(labels, config.validation, config.seed)] = True
    labelled = TASKS[task].classifies or config.labels
    numbers = None
    if TASKS[task].measures:
        labels = labels[:, None].astype(np.float32)
        numbers = Spread.of(labels[~held_out])
    names: tuple[tuple[str, ...], ...] = (tuple("0123456789"), ())
    return image_dataset(
        reshaped(pixels, config),
        labels,
        held_out,
        name="digits",
        task=cast(TaskName, task),
        classes=names[not labelled],
        numbers=numbers,
        untold=names[labelled or TASKS[task].encodes or TASKS[task].measures],
        split=f"a draw of {config.validation:.0%} within each class (seed {config.seed}): COUNTS",
        checksum=digest(pixels.tobytes(), config.size, config.colour),
        small=config.small,
    )
