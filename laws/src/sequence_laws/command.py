"""`sequence-laws TARGET...`: every law, of any models, on this machine."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sequence_laws.errors import LawsError
from sequence_laws.names import GROUPS
from sequence_laws.verdict import BROKEN, SIGNS, LawResult

EXAMPLES = """examples:
  sequence-laws mymodel.py:Net hf:gpt2 --laws causality streaming
  sequence-laws hf:all --out runs/laws
"""


def main(words: Sequence[str] | None = None) -> int:
    """Check the laws; exit code 1 if one is broken, 2 if something cannot be tried."""
    options = parser().parse_args(words)
    results = []
    try:
        for result in verdicts(**{k: v for k, v in vars(options).items() if k not in WRITTEN}):
            results.append(result)
            print(line(result), file=sys.stderr)
        if options.junit is not None:
            from sequence_laws.junit import write_junit

            write_junit(results, Path(options.junit))
    except LawsError as error:
        print(f"sequence-laws: {error}", file=sys.stderr)
        return error.exit_code
    print(
        json.dumps([dataclasses.asdict(r) for r in results]) if options.json else as_text(results)
    )
    return 1 if any(r.status in BROKEN for r in results) else 0


WORDS = {"failed": "FAILED", "failed_by_default": "FAILED AS CALLED BY DEFAULT"}
"""of a status, before what was found"""
WRITTEN = ("json", "junit")
"""options of what is written"""


def parser() -> argparse.ArgumentParser:
    """Words of the command."""
    made = argparse.ArgumentParser(
        "sequence-laws",
        description="Check every law of sequence models, on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="file.py:factory, module:factory, hf:NAME, FILE.onnx or FILE.pt2; hf:all, hf:causal "
        "and hf:encoders are all that transformers has",
    )
    made.add_argument("--laws", nargs="+", default=(), help="laws to check (default: all)")
    made.add_argument(
        "--causal",
        type=_truth,
        metavar="True|False",
        help="it claims that outputs depend on earlier inputs alone (default: as its kind does)",
    )
    made.add_argument("--vocabulary", type=_count, help="it reads token ids below this")
    made.add_argument("--width", type=_count, help="it reads features of so many channels")
    made.add_argument("--claims", help="cost that it claims: constant, linear, quadratic, a power")
    made.add_argument("--out", default="runs/laws", help="of hf:all: folder, which it resumes")
    made.add_argument("--seconds", type=float, default=300.0, help="of hf:all: limit of a model")
    made.add_argument("--jobs", type=_count, default=2, help="of hf:all: processes at a time")
    made.add_argument("--json", action="store_true", help="machine output")
    made.add_argument("--junit", help="file for the verdicts as JUnit XML")
    return made


def verdicts(
    targets: Sequence[str],
    laws: Sequence[str] = (),
    *,
    causal: bool | None = None,
    vocabulary: int | None = None,
    width: int | None = None,
    claims: str | None = None,
    out: str = "runs/laws",
    seconds: float = 300.0,
    jobs: int = 2,
) -> Iterator[LawResult]:
    """Each verdict as it is known; the words are those of the command."""
    from sequence_laws.judging import judge, known_claim, known_laws
    from sequence_laws.sweep import classes, sweep
    from sequence_laws.targets import target

    laws = known_laws(laws)
    claim = known_claim(claims, laws)
    reads: dict[str, Any] = {"vocabulary": vocabulary, "width": width, "causal": causal}
    for name in targets:
        if name in GROUPS:
            folder = Path(out).expanduser()
            yield from sweep(classes(name), folder, laws, seconds=seconds, jobs=jobs)
        else:
            yield from judge(target(name, **reads), laws, claim)


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


def _truth(word: str) -> bool:
    return {"true": True, "false": False}[word.lower()]


def _count(word: str) -> int:
    if int(word) < 1:
        raise ValueError(word)
    return int(word)


_truth.__name__, _count.__name__ = "True or False", "whole number above 0"
