"""Tables of text: CSV and TSV with a text and a label column, JSON lines with such fields."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from everyformer.core.errors import DataError
from everyformer.core.plain import from_json
from everyformer.data.sources import Entry, Source, reading

TABLES = {".csv", ".tsv", ".jsonl", ".ndjson"}
JSON_LINES = {".jsonl", ".ndjson"}
LONGEST_FIELD = 1 << 30
"""Characters in one field; Python's own limit of 131,072 is below the length of long reviews."""


def labelled_rows(source: Source, entry: Entry) -> Iterator[tuple[str, str]]:
    """(text, label) of every row of a table.

    Raises:
        DataError: a row without the two, a header without them, text that is not UTF-8.
    """
    if entry.suffix not in JSON_LINES:
        yield from _csv_rows(source, entry)
        return
    for here, row in json_rows(source, entry):
        label = row.get("label")
        if isinstance(label, bool | int):
            label = str(label)
        if not isinstance(label, str):
            raise DataError(
                f'{here}: no "label" that is text or a whole number; each line must be like '
                '{"text": "...", "label": "..."}'
            )
        yield _text_of(row, here), label


def json_texts(source: Source, entry: Entry) -> Iterator[str]:
    """The "text" of every line of a JSON-lines file, labels or not."""
    for here, row in json_rows(source, entry):
        text = _text_of(row, here)
        if "\0" in text:
            raise DataError(
                f"{here}: the text has the character U+0000, which marks the end of a document "
                "here; remove it"
            )
        yield text


def has_labels(source: Source, entry: Entry) -> bool:
    """Whether a table's rows are labelled: CSV always, JSON lines when the first line is."""
    if entry.suffix not in JSON_LINES:
        return True
    _, row = next(json_rows(source, entry), ("", {}))
    return "label" in row


def _text_of(row: dict[str, Any], here: str) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise DataError(
            f'{here}: no "text"; each line must be like {{"text": "..."}}, with a "label" beside '
            "it to classify"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{here}: half a surrogate pair ({error.reason}); mend the escapes \\ud800 to "
                "\\udfff"
            ) from error
    return text


def json_rows(source: Source, entry: Entry) -> Iterator[tuple[str, dict[str, Any]]]:
    """File and line, for messages, and object of every line of JSON lines that is not blank."""
    for number, line in enumerate(_lines(source, entry, newline=None), start=1):
        if not line.strip():
            continue
        here = f"{source.where(entry)}, line {number}"
        try:
            row = from_json(line)
        except ValueError as error:
            raise DataError(f"{here} is not JSON: {error}; write one object a line") from error
        if not isinstance(row, dict):
            raise DataError(f"{here} is not a JSON object")
        yield here, row


def _csv_rows(source: Source, entry: Entry) -> Iterator[tuple[str, str]]:
    """Rows of a CSV; without a header line that names them, text and label are the first two."""
    where = source.where(entry)
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        delimiter = "\t" if entry.suffix == ".tsv" else ","
        rows = csv.reader(_lines(source, entry, newline=""), delimiter=delimiter)
        first = next(rows, None)
        if first is None:
            raise DataError(f"{where} is empty; give rows of text and label")
        names = [name.strip().lower() for name in first]
        columns = _columns(names, where)
        if "text" not in names:
            yield first[0], first[1]
        for row in rows:
            if not row:
                continue
            if len(row) <= max(columns):
                raise DataError(
                    f"{where}, line {rows.line_num}: {len(row)} column(s), too few for text and "
                    "label; quote texts that have commas or line ends"
                )
            yield row[columns[0]], row[columns[1]].strip()
    except csv.Error as error:
        raise DataError(f"{where} is not readable as CSV: {error}") from error
    finally:
        csv.field_size_limit(before)


def _columns(names: list[str], where: str) -> tuple[int, int]:
    """Places of text and label in a first line that may be a header."""
    has = [name for name in ("text", "label") if name in names]
    if len(has) == 2:
        return names.index("text"), names.index("label")
    if has or len(names) < 2:
        raise DataError(
            f"{where} needs the columns text and label; its first line has "
            f"{', '.join(repr(name) for name in names[:8])}. Name the two columns so in a header"
        )
    return 0, 1


def _lines(source: Source, entry: Entry, newline: str | None) -> Iterator[str]:
    where = source.where(entry)
    try:
        with (
            reading(where),
            source.stream(entry) as raw,
            io.TextIOWrapper(raw, encoding="utf-8-sig", newline=newline) as lines,
        ):
            yield from lines
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text ({error.reason}); convert it first") from error
