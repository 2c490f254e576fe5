"""`DataConfig`: what is said about a run's data, the options of all kinds of it side by side.

This module imports neither torch nor numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.data.options import (
    DataOptions,
    DrawingOptions,
    EncodingOptions,
    EpisodeOptions,
    GeneratedOptions,
    Header,
    LengthOptions,
    MaskOptions,
    PackingOptions,
    ParallelOptions,
    PartOptions,
    PictureOptions,
    PluginOptions,
    RowOptions,
    Separator,
    SharedOptions,
    TableOptions,
    TokenOptions,
)
from everyformer.system.plain import from_json


@dataclass(frozen=True)
class DataConfig(
    # a dataclass has the fields of its last base first
    PluginOptions,
    GeneratedOptions,
    EpisodeOptions,
    PackingOptions,
    MaskOptions,
    DrawingOptions,
    PictureOptions,
    RowOptions,
    EncodingOptions,
    TableOptions,
    ParallelOptions,
    PartOptions,
    LengthOptions,
    TokenOptions,
    SharedOptions,
):
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
    }

    @property
    def group_column(self) -> str | None:
        """The column whose equal values stay on one side: groups, or times."""
        return self.split[1] if len(self.split) > 1 else None

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that are chosen, and the header, by the options' names."""
        names = ("text_column", "label_column", "source_column", "target_column", "header")
        grouped = ("group_column",) if self.group_column is not None else ()
        return {name: getattr(self, name) for name in (*names, "separator", *grouped)}


Groups = tuple[type[DataOptions], ...]
GROUPS: Groups = DataConfig.__bases__[::-1]
"""the classes of options, in the order of their fields"""


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
