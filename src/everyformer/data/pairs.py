"""Parallel text: which files and columns hold it, in which direction, and its pairs one by one.

Two files of equal name but for the language's ending (train.en, train.de), any number of such twins
in a folder or zip; tables with two columns for them, chosen by options or known by their names.
Lines end at \\n alone (other line separators of Unicode are text), white space around is dropped.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.config import DataConfig, direction
from everyformer.data.headers import FIELDS, LANGUAGES, TEXTS, two_languages
from everyformer.data.layout import find_layout, without_notes
from everyformer.data.sources import Entry, Source, text_lines
from everyformer.data.table import TABLES, Table
from everyformer.data.tables import Role, TableReader, open_table
from everyformer.data.tokenizers.base import SEPARATOR

SIDES = Role("source"), Role("target")
Pair = tuple[str, str, str, str]
"""source, target, and file and line of either"""


def holds_parallel(source: Source, config: DataConfig) -> bool:
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
        return _sides(table, None) is not None and TEXTS.isdisjoint(table.lower)
    if any(_ending(entry) not in LANGUAGES for entry in entries):
        return False
    return len({_stem(entry) for entry in entries}) < len(entries)


class SentencePairs:
    """The sentence pairs of a source, read again at every pass."""

    def __init__(
        self, source: Source, config: DataConfig, known: tuple[str, str] | None = None
    ) -> None:
        """Find the files.

        Args:
            known: `sides` of the data of a run, whose direction these are read in.
        """
        self.source = source
        self.table: TableReader | None = None
        entries = without_notes(source.entries)
        said = None if config.languages is None else direction(config.languages)
        if all(entry.suffix in TABLES for entry in entries):
            first = find_layout(entries, config.part).train[0]
            self.table, called = pair_reader(source, config, first, said, known)
            self.languages, self.sides = said or called, said if called == FIELDS else called
        else:
            self.languages = self.sides = said or _direction_of(source, entries, known)
            entries = self._find_twins(entries)
        self.turnable = self.table is said is known is None
        layout = find_layout(entries, config.part)
        self.note = layout.note
        self.own_split = layout.validation is not None
        self._parts = (layout.train, layout.validation or ())
        self.empty = 0

    def read(self) -> Iterator[tuple[bool, str, str]]:
        """(held out by the source itself, source, target); pairs empty on both sides left out."""
        self.empty = 0
        for part, entries in enumerate(self._parts):
            for entry in entries:
                for first, second, at, other in self._pairs(entry):
                    source, target = _checked(first, at), _checked(second, other)
                    if source and target:
                        yield bool(part), source, target
                    elif source or target:
                        empty, full = (other, at) if source else (at, other)
                        raise DataError(
                            f"{empty} is empty, but its partner {full} is not; fill it or remove "
                            "both"
                        )
                    else:
                        self.empty += 1

    def _find_twins(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries of the first language; notes which entry of the second belongs to each."""
        twins = [
            {_stem(e): e for e in entries if _ending(e) == language} for language in self.languages
        ]
        for stem, (language, files, other) in itertools.product(
            sorted({*twins[0], *twins[1]}), zip(self.languages, twins, reversed(twins), strict=True)
        ):
            if stem not in files:
                raise DataError(
                    f"{self.source.where(other[stem])} has no partner '{stem}.{language}' in "
                    f"'{self.source.spec}'; add it, or choose others with `data.languages`"
                )
        if not twins[0]:
            ends = ", ".join(sorted({_ending(entry) for entry in entries}))
            raise DataError(
                f"'{self.source.spec}' has no files in the languages "
                f"{' and '.join(self.languages)}; it has the endings {ends}"
            )
        self._twins = {entry.name: twins[1][stem] for stem, entry in twins[0].items()}
        return list(twins[0].values())

    def _pairs(self, entry: Entry) -> Iterator[Pair]:
        if self.table is not None:
            for row in self.table.rows(entry):
                at, other = (f"{row.at}, {row.column(side)}" for side in (0, 1))
                yield row.text(0), row.text(1), at, other
            return
        both = entry, self._twins[entry.name]
        where = [self.source.where(each) for each in both]
        lines = itertools.zip_longest(*(_lines(self.source, each) for each in both))
        for number, (source, target) in enumerate(lines, start=1):
            if source is None or target is None:
                short, long = where if source is None else where[::-1]
                raise DataError(
                    f"{short} ends after line {number - 1}, but {long} goes on: parallel files "
                    "have as many lines, each the translation of the other's"
                )
            yield source, target, f"{where[0]}, line {number}", f"{where[1]}, line {number}"


def _lines(source: Source, entry: Entry) -> Iterator[str]:
    """Lines that end at line feeds alone, without their ends."""
    return (line.rstrip("\r\n") for line in text_lines(source, entry, newline="\n"))


def _checked(text: str, where: str) -> str:
    if SEPARATOR in text:
        raise DataError(f"{where} has the character U+0000, which ends a sentence here; remove it")
    return text.strip()


def _direction_of(
    source: Source, entries: Sequence[Entry], known: tuple[str, str] | None
) -> tuple[str, str]:
    """That of a run, or the two languages that the endings show, in the order in which the source's
    name has them."""
    ends = sorted({_ending(entry) for entry in entries})
    found = f"'{source.spec}' has files that end in {', '.join(map(repr, ends[:8]))}"
    if known is not None:
        if set(known).issubset(ends):
            return known
        raise ConfigError(
            f"{found}, but the run translates '{known[0]}' to '{known[1]}'; choose the direction "
            "with `data.languages` (en-de)"
        )
    if len(ends) == 1:
        raise DataError(
            f"'{source.spec}' has one language only, '{ends[0]}'; parallel text has a second "
            "file beside each (train.en, train.de)"
        )
    if len(ends) > 2 or not ends[0]:
        raise DataError(f"{found}; choose two languages with `data.languages` (en-de)")
    first, second = ends
    if re.search(rf"(^|[^a-z]){second}[-_]{first}([^a-z]|$)", source.name.lower()):
        return second, first
    return first, second


def _ending(entry: Entry) -> str:
    return entry.suffix.removeprefix(".")


def _stem(entry: Entry) -> str:
    return entry.name[: len(entry.name) - len(entry.suffix)]


def pair_reader(
    source: Source,
    config: DataConfig,
    entry: Entry,
    languages: tuple[str, str] | None,
    known: tuple[str, str] | None = None,
) -> tuple[TableReader, tuple[str, str]]:
    """Reader of source and target, and the names of their columns.

    ``known``: what a run calls them, which outweighs the numbers of the columns that it read.
    """
    table = open_table(source, config, entry)
    names = table.lower
    first, second = (side.chosen(table, config) for side in SIDES)
    unsaid = known is not None or (first is None and second is None)
    if unsaid and (sides := _sides(table, languages, known)) is not None:
        return TableReader(source, config, table, sides), (names[sides[0]], names[sides[1]])
    if table.width == 2:
        first = first if first is not None else 0 if second is None else 1 - second
        second = second if second is not None else 1 - first
    if first is None or second is None:
        raise ConfigError(
            f"{table.where} has {table.columns}, and pairs have a source and a target; choose both "
            "with `data.source_column` and `data.target_column`"
        )
    if first == second:
        raise ConfigError(f"source and target are both {table.column(first)} of {table.where}")
    reader = TableReader(source, config, table, (first, second), FIELDS)
    return reader, (names[first], names[second]) if names else FIELDS


def _sides(
    table: Table, languages: tuple[str, str] | None, known: tuple[str, str] | None = None
) -> tuple[int, int] | None:
    """Columns of source and target, where the header names both, or two languages."""
    names = table.lower
    for pair in (known, languages, FIELDS):
        if pair is not None and all(name in names for name in pair):
            return names.index(pair[0]), names.index(pair[1])
    if known is not None and names:
        raise ConfigError(
            f"{table.where} has {table.columns}, but the run translates '{known[0]}' to "
            f"'{known[1]}'; choose both with `data.source_column` and `data.target_column`, or say "
            "`data.header=no` where the first line is a pair"
        )
    coded = [index for index, name in enumerate(names) if name in LANGUAGES]
    if languages is not None and coded:
        raise ConfigError(
            f"{table.where} has {table.columns}, but `data.languages` says "
            f"{languages[0]}-{languages[1]}: say which of them are meant, or choose both with "
            "`data.source_column` and `data.target_column`"
        )
    if languages is None and two_languages([names[index] for index in coded]):
        return coded[0], coded[1]
    return (0, 1) if languages is None and two_languages(names) else None
