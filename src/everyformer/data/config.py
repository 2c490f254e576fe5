"""`DataConfig`: the options of a run's data.

A kind of data names the options that it reads (`everyformer.data.kind.Kind.reads`); others are
refused with the words of `ELSEWHERE`. This module imports neither torch nor numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from everyformer.core.bounds import Count, Part, Positive, Seed, Several
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, nearest
from everyformer.data.tokenizers.names import tokenizer_parts
from everyformer.system.plain import from_json

Header = Literal["auto", "yes", "no"]
Separator = Literal["auto", "comma", "tab", "semicolon", "bar"]

SPLITS = ("random", "group")
"""Ways in which rows are held out."""


@dataclass(frozen=True)
class DataConfig(Options):
    """Source of data, its parts and lengths: the options of all kinds side by side."""

    gone: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("horizon", "season", "stride", "time_column")),
        **{f"{name}_column": [] for name in ("series", "value", "known", "past")},
        "alphabet": "auto",
        "strands": "one",
        "env": None,
        "env_mask": [],
        "env_number": 8,
        "env_options": [],
        "mask_words": False,
        "pairs": 16,
    }

    source: str = "stdlib"
    """A file (.gz too), folder, zip or glob: text, tables, pictures, arrays; or a built-in: stdlib,
    digits, copy, reverse, sort, listops, waves, walks; or a probe: mqar, mad:recall, ...
    Such a name wins over a file of it; write ./copy for the file. Episodes: a folder that was
    recorded, or minari:ID."""
    validation: Part = 0.1
    """Fraction held out when the source brings no split of its own: the end of a corpus, a seeded
    draw within each class of labelled data. 1 holds out everything, to evaluate only."""
    seed: Seed = 0
    """Seed of the held-out draw and of generated tasks; the order of batches has the run's seed."""
    cache: str | None = None
    """Folder for encoded corpora. Unset: $EVERYFORMER_CACHE, else the user's cache folder."""
    tokenizer: str = "auto"
    """How text becomes tokens: bytes, chars or bpe:SIZE, trained on the training part. auto: bytes,
    or what a kind of data of another package takes. (hub: the tokenizer of a converted checkpoint
    that a run starts from, which needs not be said.)"""
    length: Several = 256
    """Tokens in a training sequence; when texts are classified, the longest text kept; of parallel
    text, the longest sentence that is trained on, its end token included."""
    part: str | None = None
    """Which part of a source in several parts is held out: its split's word, its folder or its file
    name without the ending (test_2016). Unset: the validation part, else the test part."""
    languages: str | None = None
    """Parallel text: the direction as FROM-TO, named like the files' endings or the fields (en-de).
    Unset: as the source's name has it, else in alphabetical order."""
    tokens: Count | None = None
    """Parallel text: a training batch holds about so many positions, source, target and padding
    together, instead of --batch sentences (which evaluations still read at a time)."""
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
    encoding: str | None = None
    """Encoding of the text (utf-8, utf-16, windows-1252, shift-jis ...). Unset: UTF-8, or
    UTF-16 by its mark; plain text keeps its bytes as they are for the tokenizer bytes."""
    split: tuple[str, ...] = ("random",)
    """How rows with a class or a number are held out: random, a draw within each class; or group
    COLUMN, by which all rows of one value of that column (a patient, a user, a source) stay on one
    side. Of an .npz it is an array's name."""
    size: Count | None = None
    """Pictures are resized to size x size. Unset: kept when all are equal, else all take the
    commonest size."""
    colour: Literal["auto", "grey", "rgb"] = "auto"
    """Channels of pictures; auto is grey when every picture is."""
    labels: bool = False
    """pixels, super-resolution: the model is told the class of each picture, the folder that it is
    in, and draws pictures of the class that it is asked for."""
    small: Count | None = None
    """super-resolution: pixels on the shorter side of the small pictures, which are means over the
    areas of the others. Unset: a quarter."""
    mask_rate: Part = 0.15
    """mlm: probability that a token is hidden: by the mask token in 80%, by a random token in 10%,
    by nothing in 10% of the cases."""
    packing: bool = False
    """lm, mlm: where a training sequence holds parts of several documents, tokens see only their
    own, whose positions begin at 0."""
    best: Part | None = None
    """decision: only the episodes of the highest returns that together have at most this fraction
    of the training part's steps are trained on, one at least. Unset: all."""
    delayed: bool = False
    """decision: all of an episode's rewards come with its last step."""
    scale: Positive | None = None
    """decision: what returns-to-go are divided by. Unset: the largest of them, without its sign."""
    context: Count | None = None
    """decision: steps of an episode that the model reads at once, K. Unset: 20."""
    symbols: Several = 64
    """Generated tasks: how many content tokens there are."""
    depth: Count = 10
    """listops: deepest nesting of operators."""
    options: tuple[str, ...] = ()
    """Data of a kind that another package brings: its own options, as name=value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.source.strip():
            raise ConfigError("'data.source' is empty; give a file, folder, zip, glob or built-in")
        tokenizer_parts(self.tokenizer)
        if self.languages is not None:
            direction(self.languages)
        kind, *rest = self.split or ("",)
        if kind not in SPLITS:
            raise ConfigError(f"'data.split' cannot be '{kind}'; {nearest(kind, SPLITS)}")
        if len(rest) != (kind != "random"):
            raise ConfigError(
                f"'data.split' is {' '.join(self.split)!r}, but it takes random alone, or group "
                "and the name or number of one column"
            )

    @property
    def group_column(self) -> str | None:
        """The column whose equal values stay on one side."""
        return self.split[1] if len(self.split) > 1 else None

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that are chosen, and the header, by the options' names."""
        names = ("text_column", "label_column", "source_column", "target_column", "header")
        grouped = ("group_column",) if self.group_column is not None else ()
        return {name: getattr(self, name) for name in (*names, "separator", *grouped)}


SHARED = ("source", "validation", "seed", "cache")
TABLE = (
    *("text_column", "label_column", "source_column", "target_column"),
    *("header", "separator", "unlabelled"),
)
PICTURES, DRAWN = ("size", "colour"), ("labels", "small")
EPISODES = ("best", "delayed", "scale", "context")
GENERATED = ("symbols", "depth")
"""options of all data, of tables, of pictures and such that are drawn, of episodes, of built-ins"""

UNFIT = "; leave it out, or give files that it fits (parallel text is the task seq2seq)"
ELSEWHERE: dict[str, str] = {
    "tokenizer": ": it is for text",
    **dict.fromkeys(("part", "languages", "tokens"), UNFIT),
    **dict.fromkeys(TABLE, ": it is for tables (.csv, .tsv, .jsonl, .parquet)"),
    "encoding": ": it is for text and for tables (.csv, .tsv, .jsonl)",
    "split": ": it is for rows with a class or a number each",
    **dict.fromkeys(PICTURES, ": it is for pictures"),
    **dict.fromkeys(DRAWN, ": it is for pictures that are drawn"),
    "mask_rate": ": it is for the task mlm",
    "packing": ": it is for lm and mlm on text",
    **dict.fromkeys(EPISODES, ": it is for episodes"),
    **dict.fromkeys(GENERATED, ": it is for generated tasks that are made by it"),
    "options": ": it is for kinds of data that another package brings",
}
"""Option -> the end of the refusal of a kind that does not read it; of one that is not here such
kinds pass it over, as what nearly all have."""


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
    header: Header = "auto"
    """whether the first line of a CSV or TSV names the columns"""
    separator: Separator = "auto"
    """what divides the cells of a CSV or TSV"""


def direction(languages: str) -> tuple[str, str]:
    """``"en-de"`` -> ``("en", "de")``."""
    source, _, target = languages.lower().partition("-")
    if not source or not target or source == target or "-" in target:
        raise ConfigError(
            f"'data.languages' must be two different languages as FROM-TO (en-de), not "
            f"'{languages}'"
        )
    return source, target


def named_values(words: Sequence[str], flag: str) -> dict[str, Any]:
    """``name=value`` words as a table, the values read as JSON where they are such."""
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
