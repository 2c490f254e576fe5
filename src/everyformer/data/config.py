"""`DataConfig`: what is said about a run's data, one class of options for each kind of it.

A kind's record (`everyformer.data.kind.Kind`) names the classes that it reads; options of others
are refused with the words of their class. This module imports neither torch nor numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from everyformer.core.bounds import Count, Part, Positive, Seed, Several, Whole
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, nearest
from everyformer.core.tasks import TaskName
from everyformer.system.plain import from_json

SMALLEST_BPE = 257
"""All 256 bytes and one merge."""
LARGEST_BPE = 1_000_000
"""Several times the largest vocabulary in use; what trains them claims room for all at once."""


@dataclass(frozen=True)
class DataOptions(Options):
    """Options of some kinds of data, which say of other data why they mean nothing there."""

    elsewhere: ClassVar[str] = ""
    """the end of the refusal; empty where data that has no use for them passes them over"""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The options of the class."""
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True)
class SharedOptions(DataOptions):
    """Options of all data that is read."""

    source: str = "stdlib"
    """A file, folder, zip or glob, or a built-in: stdlib, digits, copy, reverse, sort, recall,
    listops. A built-in name wins over a file of that name; write ./copy for the file. Episodes: a
    folder that was recorded, or minari:ID."""
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
    """Options of sequences of tokens."""

    tokenizer: str = "bytes"
    """How text becomes tokens: bytes, chars, or bpe:SIZE, trained on the training part. (hub: the
    tokenizer of a converted checkpoint that a run starts from, which needs not be said.)"""
    length: Several = 256
    """Tokens in a training sequence; when texts are classified, the longest text kept; of parallel
    text, the longest sentence that is trained on, its end token included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tokenizer_parts(self.tokenizer)


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
    called like a text (text, sentence, review ...), or of two columns the one that is no label."""
    label_column: str | None = None
    """Tables: the column with the class or the number, likewise (label, class, category ...). Also
    of a table beside pictures (metadata.csv, or the only one), which names each row's picture."""
    source_column: str | None = None
    """Tables of pairs: the column that is translated, likewise (source, or as in languages)."""
    target_column: str | None = None
    """Tables of pairs: the column with the translation, likewise (target, or as in languages)."""
    header: Literal["auto", "yes", "no"] = "auto"
    """True if the first line of a CSV or TSV names the columns; auto knows it by the names, or
    guesses and says so."""
    unlabelled: Literal["refuse", "skip"] = "refuse"
    """tables: rows whose label is empty are refused, or left out."""

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that are chosen, and the header, by the options' names."""
        names = ("text_column", "label_column", "source_column", "target_column", "header")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class PictureOptions(DataOptions):
    """Options of pictures."""

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

    context: Count = 20
    """decision: steps of an episode that the model reads at once (K)."""
    best: Part | None = None
    """decision: only the episodes of the highest returns that together have at most this fraction
    of the training part's steps are trained on, one at least. Unset: all."""
    delayed: bool = False
    """decision: all of an episode's rewards come with its last step."""
    scale: Positive | None = None
    """decision: what returns-to-go are divided by. Unset: the largest of them, without its sign."""


@dataclass(frozen=True)
class EnvironmentOptions(DataOptions):
    """Options of an environment that is played."""

    elsewhere: ClassVar[str] = ": it is for an environment, which --env names"

    env: str | None = None
    """policy: --env NAME for short, the environment that is played, in place of a source
    (CartPole-v1)."""
    env_mask: tuple[Whole, ...] = ()
    """policy: --env.mask for short, entries of its observations that are hidden, counted from 0."""
    env_number: Count = 8
    """policy: --env.number for short, environments side by side."""
    env_options: tuple[str, ...] = ()
    """policy: options of the environment's own, as name=value here; --env.NAME VALUE for short.
    Episodes end after --env.max-episode-steps (unset: its own limit, or 10000 where it has
    none)."""


@dataclass(frozen=True)
class GeneratedOptions(DataOptions):
    """Options of generated tasks."""

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


@dataclass(frozen=True)
class DataConfig(
    # a dataclass has the fields of its last base first
    PluginOptions,
    GeneratedOptions,
    EnvironmentOptions,
    EpisodeOptions,
    PackingOptions,
    MaskOptions,
    DrawingOptions,
    PictureOptions,
    TableOptions,
    ParallelOptions,
    PartOptions,
    TokenOptions,
    SharedOptions,
):
    """Source of data, its parts and lengths: the options of all kinds side by side."""


Groups = tuple[type[DataOptions], ...]
GROUPS: Groups = DataConfig.__bases__[::-1]
"""the classes of options, in the order of their fields"""


@dataclass(frozen=True)
class Builtin:
    """Record of one built-in."""

    about: str
    tasks: tuple[TaskName, ...]
    """those that it serves, the natural one first"""
    reads: tuple[type[DataOptions], ...] = ()
    """options that not all built-ins have a use for"""
    options: tuple[str, ...] | None = None
    """of `GeneratedOptions`, those by which it is made; None: it is not generated without end"""

    def __str__(self) -> str:
        return f"{self.about} ({', '.join(self.tasks)})"


BUILTINS: dict[str, Builtin] = {
    "stdlib": Builtin(
        "the .py files of this Python's standard library, up to 10 MB of text",
        ("lm", "mlm"),
        (PackingOptions,),
    ),
    "digits": Builtin(
        "1,797 grey 8x8 pictures of handwritten digits, from scikit-learn",
        ("classify-image", "pixels", "super-resolution", "regress-image"),
        (DrawingOptions,),
    ),
    "copy": Builtin(
        "random tokens, a separator, then the same tokens, which alone are scored; or 10 to 20 "
        "tokens and the same once more",
        ("lm", "seq2seq"),
        options=("symbols",),
    ),
    "reverse": Builtin(
        "10 to 20 random tokens and the same backwards", ("seq2seq",), options=("symbols",)
    ),
    "sort": Builtin(
        "10 to 20 random tokens and the same in ascending order", ("seq2seq",), options=("symbols",)
    ),
    "recall": Builtin(
        "key-value pairs, then the keys again in another order; the answers are scored",
        ("lm",),
        options=("symbols", "pairs"),
    ),
    "listops": Builtin(
        "nested MIN, MAX, MED and SM of digits; the class is the value",
        ("classify-text", "regress-text"),
        options=("depth",),
    ),
    "waves": Builtin(
        "noisy series; the class is their shape, the number how often it repeats",
        ("classify-series", "regress-series"),
        options=(),
    ),
    "walks": Builtin(
        "1,000 random walks to one node of a graph of 20; a better one is a shorter one",
        ("decision",),
        (EpisodeOptions,),
    ),
}


@dataclass(frozen=True)
class TextSource(Options):
    """Texts of which all is read, with the tokenizer of a run."""

    source: str | None = None
    """texts: a file, a folder, a zip or a glob; each file is a document of its name, each row of a
    table (JSON lines, Parquet; CSV and TSV if the column is chosen) one of the file's and the
    row's"""
    text_column: str | None = None
    """tables: the column with the text, by its name or its number from 1 (default: the one that is
    called like a text)"""
    header: Literal["auto", "yes", "no"] = "auto"
    """whether the first line of a CSV or TSV names the columns"""


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


def tokenizer_parts(spec: str) -> tuple[str, int]:
    """``"bpe:8000"`` -> ``("bpe", 8000)``; the size is 0 for bytes, chars and hub.

    Raises:
        ConfigError: an unknown kind, a missing or unreadable size, a vocabulary too small.
    """
    kind, colon, size = spec.partition(":")
    if kind not in ("bytes", "chars", "bpe", "hub"):
        raise ConfigError(
            f"unknown tokenizer '{spec}'; {nearest(kind, ('bytes', 'chars', 'bpe:8000'))}"
        )
    if kind != "bpe":
        if colon:
            raise ConfigError(f"tokenizer '{kind}' takes no size; write '{kind}', not '{spec}'")
        return kind, 0
    if not size.isdecimal():
        raise ConfigError(f"tokenizer '{spec}' needs a vocabulary size, for example bpe:8000")
    if not size.isascii() or len(size) > 9 or int(size) > LARGEST_BPE:
        raise ConfigError(f"tokenizer '{spec}': a vocabulary has at most {LARGEST_BPE:,} tokens")
    if int(size) < SMALLEST_BPE:
        raise ConfigError(
            f"tokenizer '{spec}': a byte-level vocabulary has at least {SMALLEST_BPE} tokens "
            "(256 bytes and a merge); take a larger one, or --data.tokenizer bytes"
        )
    return kind, int(size)


def named_values(words: Sequence[str], flag: str) -> dict[str, Any]:
    """``name=value`` words as a table, the values read as JSON where they are such.

    Raises:
        ConfigError: a word has no name or no value.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name or not value:
            raise ConfigError(f"{flag} takes name=value, not '{word}'")
        try:
            values[name.replace("-", "_")] = from_json(value)
        except ValueError:
            values[name.replace("-", "_")] = value
    return values
