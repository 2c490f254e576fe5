"""`load_dataset`: the data that a request names, by the first kind that recognises it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from inspect import isabstract
from typing import ClassVar

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.plugins import loaded, offer_of, offered, own_classes
from everyformer.data.builtins import BUILTINS
from everyformer.data.config import UNFIT, DataConfig
from everyformer.data.dataset import Dataset
from everyformer.data.kind import OF_LABELS, OF_PAIRS, Kind, Request, TextFiles
from everyformer.data.masking import masked
from everyformer.data.sources import ARRAYS, PICTURES
from everyformer.data.text import load_text
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.system.files import expanded, is_address


class Text(TextFiles):
    """Text that is learned as it is, or with tokens hidden."""

    name = "text"
    reads = (*TextFiles.reads, "text_column", "packing", "mask_rate")
    why: ClassVar = {
        **dict.fromkeys(OF_PAIRS, UNFIT),
        **dict.fromkeys(OF_LABELS, "; leave it out, or classify"),
    }

    @classmethod
    def recognises(cls, request: Request) -> bool:
        """True of all that no other kind has recognised."""
        return True

    def check(self) -> None:
        task = self.does
        if task.series:
            raise DataError(
                f"'{self.config.source}' holds no series, which the task {task.name} needs; give "
                "them as arrays (N, T, C) with their targets in an .npz"
            )
        if task.pictures:
            raise DataError(
                f"'{self.config.source}' holds no pictures, which the task {task.name} needs; give "
                "the folder or zip of .png or .jpg files (a table of them lies beside), or take "
                "the task lm or classify-text"
            )
        super().check()

    def load(self) -> Dataset:
        text = load_text(self.request.source, self.config, self.request.tokenizer)
        return masked(text, self.config) if self.does.predicts == "hidden" else text


def _may_be_episodes(request: Request) -> bool:
    path = expanded(request.config.source) if not is_address(request.config.source) else None
    there = path is not None and (path.is_dir() or path.suffix == ".npz")
    return there or ":" in request.config.source or all(task.acts for task in request.tasks)


def _holds(suffixes: Collection[str]) -> Callable[[Request], bool]:
    return lambda request: any(entry.suffix in suffixes for entry in request.source.entries)


KINDS: tuple[tuple[str, Callable[[Request], bool]], ...] = (
    ("builtin:BuiltIn", lambda request: request.config.source in BUILTINS),
    ("episodes.kind:Episodes", _may_be_episodes),
    ("arrays:Arrays", _holds(ARRAYS)),
    ("images:Pictures", _holds(PICTURES)),
    ("parallel:ParallelText", lambda request: request.text_task.reads == "parallel text"),
    ("labelled:LabelledText", lambda request: request.text_task.reads == "labelled text"),
)
"""Kinds of this library, in the order in which they look at a source, each with what must hold of
the data before its file is read: what they are for is read by those alone who have it. All others
are `Text`."""


def kinds(request: Request) -> Iterator[type[Kind]]:
    """Every kind that the data may be of, those of the user and of other packages first.

    Raises:
        PluginError: one of another package cannot be imported.
        ConfigError: it is no `Kind`, or lacks something; both name the package.
    """
    yield from own_classes("data").values()
    for entry in offered("data"):
        kind = loaded(entry, "kind of data")
        whole = isinstance(kind, type) and issubclass(kind, Kind) and not isabstract(kind)
        if not whole or not hasattr(kind, "name"):
            offer = offer_of(entry, "kind of data")
            raise ConfigError(f"{offer} is no `Kind` with a name and all methods, but {kind!r}")
        yield kind
    for home, may_be in KINDS:
        if may_be(request):
            module, _, name = home.partition(":")
            yield getattr(import_module(f"{__package__}.{module}"), name)
    yield Text


def recognised(request: Request) -> Kind:
    """The data of a request, by its kind; options that mean nothing to it are refused."""
    data = next(kind for kind in kinds(request) if kind.recognises(request))(request)
    data.check()
    return data


def load_dataset(
    config: DataConfig,
    task: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    able: Sequence[str] = (),
    sides: tuple[str, str] | None = None,
    classes: Sequence[str] = (),
    stored: DataConfig | None = None,
) -> Dataset:
    """The data that ``config`` names, ready to give batches.

    Args:
        config: source, tokenizer, lengths, held-out part.
        task: a name in `core.tasks.TASKS`, or classify or regress, of whatever the source holds;
            None takes what is natural: a text file lm, parallel text seq2seq, a table or a folder
            with a folder of texts for each class classify-text, pictures classify-image (pixels
            when neither folders nor a table with them show classes), a built-in its first task.
        tokenizer: a finished run's, to read other text as that run would; replaces the config's.
        able: the tasks that the model has (default: all); of what a text or a built-in can serve,
            the first of them is natural. A table of two columns is pairs to a model that only
            translates.
        sides: what a finished run translates from and to, by the names of columns or endings: pairs
            are read in that direction, and refused where their names are others.
        classes: those of a finished run, in the order of their ids: labels are read as these, some
            of which may have no row, and refused where they are others.
        stored: what a run that is resumed or measured has stored of its data: of that nothing is
            refused as meaningless.

    Raises:
        ConfigError: an unknown built-in, task or option.
        DataError: the source is missing, unreadable, too short, or not fit for the task.
        MissingExtraError: pillow, scikit-learn, pyarrow or tokenizers is needed and not installed.
    """
    with Request(config, task, able, tokenizer, sides, classes, stored) as request:
        return recognised(request).load()
