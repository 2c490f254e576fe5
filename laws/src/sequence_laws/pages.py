"""The pages of a board: `board.json`, a static page without anything from outside, and Markdown."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sequence_laws.board import cause_of, read
from sequence_laws.verdict import BROKEN, write_whole

WORDS = {
    "held": "held",
    "failed": "failed",
    "failed_by_default": "failed as called by default",
    "reported": "said",
    "exempt": "exempt",
    "undecided": "undecided",
    "not_built": "not built",
}
"""of a status, on a board"""


def write_pages(folder: Path) -> dict[str, Any]:
    """Write all pages of a folder's board, which is given back."""
    board = read(folder)
    write_whole(folder / "board.json", lines(board))
    write_whole(folder / "board.md", markdown(board))
    write_whole(folder / "index.html", page(board))
    return board


def lines(board: dict[str, Any]) -> str:
    """The JSON of a board, with a model a line, so that versions of it can be compared."""
    models = ",\n".join(json.dumps(one, sort_keys=True) for one in board["models"])
    head = json.dumps({**board, "models": []}, sort_keys=True, indent=1)
    return head.replace('"models": []', f'"models": [\n{models}\n ]') + "\n"


def page(board: dict[str, Any]) -> str:
    """One file of HTML, which filters and opens what it has inside."""
    template = Path(__file__).with_name("board.html").read_text(encoding="utf-8")
    for one in board["models"]:
        for law, cell in one["cells"].items():
            if cell["status"] in BROKEN:
                cell["cause"] = cause_of(board, one, law)
    data = json.dumps({**board, "words": WORDS, "causes": []}, sort_keys=True)
    return template.replace("BOARD", data.replace("<", "\\u003c"))


def markdown(board: dict[str, Any]) -> str:
    """Counts of verdicts by library and law, then what is broken, by cause, and what was not made.

    The programs stand in the page."""
    found = ["# Board of sequence laws", ""]
    libraries: dict[str, list[dict[str, Any]]] = {}
    for one in board["models"]:
        libraries.setdefault(one["library"], []).append(one)
    for name, models in libraries.items():
        versions = ", ".join(f"{k} {v}" for k, v in sorted(models[0]["versions"].items()))
        made = sum(not one["not_built"] for one in models)
        dates = sorted({one["date"] for one in models})
        dates = dates if len(dates) == 1 else [dates[0], "to", dates[-1]]
        found.append(
            f"- {name}: {made} of {len(models)} models made; {versions}; {' '.join(dates)}"
        )
    found += ["", f"| library | law | {' | '.join(WORDS.values())} |", f"|---|---|{'--:|' * 7}"]
    for name, models in libraries.items():
        for law in board["laws"]:
            count = Counter(one["cells"][law]["status"] for one in models)
            row = " | ".join(str(count[status] or "") for status in WORDS)
            found.append(f"| {name} | {law} | {row} |")
    return "\n".join([*found, *_broken(board), *_not_made(board)]) + "\n"


def _broken(board: dict[str, Any]) -> Iterator[str]:
    """What is broken, by cause, and causes of nothing that is."""
    found: list[list[str]] = [[] for _ in board["causes"]]
    alone: list[str] = []
    for one in board["models"]:
        for law, cell in one["cells"].items():
            if cell["status"] not in BROKEN:
                continue
            by = "" if cell["status"] == "failed" else " (as called by default)"
            line = f"- {one['library']}, {one['model']}, {law}{by}: {_plain(cell['detail'])}"
            cause = cause_of(board, one, law)
            (alone if cause is None else found[board["causes"].index(cause)]).append(line)
    yield from ("", f"## Broken ({len(alone) + sum(map(len, found))})")
    for cause, failing in zip(board["causes"], found, strict=True):
        if failing:
            yield from ("", f"### {_plain(said(cause))}", "", *failing)
    if alone:
        yield from ("", "### Not looked at by anybody", "", *alone)
    if unused := [c for c, failing in zip(board["causes"], found, strict=True) if not failing]:
        yield from ("", "## Causes of what is not broken", "")
        yield from (f"- {', '.join(c['cells'])}: {_plain(c['text'])}" for c in unused)


def said(cause: dict[str, Any]) -> str:
    """A cause as a sentence."""
    parts = [cause["text"], cause.get("place", "")]
    parts += ["it holds when that is mended"] * cause.get("mended", False)
    parts += ["by design"] * cause.get("design", False)
    return "; ".join(filter(None, parts))


def _not_made(board: dict[str, Any]) -> Iterator[str]:
    absent = [one for one in board["models"] if one["not_built"]]
    yield from ("", f"## Not built ({len(absent)})", "") if absent else ()
    yield from (f"- {o['library']}, {o['model']}: {_plain(o['not_built'])}" for o in absent)


def _plain(words: str) -> str:
    """Words of which Markdown makes nothing of its own."""
    return words.replace("<", "\\<").replace("_", "\\_").replace("*", "\\*").replace("\n", " ")
