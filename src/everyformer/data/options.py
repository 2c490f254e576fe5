"""Options of data, one class for each kind of it.

A kind's record (`everyformer.data.kind.Kind`) names the classes that it reads; options of others
are refused with the words of their class. This module imports neither torch nor numpy.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from everyformer.core.bounds import Count, Part, Positive, Seed, Several
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, nearest
from everyformer.data.tokenizers.names import tokenizer_parts

Header = Literal["auto", "yes", "no"]
Separator = Literal["auto", "comma", "tab", "semicolon", "bar"]

SPLITS = ("random", "group", "time")
"""Ways in which rows are held out."""


@dataclass(frozen=True)
class DataOptions(Options):
    """Options of some kinds of data, which say of other data why they mean nothing there."""

    elsewhere: ClassVar[str] = ""
    """the end of the refusal; empty where other data passes them over, as what nearly all has"""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The options of the class."""
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True)
class SharedOptions(DataOptions):
    """Options of all data that is read."""

    source: str = "stdlib"
    """A file (.gz too), folder, zip or glob: text, tables, pictures, arrays; or a built-in: stdlib,
    digits, copy, reverse, sort, recall, listops, waves, walks. A built-in name wins over a file of
    that name; write ./copy for the file. Episodes: a folder that was recorded, or minari:ID."""
    validation: Part = 0.1
    """Fraction held out when the source brings no split of its own: the end of a corpus, a seeded
    draw within each class of labelled data. 1 holds out everything, to evaluate only."""
    seed: Seed = 0
    """Seed of the held-out draw and of generated tasks; the order of batches has the run's seed."""
    cache: str | None = None
    """Folder for encoded corpora. Unset: $EVERYFORMER_CACHE, else the user's cache folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.source.strip():
            raise ConfigError("'data.source' is empty; give a file, folder, zip, glob or built-in")


@dataclass(frozen=True)
class TokenOptions(DataOptions):
    """Options of text that becomes tokens."""

    elsewhere: ClassVar[str] = ": it is for text"

    tokenizer: str = "auto"
    """How text becomes tokens: bytes, chars or bpe:SIZE, trained on the training part. auto: bytes,
    or what a kind of data of another package takes. (hub: the tokenizer of a converted checkpoint
    that a run starts from, which needs not be said.)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        tokenizer_parts(self.tokenizer)


@dataclass(frozen=True)
class LengthOptions(DataOptions):
    """Options of sequences of tokens, or of what becomes such."""

    length: Several = 256
    """Tokens in a training sequence; when texts are classified, the longest text kept; of parallel
    text, the longest sentence that is trained on, its end token included."""


@dataclass(frozen=True)
class ParallelOptions(DataOptions):
    """Options of parallel text."""

    elsewhere: ClassVar[str] = (
        "; leave it out, or give files that it fits (parallel text is the task seq2seq)"
    )

    languages: str | None = None
    """Parallel text: the direction as FROM-TO, named like the files' endings or the fields (en-de).
    Unset: as the source's name has it, else in alphabetical order."""
    tokens: Count | None = None
    """Parallel text: a training batch holds about so many positions, source, target and padding
    together, instead of --batch sentences (which evaluations still read at a time)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.languages is not None:
            direction(self.languages)


@dataclass(frozen=True)
class PartOptions(DataOptions):
    """Options of sources in several parts."""

    elsewhere: ClassVar[str] = ParallelOptions.elsewhere

    part: str | None = None
    """Which part of a source in several parts is held out: its split's word, its folder or its file
    name without the ending (test_2016). Unset: the validation part, else the test part."""


@dataclass(frozen=True)
class TableOptions(DataOptions):
    """Options of tables."""

    elsewhere: ClassVar[str] = ": it is for tables (.csv, .tsv, .jsonl, .parquet)"

    text_column: str | None = None
    """Tables: the column with the text, by its name or its number from 1. Unset: the one that is
    called like a text (text, sentence, review ...), or of two columns the one beside the label."""
    label_column: str | None = None
    """Tables: the column with the class or the number, likewise (label, class, category ...). Also
    of a table beside pictures (metadata.csv, or the only one), which names each row's picture."""
    source_column: str | None = None
    """Tables of pairs: the column that is translated, likewise (source, or as in languages)."""
    target_column: str | None = None
    """Tables of pairs: the column with the translation, likewise (target, or as in languages)."""
    header: Header = "auto"
    """Whether the first line of a CSV or TSV names the columns. auto: it does where it has known
    names, the columns that options name, or words above numbers; else it is asked."""
    separator: Separator = "auto"
    """What divides the cells of a CSV or TSV. auto: tabs in a .tsv, or what alone divides the first
    line; else it is asked."""
    unlabelled: Literal["refuse", "skip"] = "refuse"
    """Tables: rows whose label is empty are refused, or left out."""


@dataclass(frozen=True)
class EncodingOptions(DataOptions):
    """Options of text in files."""

    elsewhere: ClassVar[str] = ": it is for text and for tables (.csv, .tsv, .jsonl)"

    encoding: str | None = None
    """Encoding of the text (utf-8, utf-16, windows-1252, shift-jis ...). Unset: UTF-8, or
    UTF-16 by its mark; plain text keeps its bytes as they are for the tokenizer bytes."""


@dataclass(frozen=True)
class RowOptions(DataOptions):
    """Options of rows with a class or a number each."""

    elsewhere: ClassVar[str] = ": it is for rows with a class or a number each"

    split: tuple[str, ...] = ("random",)
    """How rows with a class or a number are held out: random, a draw within each class; group
    COLUMN, by which all rows of one value of that column (a patient, a user, a source) stay on one
    side; or time COLUMN, by which the latest are held out. Of an .npz it is an array's name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kind, *rest = self.split or ("",)
        if kind not in SPLITS:
            raise ConfigError(f"'data.split' cannot be '{kind}'; {nearest(kind, SPLITS)}")
        if len(rest) != (kind != "random"):
            raise ConfigError(
                f"'data.split' is {' '.join(self.split)!r}, but it takes random alone, or group or "
                "time and the name or number of one column"
            )


@dataclass(frozen=True)
class PictureOptions(DataOptions):
    """Options of pictures."""

    elsewhere: ClassVar[str] = ": it is for pictures"

    size: Count | None = None
    """Pictures are resized to size x size. Unset: kept when all are equal, else all take the
    commonest size."""
    colour: Literal["auto", "grey", "rgb"] = "auto"
    """Channels of pictures; auto is grey when every picture is."""


@dataclass(frozen=True)
class DrawingOptions(DataOptions):
    """Options of pictures that are drawn."""

    elsewhere: ClassVar[str] = ": it is for pictures that are drawn"

    labels: bool = False
    """pixels, super-resolution: the model is told the class of each picture, the folder that it is
    in, and draws pictures of the class that it is asked for."""
    small: Count | None = None
    """super-resolution: pixels on the shorter side of the small pictures, which are means over the
    areas of the others. Unset: a quarter."""


@dataclass(frozen=True)
class MaskOptions(DataOptions):
    """Options of text with hidden tokens."""

    elsewhere: ClassVar[str] = ": it is for the task mlm"

    mask_rate: Part = 0.15
    """mlm: probability that a token is hidden: by the mask token in 80%, by a random token in 10%,
    by nothing in 10% of the cases."""
    mask_words: bool = False
    """mlm: hide whole words, not single tokens."""


@dataclass(frozen=True)
class PackingOptions(DataOptions):
    """Options of texts in several documents."""

    elsewhere: ClassVar[str] = ": it is for lm and mlm on text"

    packing: bool = False
    """lm, mlm: where a training sequence holds parts of several documents, tokens see only their
    own, whose positions begin at 0."""


@dataclass(frozen=True)
class EpisodeOptions(DataOptions):
    """Options of episodes."""

    elsewhere: ClassVar[str] = ": it is for episodes"

    best: Part | None = None
    """decision: only the episodes of the highest returns that together have at most this fraction
    of the training part's steps are trained on, one at least. Unset: all."""
    delayed: bool = False
    """decision: all of an episode's rewards come with its last step."""
    scale: Positive | None = None
    """decision: what returns-to-go are divided by. Unset: the largest of them, without its sign."""
    context: Count | None = None
    """decision: steps of an episode that the model reads at once, K. Unset: 20."""


@dataclass(frozen=True)
class GeneratedOptions(DataOptions):
    """Options of generated tasks."""

    elsewhere: ClassVar[str] = ": it is for generated tasks that are made by it"

    symbols: Several = 64
    """Generated tasks: how many content tokens there are; recall makes half of them keys."""
    pairs: Count = 16
    """recall: key-value pairs in a sequence; it needs a length of at least 4 x pairs."""
    depth: Count = 10
    """listops: deepest nesting of operators."""


@dataclass(frozen=True)
class PluginOptions(DataOptions):
    """Options of kinds of data that other packages bring."""

    elsewhere: ClassVar[str] = ": it is for kinds of data that another package brings"

    options: tuple[str, ...] = ()
    """Data of a kind that another package brings: its own options, as name=value."""


def direction(languages: str) -> tuple[str, str]:
    """``"en-de"`` -> ``("en", "de")``.

    Raises:
        ConfigError: not two different names with a hyphen between.
    """
    source, _, target = languages.lower().partition("-")
    if not source or not target or source == target or "-" in target:
        raise ConfigError(
            f"'data.languages' must be two different languages as FROM-TO (en-de), not "
            f"'{languages}'"
        )
    return source, target
