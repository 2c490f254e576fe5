"""`load_dataset`, which finds the right kind of data for a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import cast

from everyformer.core.config import field_defaults
from everyformer.core.errors import ConfigError, DataError, nearest, unknown
from everyformer.core.tasks import ALL_TASKS, LM, TASKS, TaskName, tasks_called, tasks_that
from everyformer.data.arrays import holds_arrays, load_arrays
from everyformer.data.builtin import load_builtin
from everyformer.data.config import TABLE_OPTIONS, DataConfig
from everyformer.data.dataset import Dataset
from everyformer.data.environments import load_environment
from everyformer.data.episodes import holds_episodes, load_episodes
from everyformer.data.images import holds_images, load_images
from everyformer.data.labelled import load_labelled
from everyformer.data.layout import without_notes
from everyformer.data.masking import masked
from everyformer.data.named import tables_beside
from everyformer.data.natural import first_served, natural_task
from everyformer.data.parallel import load_parallel
from everyformer.data.sources import Source, open_source
from everyformer.data.table import DELIMITED, TABLES
from everyformer.data.tasks import BUILTINS, SERVED
from everyformer.data.text import load_text
from everyformer.data.tokenizers.base import Tokenizer

PARALLEL = ("target", "languages", "tokens")
FITS = "; leave it out, or give files that it fits (parallel text is the task seq2seq)"
COLUMNS = (*TABLE_OPTIONS, "unlabelled"), ": it is for tables (.csv, .tsv, .jsonl, .parquet)"
SIDES = "; choose the columns of pairs with --data.source-column and --data.target-column"
PACKING = ("packing",), ": it is for lm and mlm on text"
OF_TEXTS = ("text_column", "source_column", "target_column")
OF_LABELS = ("label_column", "unlabelled")
OF_TABLES = tuple(name for name in COLUMNS[0] if name != "label_column")
ARRAYS = ": it is for tables; the arrays of an .npz go by their names"
DRAWING = ("labels", "small"), ": it is for pictures that are drawn"
EPISODES = ("context", "best", "delayed", "scale")
ACTING = EPISODES, ": it is for episodes"
OF_EPISODES = ("source", "validation", "seed", "cache", *EPISODES)
ENVIRONMENT = ("env", "env_mask", "env_number", "env_options")
PLAYING = ENVIRONMENT[1:], ": it is for an environment, which --env names"
OF_PLAYING = (
    tuple(n for n in field_defaults(DataConfig) if n not in ENVIRONMENT),
    ", which is played and not read",
)
OF_OTHERS = (
    tuple(name for name in field_defaults(DataConfig) if name not in OF_EPISODES),
    ", which are read --data.context steps at a time",
)
"""options that some data has no use for, and what they are for"""


def load_dataset(
    config: DataConfig,
    task: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    able: Sequence[str] = ALL_TASKS,
) -> Dataset:
    """The data that ``config`` names, ready to give batches.

    Args:
        config: source, tokenizer, lengths, held-out part.
        task: a name in `core.tasks.TASKS`, or classify or regress, of whatever the source holds;
            None takes what is natural: a text file lm, parallel text seq2seq, a table or a folder
            with a folder of texts for each class classify-text, pictures classify-image (pixels
            when neither folders nor a table beside them show classes), a built-in its first task.
        tokenizer: a finished run's, to read other text as that run would; replaces the config's.
        able: the tasks that the model has; of what a text or a built-in can serve, the first of
            them is natural. A table of two columns is pairs to a model that only translates.

    Raises:
        ConfigError: an unknown built-in, task or option.
        DataError: the source is missing, unreadable, too short, or not fit for the task; a table
            may be labelled text or pairs, and nothing says which.
        MissingExtraError: pillow, scikit-learn, pyarrow or tokenizers is needed and not installed.
    """
    called = ALL_TASKS if task is None else tasks_called(task)
    if not called:
        known = [*TASKS, *(one.word for one in TASKS.values())]
        raise ConfigError(f"no data for the task '{task}'; {nearest(str(task), known)}")
    if len(called) == 1:
        task = called[0]
    if config.env is not None:
        return _environment(config, task)
    _refuse(config, f"'{config.source}'", *PLAYING)
    if len(called) == 1 and TASKS[called[0]].interacts:
        raise ConfigError(f"the task {task} plays in an environment: name it with --env")
    acting = [name for name in called if TASKS[name].recorded]
    if config.source not in BUILTINS and (acting == [*called] or holds_episodes(config.source)):
        if not acting:
            raise DataError(
                f"'{config.source}' holds episodes, which the task {task} cannot use; they are for "
                f"{', '.join(tasks_that('recorded'))}"
            )
        _refuse(config, "episodes", *OF_OTHERS)
        return load_episodes(config, cast(TaskName, acting[0]))
    plays = all(TASKS[name].recorded for name in SERVED.get(config.source, (LM,)))
    _refuse(config, f"'{config.source}'", *(OF_OTHERS if plays else ACTING))
    if config.source in BUILTINS:
        data = f"the built-in '{config.source}'"
        _refuse(config, data, (*PARALLEL, "part"), FITS)
        _refuse(config, data, *COLUMNS)
        if config.source != "stdlib":
            _refuse(config, data, *PACKING)
        if config.source != "digits":
            _refuse(config, data, *DRAWING)
        served = SERVED[config.source]
        if task is None or task in TASKS:
            return load_builtin(config, task or first_served(served, able), tokenizer)
        meant = [name for name in called if name in served]
        return load_builtin(config, meant[0] if meant else called[0], tokenizer)
    _refuse_unknown_name(config.source)
    with open_source(config.source) as source:
        if holds_arrays(source):
            _refuse(config, "arrays", PARALLEL, FITS)
            _refuse(config, "arrays", OF_TABLES, ARRAYS)
            return load_arrays(source, config, task, able)
        if task is not None and (kind := _reads(source, called, able)) is not None:
            task = kind
        if holds_images(source):
            _refuse(config, "pictures", PARALLEL, FITS)
            options = COLUMNS[0] if not tables_beside(source) else OF_TEXTS
            _refuse(config, "pictures", options, COLUMNS[1])
            _refuse(config, "pictures", *PACKING)
            return load_images(source, config, task)
        if task is not None and TASKS[task].series:
            raise DataError(
                f"'{config.source}' holds no series, which the task {task} needs; give them as "
                "arrays (N, T, C) with their targets in an .npz"
            )
        if task is not None and TASKS[task].pictures:
            raise DataError(
                f"'{config.source}' holds no pictures, which the task {task} needs; give the "
                "folder or zip of .png or .jpg files (a table of them lies beside), or take the "
                "task lm or classify-text"
            )
        _refuse(config, "text", *DRAWING)
        _refuse_of_files(source, config)
        if task is None:
            task = natural_task(source, config, able)
        if TASKS[task].reads != "text":
            _refuse(config, f"the task {task}", *PACKING)
        if TASKS[task].translates:
            _refuse(config, f"the task {task}", ("text_column", *OF_LABELS), SIDES)
            return load_parallel(source, config, tokenizer)
        _refuse(config, f"the task {task}", PARALLEL, FITS)
        _refuse(config, f"the task {task}", ("source_column", "target_column"), FITS)
        if TASKS[task].answers:
            return load_labelled(source, config, tokenizer, task)
        _refuse(config, f"the task {task}", OF_LABELS, "; leave it out, or classify")
        text = load_text(source, config, tokenizer)
        return masked(text, config) if TASKS[task].predicts == "hidden" else text


def _environment(config: DataConfig, task: str | None) -> Dataset:
    """The environment that is named, for the task that plays."""
    [plays] = tasks_that("interacts")
    if task not in (None, plays):
        raise ConfigError(
            f"--env names an environment, which the task {task} cannot use; it is for {plays}"
        )
    if config.source != field_defaults(DataConfig)["source"]:
        raise ConfigError(
            f"--env {config.env} is played in place of data, but --data {config.source} is given "
            "too: leave one of them out"
        )
    _refuse(config, config.env or "", *OF_PLAYING)
    return load_environment(config, cast(TaskName, plays))


def _reads(source: Source, called: Sequence[str], able: Sequence[str]) -> str | None:
    """Of the tasks that share a word, the one that reads what a source of files holds; where the
    model has none such, what it has, so that the source is refused."""
    if len(called) == 1:
        return None
    reads = "pictures" if holds_images(source) else "labelled text"
    had = [name for name in called if name in able] or called
    return next((name for name in had if TASKS[name].reads == reads), had[0])


def _refuse(config: DataConfig, data: str, names: Sequence[str], hint: str) -> None:
    """Refuse options that would have no meaning for ``data``."""
    for name in names:
        if getattr(config, name) != field_defaults(DataConfig)[name]:
            raise ConfigError(f"--data.{name.replace('_', '-')} has no meaning for {data}{hint}")


def _refuse_of_files(source: Source, config: DataConfig) -> None:
    """Refuse options of tables for other files, and of headers where no line could be one."""
    endings = {entry.suffix for entry in without_notes(source.entries)}
    if not endings <= TABLES:
        _refuse(config, f"'{source.given}'", *COLUMNS)
    if not endings & DELIMITED:
        _refuse(config, f"'{source.given}'", ("header",), ", whose columns have names")


def _refuse_unknown_name(source: str) -> None:
    """A missing source that looks like a name, not like a path, was meant as a built-in."""
    if source.replace("-", "").replace("_", "").isalnum() and not os.path.exists(source):
        error = unknown("data source", source, BUILTINS)
        raise type(error)(f"{error} (and there is no file or folder '{source}' here)")
