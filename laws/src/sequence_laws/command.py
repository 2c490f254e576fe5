"""`sequence-laws`: every law, of any models, on this machine; boards of libraries."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sequence_laws.errors import ConfigError, LawsError
from sequence_laws.formats import FORMATS, line
from sequence_laws.names import SIDES, is_group
from sequence_laws.verdict import BROKEN, JUDGED, LawResult

EXAMPLES = """examples:
  sequence-laws check mymodel.py:Net hf:gpt2 --laws causality streaming
  sequence-laws check mymodel.py:Net --quick
  sequence-laws board hf:all timm:all mymodels.py:all --out runs/board
  sequence-laws board --against runs/old runs/board
"""
INTERRUPTED = 130


def main(words: Sequence[str] | None = None) -> int:
    """Check the laws; exit code 1 if one is broken, 2 if something cannot be tried."""
    words = [*(sys.argv[1:] if words is None else words)]
    if words and words[0] not in ("check", "board", "-h", "--help"):
        words.insert(0, "check")
    options = vars(parser().parse_args(words))
    do = options.pop("do")
    try:
        return int(do(**options))
    except LawsError as error:
        print(f"sequence-laws: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("sequence-laws: interrupted; a board goes on where it ended", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Words of the command."""
    made = argparse.ArgumentParser(
        "sequence-laws",
        description="Check every law of sequence models, on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = made.add_subparsers(required=True)
    one = verbs.add_parser("check", help="models: each law (the word may be left out)")
    one.set_defaults(do=check)
    one.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="file.py:factory, module:factory, hf:NAME, FILE.onnx or FILE.pt2; LIBRARY:all is all "
        "that a library has (hf, torch, x-transformers, timm, fla), or a file.py",
    )
    one.add_argument(
        "--causal",
        type=_truth,
        metavar="True|False",
        help="it claims that outputs depend on earlier inputs alone (default: as its kind does)",
    )
    one.add_argument("--vocabulary", type=_count, help="it reads token ids below this")
    one.add_argument("--width", type=_count, help="it reads features of so many channels")
    one.add_argument("--claims", help="cost that it claims: constant, linear, quadratic, a power")
    one.add_argument(
        "--masks",
        nargs="+",
        choices=(*SIDES, "none"),
        help="where padding may stand, of which it claims to take masks (default: all that its "
        "kind takes)",
    )
    depth = one.add_mutually_exclusive_group()
    for word, about in (
        ("quick", "one look of each of five laws, in two seconds for 10 million parameters"),
        (
            "deep",
            "also what takes minutes: the real compiler and exports, flex attention, the model in "
            "other processes, longer texts",
        ),
    ):
        depth.add_argument(
            f"--{word}", dest="depth", action="store_const", const=word, default="usual", help=about
        )
    one.add_argument("--trust", action="store_true", help="run code that a folder of hf: brings")
    one.add_argument("--format", choices=FORMATS, default="text", help="of what is printed")
    one.add_argument("--junit", help="file for the verdicts as JUnit XML, too")
    many = verbs.add_parser("board", help="libraries: all laws of all models, and their pages")
    many.set_defaults(do=board)
    many.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="hf:all, torch:all, x-transformers:all, timm:all, fla:all, file.py:all; with "
        "--against, the folder of another board; none: write the pages of --out again",
    )
    many.add_argument(
        "--against", metavar="OLD", help="folder of a board, or its board.json, to compare with"
    )
    for verb, folder in (one, "runs/laws"), (many, "runs/board"):
        verb.add_argument("--laws", nargs="+", default=(), help="laws to check (default: all)")
        verb.add_argument("--out", default=folder, help="of many: folder, which it resumes")
        verb.add_argument("--seconds", type=float, default=300.0, help="of many: limit of a model")
        verb.add_argument("--jobs", type=_count, default=2, help="of many: processes at a time")
        verb.add_argument("--json", action="store_true", help="machine output")
    return made


def check(*, json: bool, format: str, junit: str | None, **options: Any) -> int:
    """`sequence-laws check`."""
    results = []
    for result in verdicts(**options):
        results.append(result)
        print(line(result), file=sys.stderr)
    if junit is not None:
        from sequence_laws.junit import write_junit

        write_junit(results, Path(junit))
    print(FORMATS["json" if json else format](results))
    found = {result.status for result in results}
    if found.isdisjoint(JUDGED) and "undecided" in found:
        raise ConfigError("nothing was judged: what is undecided says what is missing")
    return 1 if any(r.status in BROKEN for r in results) else 0


def board(
    targets: Sequence[str], against: str | None, out: str, laws: Sequence[str], **how: Any
) -> int:
    """`sequence-laws board`: judge libraries, compare with another board, or both."""
    from sequence_laws.against import compare
    from sequence_laws.board import read, run
    from sequence_laws.judging import known_laws
    from sequence_laws.pages import write_pages

    machine, folder = how.pop("json"), Path(out).expanduser()
    before = None if against is None else Path(against).expanduser()
    old = None if before is None else read(before)
    if old is not None and len(targets) == 1 and Path(targets[0]).expanduser().exists():
        new = read(Path(targets[0]).expanduser())
    else:
        for result in run(targets, folder, known_laws(laws), before=before, **how):
            print(line(result), file=sys.stderr)
        new = write_pages(folder)
        print(folder / "index.html", file=sys.stderr)
    if old is None:
        return 0
    changes = compare(old, new)
    print(json.dumps(dataclasses.asdict(changes)) if machine else changes)
    return 1 if changes.red else 0


def verdicts(
    targets: Sequence[str],
    laws: Sequence[str] = (),
    *,
    causal: bool | None = None,
    vocabulary: int | None = None,
    width: int | None = None,
    claims: str | None = None,
    masks: Sequence[str] | None = None,
    depth: Any = "usual",
    trust: bool = False,
    out: str = "runs/laws",
    seconds: float = 300.0,
    jobs: int = 2,
) -> Iterator[LawResult]:
    """Each verdict as it is known; the words are those of the command."""
    from sequence_laws.judging import judge, known_claim, laws_of
    from sequence_laws.targets import target

    laws = laws_of(depth, laws)
    claim = known_claim(claims, laws)
    reads: dict[str, Any] = {
        "vocabulary": vocabulary,
        "width": width,
        "causal": causal,
        "masks": masks,
    }
    groups = [name for name in targets if is_group(name)]
    if groups and (depth != "usual" or any(v is not None for v in (*reads.values(), claims))):
        raise ConfigError(
            f"--causal, --vocabulary, --width, --masks, --claims, --quick and --deep are of one "
            f"model, not of {groups[0]}: leave them out"
        )
    for name in targets:
        if name in groups:
            from sequence_laws.board import run
            from sequence_laws.pages import write_pages

            folder = Path(os.path.expanduser(out))
            yield from run([name], folder, laws, seconds=seconds, jobs=jobs)
            write_pages(folder)
        else:
            subject = target(name, trust=trust, **reads)
            subject.depth = depth
            yield from judge(subject, laws, claim)


def _truth(word: str) -> bool:
    return {"true": True, "false": False}[word.lower()]


def _count(word: str) -> int:
    if int(word) < 1:
        raise ValueError(word)
    return int(word)


_truth.__name__, _count.__name__ = "True or False", "whole number above 0"
