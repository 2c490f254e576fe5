"""Parallel text: which files hold it, in which direction, and its pairs one after the other.

Two files of equal name but for the language's ending (train.en, train.de), any number of such twins
in a folder or zip; two files given one by one; a TSV of two columns; JSON lines with two fields.
Lines end at \\n alone (other line separators of Unicode are text), white space around is dropped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig, direction
from everyformer.data.layout import find_layout, without_notes
from everyformer.data.records import JSON_LINES, json_rows
from everyformer.data.sources import Entry, Source, open_source, reading
from everyformer.data.tokenizers.base import SEPARATOR

PAIR_TABLES = {".tsv", *JSON_LINES}
FIELDS = ("source", "target")
"""What columns and fields are called where no languages name them."""
_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da "
    "de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy "
    "hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg "
    "li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or "
    "os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta "
    "te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu"
)
LANGUAGES = frozenset(_CODES.split())
"""ISO 639-1: the endings by which files show by themselves that they are parallel text."""

Pair = tuple[str, str, str, str]
"""source, target, and file and line of either"""


def holds_parallel(source: Source, config: DataConfig) -> bool:
    """Whether a source is parallel text by its options or by itself.

    By itself: tables whose first line names both sides, or files that all end in languages, with
    two languages at least for one name.
    """
    if config.target is not None or config.languages is not None:
        return True
    entries = without_notes(source.entries)
    if all(entry.suffix in PAIR_TABLES for entry in entries):
        return all(_sides(source, entry) is not None for entry in entries)
    if any(_ending(entry) not in LANGUAGES for entry in entries):
        return False
    return len({_stem(entry) for entry in entries}) < len(entries)


class SentencePairs:
    """The sentence pairs of a source, read anew at every pass."""

    def __init__(self, source: Source, config: DataConfig) -> None:
        """Find the files.

        Raises:
            DataError: a file without partner, one language only, several and none chosen.
        """
        self.source = source
        self.turnable = False
        self._twins: dict[str, Entry] = {}
        entries = without_notes(source.entries)
        given = None if config.languages is None else direction(config.languages)
        if config.target is not None:
            if given is not None:
                raise ConfigError(
                    "'data.target' and 'data.languages' are both given, but two files are "
                    "translated from the source to the target: leave 'data.languages' out"
                )
            first, second = _two_files(source, config.target)
            endings = _ending(first), _ending(second)
            self.languages = FIELDS if "" in endings or len(set(endings)) == 1 else endings
            self._twins[first.name] = second
            entries = [first]
        elif all(entry.suffix in PAIR_TABLES for entry in entries):
            self.languages = given or _sides(source, entries[0]) or FIELDS
        else:
            self.languages = given or _direction_of(source, entries)
            self.turnable = given is None
            entries = self._find_twins(entries)
        layout = find_layout(entries, config.part)
        self.note = layout.note
        self.own_split = layout.validation is not None
        self._parts = (layout.train, layout.validation or ())
        self.empty = 0

    def stamp(self) -> str:
        """Hash of the files' paths, sizes and times of change."""
        entries = {entry.name: entry for entry in self.source.entries}
        apart = [twin for twin in self._twins.values() if entries.get(twin.name) is not twin]
        return digest(self.source.stamp(), Source(self.source.given, apart).stamp())

    def read(self) -> Iterator[tuple[bool, str, str]]:
        """(held out by the source itself, source, target); pairs empty on both sides left out.

        Raises:
            DataError: one side is empty or missing, not UTF-8, has NUL characters; with its line.
        """
        self.empty = 0
        for part, entries in enumerate(self._parts):
            for entry in entries:
                for first, second, here, there in self._pairs(entry):
                    source, target = _checked(first, here), _checked(second, there)
                    if source and target:
                        yield bool(part), source, target
                    elif source or target:
                        empty, full = (there, here) if source else (here, there)
                        raise DataError(
                            f"{empty} is empty, but its partner {full} is not; fill it or remove "
                            "both"
                        )
                    else:
                        self.empty += 1

    def _find_twins(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries of the first language; notes which entry of the second belongs to each."""
        found = [
            {_stem(e): e for e in entries if _ending(e) == language} for language in self.languages
        ]
        for stem, (language, own, other) in itertools.product(
            sorted({*found[0], *found[1]}), zip(self.languages, found, reversed(found), strict=True)
        ):
            if stem not in own:
                raise DataError(
                    f"{self.source.where(other[stem])} has no partner '{stem}.{language}' in "
                    f"'{self.source.given}'; add it, or choose others with --data.languages"
                )
        if not found[0]:
            endings = ", ".join(sorted({_ending(entry) for entry in entries}))
            raise DataError(
                f"'{self.source.given}' has no files in the languages "
                f"{' and '.join(self.languages)}; it has the endings {endings}"
            )
        self._twins = {entry.name: found[1][stem] for stem, entry in found[0].items()}
        return list(found[0].values())

    def _pairs(self, entry: Entry) -> Iterator[Pair]:
        if entry.name in self._twins:
            return self._of_files(entry, self._twins[entry.name])
        return self._of_json(entry) if entry.suffix in JSON_LINES else self._of_table(entry)

    def _of_files(self, first: Entry, second: Entry) -> Iterator[Pair]:
        where = self.source.where(first), self.source.where(second)
        lines = itertools.zip_longest(_lines(self.source, first), _lines(self.source, second))
        for number, (source, target) in enumerate(lines, start=1):
            if source is None or target is None:
                short, long = where if source is None else where[::-1]
                raise DataError(
                    f"{short} ends after line {number - 1}, but {long} goes on: parallel files "
                    "have as many lines, each the translation of the other's"
                )
            yield source, target, f"{where[0]}, line {number}", f"{where[1]}, line {number}"

    def _of_json(self, entry: Entry) -> Iterator[Pair]:
        for here, row in json_rows(self.source, entry):
            fields = _fields(row)
            names = next((n for n in (self.languages, FIELDS) if n[0] in fields), FIELDS)
            first, second = (fields.get(name) for name in names)
            if not (isinstance(first, str) and isinstance(second, str)):
                raise DataError(
                    f'{here}: no two texts; each line must be like {{"source": "...", "target": '
                    '"..."}, or {"en": "...", "de": "..."} with --data.languages en-de'
                )
            yield first, second, f"{here}: '{names[0]}'", f"{here}: '{names[1]}'"

    def _of_table(self, entry: Entry) -> Iterator[Pair]:
        """Columns by name where the first line names them, else two columns; quotes are text."""
        columns: tuple[int, int] | None = None
        for number, line in enumerate(_lines(self.source, entry), start=1):
            cells = line.split("\t")
            here = f"{self.source.where(entry)}, line {number}"
            if number == 1:
                columns = _columns([cell.strip().lower() for cell in cells], self.languages)
                if columns is not None:
                    continue
            if len(cells) != 2 if columns is None else len(cells) <= max(columns):
                raise DataError(
                    f"{here} has {len(cells)} column(s) between tabs; a line must have two, or the "
                    "first line must name the columns source and target (or as in --data.languages)"
                )
            a, b = columns or (0, 1)
            yield cells[a], cells[b], f"{here}, column {a + 1}", f"{here}, column {b + 1}"


def _lines(source: Source, entry: Entry) -> Iterator[str]:
    where = source.where(entry)
    with reading(where), source.stream(entry) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{where}, line {number} is not UTF-8 text ({error.reason}); convert it "
                    "(iconv -f LATIN1 -t UTF-8)"
                ) from error
            yield line.rstrip("\r\n")


def _checked(text: str, where: str) -> str:
    if SEPARATOR in text:
        raise DataError(f"{where} has the character U+0000, which ends a sentence here; remove it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} has half a surrogate pair; mend the escapes \\ud800 to \\udfff"
        ) from error
    return text.strip()


def _two_files(source: Source, given: str) -> tuple[Entry, Entry]:
    with open_source(given) as other:
        files = source.plain_file, other.plain_file
        if None in files or any(e.suffix in PAIR_TABLES for e in (*source.entries, *other.entries)):
            raise ConfigError(
                f"'data.target' goes with two plain files of text, not with '{source.given}' and "
                f"'{given}'; a folder, zip or table holds both languages by itself"
            )
        if files[0] == files[1]:
            raise ConfigError(f"'data.source' and 'data.target' are the same file '{given}'")
        return source.entries[0], other.entries[0]


def _direction_of(source: Source, entries: Sequence[Entry]) -> tuple[str, str]:
    """The two languages that the endings show, in the order in which the source's name has them."""
    found = sorted({_ending(entry) for entry in entries})
    if len(found) == 1:
        raise DataError(
            f"'{source.given}' has one language only, '{found[0]}'; parallel text has a second "
            "file beside each (train.en, train.de), or give it with --data.target"
        )
    if len(found) > 2 or not found[0]:
        raise DataError(
            f"'{source.given}' has files that end in {', '.join(map(repr, found[:8]))}; choose two "
            "languages with --data.languages (en-de)"
        )
    first, second = found
    if re.search(rf"(^|[^a-z]){second}[-_]{first}([^a-z]|$)", source.name.lower()):
        return second, first
    return first, second


def _sides(source: Source, entry: Entry) -> tuple[str, str] | None:
    """What the first line of a table calls its sides: source and target, or two languages."""
    if entry.suffix in JSON_LINES:
        _, row = next(json_rows(source, entry), ("", {}))
        names = list(_fields(row))
    else:
        names = [cell.strip().lower() for cell in next(_lines(source, entry), "").split("\t")]
    if all(name in names for name in FIELDS):
        return FIELDS
    if len(names) == len(set(names)) == 2 and LANGUAGES.issuperset(names):
        return names[0], names[1]
    return None


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a JSON line, which some keep one level down."""
    inner = row.get("translation")
    return inner if isinstance(inner, dict) else row


def _columns(names: Sequence[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """Places of both sides in a first line that names them; None where it does not."""
    for wanted in (languages, FIELDS):
        if all(name in names for name in wanted):
            return names.index(wanted[0]), names.index(wanted[1])
    return None


def _ending(entry: Entry) -> str:
    return entry.suffix.removeprefix(".")


def _stem(entry: Entry) -> str:
    return entry.name[: len(entry.name) - len(entry.suffix)]
