"""Verdicts as text, JSON, JUnit XML, or annotations of GitHub."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence

from sequence_laws.junit import junit
from sequence_laws.verdict import BROKEN, SIGNS, LawResult

WORDS = {"failed": "FAILED", "failed_by_default": "FAILED AS CALLED BY DEFAULT"}
"""of a status, before what was found"""


def line(one: LawResult) -> str:
    """A verdict as a line, while others are tried."""
    return f"{one.member:<12} {one.law:<13} {one.status:<7} {one.detail}"


def as_text(results: Sequence[LawResult]) -> str:
    """A table of verdicts, then in words all that do not hold, and how many there are of each."""
    laws = list(dict.fromkeys(one.law for one in results))
    marks = {(one.member, one.law): SIGNS[one.status] for one in results}
    members = list(dict.fromkeys(one.member for one in results))
    rows = [["member", *laws], *([m, *(marks.get((m, law), "") for law in laws)] for m in members)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    for status, mark in SIGNS.items():
        for one in results:
            if one.status == status != "held":
                word = WORDS.get(status, mark)
                lines.append(f"{word} {one.member}, {one.law}: {one.detail}")
                lines += ["", one.reproduction, ""] if one.reproduction else []
    count = {status: sum(one.status == status for one in results) for status in SIGNS}
    lines.append(
        f"{count['held']} held, {count['failed']} failed, {count['exempt']} do not apply"
        + (f", {by} failed as called by default" if (by := count["failed_by_default"]) else "")
        + (f", {count['undecided']} not judged" if count["undecided"] else "")
        + (f", {count['reported']} reported" if count["reported"] else "")
    )
    return "\n".join(lines)


def as_json(results: Sequence[LawResult]) -> str:
    """A list of verdicts."""
    return json.dumps([dataclasses.asdict(one) for one in results])


def as_github(results: Sequence[LawResult]) -> str:
    """An error where the class of a model that breaks a law is defined, with its program, which
    GitHub shows beside the line; then the text."""
    lines = []
    for one in results:
        if one.status in BROKEN:
            file, _, number = one.place.rpartition(", line ")
            where = f"file={_escaped(os.path.relpath(file))},line={number}," if file else ""
            message = _escaped("\n\n".join(filter(None, (one.detail, one.reproduction))))
            title = _escaped(f"{one.member} breaks {one.law}")
            lines.append(f"::error {where}title={title}::{message}")
    return "\n".join([*lines, as_text(results)])


def _escaped(text: str) -> str:
    for letter in "%\r\n:,":
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


FORMATS: dict[str, Callable[[Sequence[LawResult]], str]] = {
    "text": as_text,
    "github": as_github,
    "json": as_json,
    "junit": junit,
}
