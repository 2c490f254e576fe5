"""`Task`: one thing that a model does with data, whole; `TASKS` knows all by name.

A task is its object everywhere: callers read its facts and ask it to act, and never compare its
name. Each is a class in a file of `everyformer.tasks`; another package brings one by the
entry-point group ``everyformer.tasks``, a user by --plugin.

    text, table, pictures -> kind of data -> `Dataset` -> batches -> `Task.build`, its loss
      -> `Task.scores` -> `Task.against_baseline`, `Task.table`; `Task.predictor` answers rows
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from everyformer.core.errors import ConfigError, UnsupportedError, unknown
from everyformer.core.measures import Baseline, Metric, beats, constant, sentence
from everyformer.core.plugins import BASES, loaded, offered, own_classes

if TYPE_CHECKING:
    from torch import nn

    from everyformer.core.member import Member
    from everyformer.data.dataset import Dataset
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model
    from everyformer.tasks.prediction.predictor import Predictor
    from everyformer.tasks.scores import Scores

LM, MLM, TEXT, IMAGE = "lm", "mlm", "classify-text", "classify-image"
SEQ2SEQ, PIXELS, ENLARGE = "seq2seq", "pixels", "super-resolution"
SERIES, TEXT_NUMBER = "classify-series", "regress-text"
IMAGE_NUMBER, SERIES_NUMBER = "regress-image", "regress-series"
DECISION = "decision"
ALL_TASKS = (
    *(LM, MLM, TEXT, IMAGE, SEQ2SEQ, PIXELS, ENLARGE, SERIES, TEXT_NUMBER, IMAGE_NUMBER),
    *(SERIES_NUMBER, DECISION),
)
"""those of this library"""
BASES["task"] = "everyformer.core.tasks:Task"
GONE = {
    "forecast": "forecasting of series left the library for examples/forecasting",
    "policy": "proximal policy optimisation left the library for examples/ppo_gtrxl.py",
}
"""tasks of earlier versions, and what became of each"""


class Task(ABC):
    """One task: first what it is, then what it does."""

    name: ClassVar[str]
    about: ClassVar[str]
    """what goes in, and what comes out"""
    reads: ClassVar[str]
    """the kind of data that it is learned from: text, labelled text, parallel text, pictures,
    series, episodes, or one of another package"""
    predicts: ClassVar[str]
    """next (every token or intensity), hidden (tokens), class or number (of a row), action (of
    every step), or a word of another package"""
    goal: ClassVar[str] = "predicts"
    """what a model does with data, in the question of a comparison"""
    train: ClassVar[str]
    """how a member is trained for it on a user's data"""
    use: ClassVar[str] = "eval {run}"
    """the words after `everyformer` that a trained run is first used by"""
    encodes: ClassVar[bool] = False
    """whether an encoder reads a source for a decoder that writes"""
    metrics: ClassVar[tuple[Metric, ...]] = ("loss",)
    """what a table is ranked by: the first of these measures (`everyformer.core.measures`) that an
    evaluation has"""
    loss_unit: ClassVar[str] = "nats per token"

    @property
    def classifies(self) -> bool:
        """True if it names the class of a row."""
        return self.predicts == "class"

    @property
    def measures(self) -> bool:
        """True if it answers a row with numbers."""
        return self.predicts == "number"

    @property
    def answers(self) -> bool:
        """True if it says one thing of a whole row."""
        return self.classifies or self.measures

    @property
    def series(self) -> bool:
        """True if it reads numbers at each step of a series."""
        return self.reads == "series"

    @property
    def word(self) -> str:
        """Name where the data say what is read: classify, regress; else its name."""
        return self.name.partition("-")[0] if self.answers else self.name

    @property
    def writes(self) -> bool:
        """True if what comes next is predicted, so that a model can generate."""
        return self.predicts == "next"

    @property
    def reads_text(self) -> bool:
        """True if tokens of text go in."""
        return "text" in self.reads

    @property
    def acts(self) -> bool:
        """True if it chooses actions, which it learns from recorded episodes."""
        return self.predicts == "action"

    @property
    def forward_only(self) -> bool:
        """True if what is predicted would leak from what comes later."""
        return self.writes or self.acts

    @property
    def pictures(self) -> bool:
        """True if it reads pictures."""
        return self.reads == "pictures"

    @property
    def draws(self) -> bool:
        """True if it generates pictures."""
        return self.writes and self.pictures

    @property
    def continues(self) -> bool:
        """True if it continues a text, from one segment to the next."""
        return self.writes and self.reads == "text"

    @property
    def translates(self) -> bool:
        """True if it writes a text for a text."""
        return self.encodes and not self.pictures

    @property
    def summarised(self) -> bool:
        """True if global tokens may represent parts of its texts, which it reads both ways."""
        return self.embeds_text and not self.writes

    @property
    def embeds_text(self) -> bool:
        """True if one stack reads tokens of text."""
        return self.reads in ("text", "labelled text")

    def suits(self, member: Member) -> bool:
        """True if a member can have this task, where its row does not say so: of one that predicts
        what comes later if it models language, of others if it classifies text."""
        return (LM if self.forward_only else TEXT) in member.tasks

    @abstractmethod
    def build(self, config: ModelConfig) -> Model:
        """The module that a complete config describes."""

    @abstractmethod
    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        """The counts of an evaluation, and the measures that follow from them.

        Args:
            details: of classes, each by itself too.
        """

    def metric(self, evaluation: Mapping[str, Any]) -> Metric:
        """The measure that a table is ranked by."""
        return next(name for name in self.metrics if name in evaluation)

    def baseline(self, evaluation: Mapping[str, Any]) -> Baseline | None:
        """The score of an answer that reads no input, in the measure by which the task is ranked;
        None where there is none."""
        return constant(self.metrics, evaluation)

    def beats(self, evaluation: Mapping[str, Any], base: Baseline) -> bool:
        """True if an evaluation surely beats the baseline: its whole 95% interval does, where it is
        known; of one row nothing is sure."""
        return beats(evaluation, base)

    def against_baseline(self, evaluation: Mapping[str, Any]) -> str | None:
        """A sentence on whether an evaluation beats the baseline; None where there is none."""
        base = self.baseline(evaluation)
        return None if base is None else sentence(base, self.beats(evaluation, base))

    def table(self, evaluation: Mapping[str, Any], dataset: Dataset) -> str | None:
        """An evaluation for people, as tables; None: a line for each measure says it."""
        return None

    def predictor(self, name: str) -> type[Predictor]:
        """The class of predictors that answer rows.

        Args:
            name: what the refusal calls the model.

        Raises:
            UnsupportedError: a row has no class, no numbers, and no next or hidden tokens; names
                the verb that shows what such a model does.
        """
        raise UnsupportedError(
            f"{name} has the task {self.name}, which {self.shown_by}; "
            "predict is for runs that classify, measure, continue a text or fill it"
        )

    shown_by: ClassVar[str] = "writes whole sequences: everyformer generate shows them"
    """what shows what a model does that answers no rows"""


class Tasks(Mapping[str, Task]):
    """Every task by its name, those of this library first."""

    def __getitem__(self, name: str) -> Task:
        found = _own().get(name) or others().get(name)
        if found is None:
            error = unknown("task", name, self)
            raise type(error)(f"{error}; one of your own is known by --plugin")
        return found

    def __contains__(self, name: object) -> bool:
        return name in _own() or name in others()

    def __iter__(self) -> Iterator[str]:
        return iter((*_own(), *others()))

    def __len__(self) -> int:
        return len(_own()) + len(others())


TASKS = Tasks()


@cache
def _own() -> dict[str, Task]:
    """Tasks of this library, whose files import no model until they act."""
    kinds: tuple[type[Task], ...] = importlib.import_module("everyformer.tasks").OWN
    return {kind.name: kind() for kind in kinds}


def others() -> dict[str, Task]:
    """Tasks of other packages and of the user, by name.

    Raises:
        ConfigError: one has the name of a task of this library.
    """
    kinds = {entry.name: loaded(entry, "task", BASES["task"]) for entry in offered("task")}
    kinds |= own_classes("task")
    for name, kind in kinds.items():
        if name in _own():
            raise ConfigError(
                f"{kind.__qualname__} is called '{name}', as a task of this library: give it "
                "another name"
            )
    return {name: _made(kind) for name, kind in kinds.items()}


@cache
def _made(kind: type[Task]) -> Task:
    return kind()


def tasks_that(what: str) -> tuple[str, ...]:
    """Names of the tasks that say yes to ``what``, a field or property of `Task`."""
    return tuple(name for name, task in TASKS.items() if getattr(task, what))


def tasks_called(word: str) -> tuple[str, ...]:
    """The task of this name, or those that share the word; () where there is none."""
    if word in TASKS:
        return (word,)
    return tuple(name for name, task in TASKS.items() if task.word == word)
