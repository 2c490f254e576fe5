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
from everyformer.data.headers import FIELDS
from everyformer.data.layout import find_layout, without_notes
from everyformer.data.sources import Entry, Source, text_lines
from everyformer.data.table import TABLES
from everyformer.data.tables import TableReader, pair_reader
from everyformer.data.tokenizers.base import SEPARATOR

Pair = tuple[str, str, str, str]
"""source, target, and file and line of either"""


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
        given = None if config.languages is None else direction(config.languages)
        if all(entry.suffix in TABLES for entry in entries):
            first = find_layout(entries, config.part).train[0]
            self.table, called = pair_reader(source, config, first, given, known)
            self.languages, self.sides = given or called, given if called == FIELDS else called
        else:
            self.languages = self.sides = given or _direction_of(source, entries, known)
            entries = self._find_twins(entries)
        self.turnable = self.table is given is known is None
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
