"""The page and the printed table of a board.

    python -m everyformer.lab.suites.page docs/board/mini docs/board/mini-again docs/board/mini-10x

writes both of the board.json in the first folder, with what others say of it: how often the same
members are told apart by other seeds, and what it foretells of longer trainings.
"""

import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from everyformer.core.wording import join_names
from everyformer.lab.report.comparison import rendered
from everyformer.lab.suites.board import Board, Cell, cell_of, foretold, read_board, twins, verdicts
from everyformer.lab.suites.presets import BOARD, shown
from everyformer.system.console import table
from everyformer.system.files import write_text

BASE = "attention"
"""the member that profiles are held against, where it is there"""


def write_page(board: Board, folder: Path, others: Sequence[Board] = ()) -> None:
    """Write ``index.html``, which loads nothing."""
    package = files("everyformer.lab.report")
    css, js = (Markup((package / f"page.{kind}").read_text("utf-8")) for kind in ("css", "js"))
    probes = board["probes"]
    values = {
        "title": f"{board['preset']}, {len(board['members'])} members, {len(probes)} probes",
        "style": css,
        "script": js,
        "answer": answer(board),
        "probes": list(probes),
        "rows": [_row(board, member) for member in board["members"]],
        "levels": {name: f"{column['shortcut']:.0%}" for name, column in probes.items()},
        "smallest": {name: _points(column["smallest"]) for name, column in probes.items()},
        "columns": list(probes.items()),
        "notes": [*verdicts(board), *notes(board, others), *OF_PAGE],
        "base": BASE if BASE in board["members"] else "nothing else",
        "command": board["command"],
        "machine": _machine(board),
    }
    write_text(folder / "index.html", rendered("board.html", "everyformer.lab.suites", **values))


GUEST = "a guest, no member of the family"
NOTES = [
    "Letters: members of a column with one in common are not told apart by tests that are "
    "corrected for all pairs of the column.",
    "~ (grey): not surely better than the shortcut, the best cheap rule that is known; *: a later "
    "token can change what is predicted before it (the member's page says how).",
    "cannot: the member is not made for it; failed: a training did not end. Neither is a 0.",
]
OF_PAGE = [
    "Small print: the 95% interval over seeds. The last line is the smallest difference that would "
    "have told two members of common spread apart; -: with so few seeds none, so that only those "
    "are whose seeds agree.",
    "A click on a heading sorts; a member's name leads to its profile.",
]


def notes(board: Board, others: Sequence[Board]) -> list[str]:
    """How a board is read, and what ``others`` of the same probes say of it, by other seeds or of
    longer trainings."""
    return NOTES + [
        _again(board, other) if other["times"] == board["times"] else _longer(board, other)
        for other in others
    ]


def write_text_page(board: Board, folder: Path, others: Sequence[Board] = ()) -> None:
    """Write ``board.md``: the table and how it is read."""
    each = "\n".join(f"- {note}" for note in notes(board, others))
    parts = ["# A board of probes", _machine(board), f"```text\n{render(board)}\n```", each]
    parts.append(f"`{board['command']}` repeats it.")
    write_text(folder / "board.md", "\n\n".join(parts) + "\n")


def _again(board: Board, again: Board) -> str:
    told = twins(board, again)
    alone, among = (sum(which) for which in zip(*told, strict=True))
    return (
        f"The same by other seeds, {len(again['members'])} members on {len(again['probes'])} "
        f"probes: of {len(told)} twins {among} ({among / len(told):.1%}) are told apart by the "
        f"tests of this board, {alone} ({alone / len(told):.1%}) by a test of the two alone."
    )


def _longer(board: Board, longer: Board) -> str:
    each = [
        f"{probe} {'-' if rho is None else format(rho, '.2f')}"
        for probe, rho in foretold(board, longer).items()
    ]
    return (
        f"Rank correlation with {longer['times'] / board['times']:g} times the steps, of "
        f"{len(longer['members'])} members: {join_names(each)}. Below 0.5 the order here says "
        "little of a longer training."
    )


def render(board: Board) -> str:
    """The board for a terminal."""
    rows = []
    for member in board["members"]:
        cells = [cell_of(board, probe, member) for probe in board["probes"]]
        rows.append(
            [shown(member), *(f"{_text(cell)} {cell['letters']}".strip() for cell in cells)]
        )
    levels = [f"{column['shortcut']:.1%}" for column in board["probes"].values()]
    text = table(["member", *board["probes"]], [*rows, ["shortcut", *levels]])
    return "\n".join([text, "", answer(board), *verdicts(board)])


def answer(board: Board) -> str:
    """The groups that the tests support, in a sentence."""
    by_probe = {
        probe: [cell for cell in board["cells"] if cell["probe"] == probe]
        for probe in board["probes"]
    }
    parted = [
        probe
        for probe, cells in by_probe.items()
        if len({*"".join(cell["letters"] for cell in cells)}) > 1
    ]
    unlearned = [
        probe
        for probe, cells in by_probe.items()
        if not any(cell["status"] == "done" for cell in cells)
    ]
    none = NOT_APART if len(board["members"]) > 1 else "One member alone"
    first = f"Members are told apart by {join_names(parted)}" if parted else none
    rest = f"; not learned by any: {join_names(unlearned)}" if unlearned else ""
    return f"{first}{rest}."


NOT_APART = "No two members are told apart"


def _row(board: Board, member: str) -> dict[str, Any]:
    return {
        "member": shown(member),
        "anchor": "of-" + "".join(c if c.isalnum() else "-" for c in member),
        "about": BOARD.get(member.partition("@")[0], GUEST if ":" in member else "a member"),
        "cells": [_cell(board, probe, member) for probe in board["probes"]],
    }


def _cell(board: Board, probe: str, member: str) -> dict[str, Any]:
    cell, level = cell_of(board, probe, member), board["probes"][probe]["shortcut"]
    base = cell_of(board, probe, BASE) if BASE in board["members"] else None
    value, around = cell["accuracy"], cell["interval"]
    above = 0.0 if value is None else max(0.0, (value - level) / max(1 - level, 1e-9))
    return {
        "probe": probe,
        "kind": {"done": "", "floor": "floor"}.get(cell["status"], "none"),
        "number": value,
        "share": round(45 * above * (cell["status"] == "done")),
        "text": _text(cell),
        "below": f"{_span(around)} {cell['letters']}" if around else cell["letters"],
        "words": words_of(board, cell),
        "at": 100 * (value or 0.0),
        "range": around and (100 * around[0], 100 * (around[1] - around[0])),
        "level": 100 * level,
        "base": None if base is None or base["accuracy"] is None else 100 * base["accuracy"],
        "tried": _tried(cell),
    }


def _text(cell: Cell) -> str:
    value = cell["accuracy"]
    if value is None:
        return cell["status"]
    return f"{value:.1%}" + {"leaks": "*", "floor": "~"}.get(cell["status"], "")


def words_of(board: Board, cell: Cell) -> str:
    """A cell in a sentence without a full stop, from intervals alone."""
    level = board["probes"][cell["probe"]]["shortcut"]
    base = cell_of(board, cell["probe"], BASE) if BASE in board["members"] else None
    if cell["accuracy"] is None or cell["status"] == "leaks":
        return f"{cell['status']}: {cell['error']}"
    if cell["status"] == "floor":
        each = join_names([f"{value:.0%}" for value in cell["values"]])
        return f"not surely better than the shortcut ({level:.0%}): {each}"
    if base is None or base["accuracy"] is None or base["member"] == cell["member"]:
        return "better than the shortcut"
    if not cell["letters"] or {*cell["letters"]} & {*base["letters"]}:
        return f"not told apart from {base['member']}"
    than = "better" if cell["accuracy"] > base["accuracy"] else "worse"
    return f"{than} than {base['member']}"


def _tried(cell: Cell) -> str:
    each = (
        f"{'[' * chosen}{one['lr']:g}{']' * chosen}: "
        + ("failed" if one["loss"] is None else f"{one['loss']:.3f}")
        for one in cell["tried"]
        for chosen in [one["lr"] == cell["lr"]]
    )
    return ", ".join(each)


def _span(around: list[float]) -> str:
    return f"{100 * around[0]:.0f}–{100 * around[1]:.0f}"


def _points(value: float | None) -> str:
    return "-" if value is None or value > 1 else f"{100 * value:.1f} points"


def _machine(board: Board) -> str:
    known = board["environment"]
    return (
        f"{board['hours']:.2f} hours of training in all, {board['seeds']} seeds, on "
        f"{known.get('platform', 'an unknown machine')}, torch "
        f"{known.get('packages', {}).get('torch', '?')}, steps x {board['times']:g}."
    )


if __name__ == "__main__":
    found, *others = (read_board(Path(word) / "board.json") for word in sys.argv[1:])
    write_page(found, Path(sys.argv[1]), others)
    write_text_page(found, Path(sys.argv[1]), others)
