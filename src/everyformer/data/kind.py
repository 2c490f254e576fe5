"""`Kind`: one kind of data, with how a source of it is recognised, loaded and refused.

    Request     the data as they were given: options, a word for the task, tasks of the model
    Kind        the data as they are: an instance of the first kind that recognises the request
      .check      refuses options that mean nothing to it
      .task       is the task that was given, or the natural one
      .load       makes the `Dataset`

The list is in `everyformer.data.load`; another package brings a kind by the entry-point group
``everyformer.data``, whose options are written ``--data.options name=value``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from everyformer.core.config import NoOptions, field_defaults, from_dict
from everyformer.core.errors import ConfigError, DataError, nearest, unknown
from everyformer.core.tasks import LM, MLM, SEQ2SEQ, TASKS, TEXT, Task, tasks_called
from everyformer.data.builtins import BUILTINS, MOVED
from everyformer.data.config import ELSEWHERE, SHARED, TABLE, DataConfig, named_values
from everyformer.data.dataset import Dataset
from everyformer.data.headers import LANGUAGES, TEXTS
from everyformer.data.layout import find_layout, without_notes
from everyformer.data.sources import Source, open_source
from everyformer.data.table import DELIMITED, PARQUET, TABLES, Table
from everyformer.data.tables import names_labels, open_table, pair_columns
from everyformer.data.tokenizers.base import Tokenizer

OF_PAIRS = ("source_column", "target_column")
OF_LABELS = ("label_column", "unlabelled")
"""options of tables of pairs, and of labelled ones"""
T = TypeVar("T", bound=str)


class Request:
    """Request for the data of a run, as it was given (see `load_dataset`); the end of a ``with``
    block closes the source."""

    def __init__(
        self,
        config: DataConfig,
        word: str | None = None,
        able: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
        sides: tuple[str, str] | None = None,
        classes: Sequence[str] = (),
        stored: DataConfig | None = None,
    ) -> None:
        self.config, self.word, self.tokenizer = config, word, tokenizer
        self.able = tuple(able) or tuple(TASKS)
        self.sides, self.classes, self.stored = sides, tuple(classes), stored
        names = TASKS if word is None else tasks_called(word)
        self.tasks = tuple(TASKS[name] for name in names)
        """the tasks that the word may mean"""
        if not self.tasks:
            known = [*TASKS, *(one.word for one in TASKS.values())]
            raise ConfigError(f"no data for the task '{word}'; {nearest(str(word), known)}")
        self.only_task = self.tasks[0] if len(self.tasks) == 1 else None
        """the task, where the word means one alone"""

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        if "source" in self.__dict__:
            self.source.__exit__()

    @cached_property
    def source(self) -> Source:
        """The files, opened when they are first looked at."""
        spec = self.config.source
        if spec.replace("-", "").replace("_", "").isalnum() and not os.path.exists(spec):
            if spec in MOVED:
                raise ConfigError(f"`{spec}` is no built-in any more, but {MOVED[spec]}")
            error = unknown("data source", spec, BUILTINS)
            raise type(error)(f"{error} (and there is no file or folder '{spec}' here)")
        return open_source(spec, self.config.encoding)

    @cached_property
    def text_task(self) -> Task:
        """The task of files of text."""
        if (task := self.task_of("labelled text")) is not None:
            return task
        return TASKS[_natural_task(self.source, self.config, self.able)]

    def task_of(self, reads: str) -> Task | None:
        """The task that the word means of a source of the kind ``reads`` (`Task.reads`).

        A word of several tasks means the one that reads such a source, of those that the model
        has; where it has none such another one, so that the source is refused. None: no word.
        """
        if self.word is None:
            return None
        had = [task for task in self.tasks if task.name in self.able] or [*self.tasks]
        return next((task for task in had if task.reads == reads), had[0])


class Kind(ABC):
    """Data of one kind, as a request names it: the record of the kind is the class."""

    name: ClassVar[str]
    """the data in refusals"""
    reads: tuple[str, ...] = ()
    """fields of `DataConfig` that mean something to it, besides those of all data"""
    why: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """option -> the end of its refusal, where that is another than in `ELSEWHERE`"""
    alone: str = ""
    """the end of a refusal of all other options, those too that most kinds pass over"""
    Options: ClassVar[type] = NoOptions
    """options of a kind that another package brings"""

    def __init__(self, request: Request) -> None:
        self.request, self.config = request, request.config
        self.options: Any = None
        """of another package's kind, its ``Options``, once they are checked"""

    @classmethod
    @abstractmethod
    def recognises(cls, request: Request) -> bool:
        """True where the data of ``request`` are of this kind; those before it refused them."""

    @property
    @abstractmethod
    def task(self) -> str:
        """The task of the data: the one that was given, or the natural one.

        Raises:
            ConfigError, DataError: the data cannot serve the one that was given, or nothing shows
                which is meant.
        """

    @property
    def does(self) -> Task:
        """The record of the task."""
        return TASKS[self.task]

    @abstractmethod
    def load(self) -> Dataset:
        """The data, ready to give batches.

        Raises:
            DataError: it is damaged, too short, or not fit for the task.
            MissingExtraError: a package is needed and not installed.
        """

    @property
    def called(self) -> str:
        """The data in refusals of options."""
        return self.name

    def check(self) -> None:
        """Refuse options that mean nothing to this kind, and unknown ones of its own."""
        reads = {*SHARED, *self.reads}
        if self.Options is not NoOptions:
            reads.add("options")
        # a run's tokenizer comes with it, whatever data it is for
        if self.request.tokenizer is not None:
            reads.add("tokenizer")
        if "mask_rate" in reads and self.does.predicts != "hidden":
            reads.remove("mask_rate")
        self.refuse(name for name in field_defaults(DataConfig) if name not in reads)
        values = named_values(self.config.options, "`data.options`")
        self.options = from_dict(self.Options, values, "data.options=")

    def refuse(self, names: Iterable[str], data: str = "", why: str = "") -> None:
        """Refuse options that are set and mean nothing to ``data``, or to this kind, which passes
        those over that a run has which is resumed or measured."""
        defaults = field_defaults(DataConfig)
        stored = defaults if data or self.request.stored is None else vars(self.request.stored)
        for name in names:
            value = getattr(self.config, name)
            end = why or self.alone or self.why.get(name) or ELSEWHERE.get(name)
            if end and value not in (defaults[name], stored[name]):
                raise ConfigError(f"`data.{name}` has no meaning for {data or self.called}{end}")


class TextFiles(Kind):
    """Base of the kinds of text, which one source may be: its task decides."""

    reads: tuple[str, ...] = ("tokenizer", "length", "part", "header", "separator", "encoding")

    @property
    def task(self) -> str:
        return self.request.text_task.name

    @property
    def called(self) -> str:
        return f"the task {self.task}"

    def check(self) -> None:
        endings = {entry.suffix for entry in without_notes(self.request.source.entries)}
        data = f"'{self.config.source}'"
        if not endings <= TABLES:
            self.refuse(TABLE, data, ELSEWHERE["header"])
        if not endings & DELIMITED:
            self.refuse(("header", "separator"), data, ", whose columns have names")
        if endings <= PARQUET:
            self.refuse(("encoding",), data, ", which tells its own")
        super().check()


def _natural_task(source: Source, config: DataConfig, able: Sequence[str]) -> str:
    """The first task of those that a text serves which is among ``able``."""
    entries = without_notes(source.entries)
    plain = (LM, MLM)
    if all(entry.suffix in TABLES for entry in entries):
        if first_served((TEXT, SEQ2SEQ, *plain), able) in plain and config.label_column is None:
            return first_served(plain, able)
        if _holds_parallel(source, config):
            return first_served((SEQ2SEQ, *plain), able)
        table = open_table(source, config, find_layout(entries, config.part).train[0])
        return _of_table(table, config, able)
    if _holds_parallel(source, config):
        return first_served((SEQ2SEQ, *plain), able)
    return first_served((TEXT, *plain) if _holds_class_folders(source) else plain, able)


def first_served(served: Sequence[T], able: Sequence[str]) -> T:
    """The first task of ``served`` that the model has; its very first where it has none."""
    return next((task for task in served if task in able), served[0])


def _of_table(table: Table, config: DataConfig, able: Sequence[str]) -> str:
    """The natural task of a table whose header names no two sides."""
    if all(TASKS[task].encodes for task in able):
        chosen = config.text_column or config.label_column
        if table.width == 2 and not chosen and not names_labels(table):
            return SEQ2SEQ
        raise DataError(
            f"{table.where} has {table.columns}, and a member that only translates takes pairs: "
            "choose their columns with `data.source_column` and `data.target_column`"
        )
    if config.label_column is not None:
        # a model without this task is refused by name
        return TEXT
    # of a CSV that shows no label its column is asked for, unless the text is chosen or alone
    ambiguous = table.marked_up and table.width > 1 and config.text_column is None
    return first_served((TEXT, LM, MLM) if ambiguous or names_labels(table) else (LM, MLM), able)


def _holds_parallel(source: Source, config: DataConfig) -> bool:
    """True where a source is parallel text, by its options or by itself.

    By itself: a table whose first line names both sides, or files that all end in languages, with
    two languages at least for one name.
    """
    options = (config.languages, config.source_column, config.target_column)
    if any(option is not None for option in options):
        return True
    entries = without_notes(source.entries)
    if all(entry.suffix in TABLES for entry in entries):
        table = open_table(source, config, entries[0])
        return pair_columns(table, None) is not None and TEXTS.isdisjoint(table.lower)
    if any(entry.suffix.removeprefix(".") not in LANGUAGES for entry in entries):
        return False
    stems = {entry.name[: len(entry.name) - len(entry.suffix)] for entry in entries}
    return len(stems) < len(entries)


def _holds_class_folders(source: Source) -> bool:
    """True where a source is .txt files in folders, two or more in each of two or more."""
    layout = find_layout(source.entries)
    if any(len(e.parts) != 2 or e.suffix != ".txt" for e in layout.entries):
        return False
    counts = Counter(entry.parts[0] for entry in layout.train)
    return len(counts) > 1 and min(counts.values()) > 1
