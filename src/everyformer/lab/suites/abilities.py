"""Abilities of members: skills from the recorded board (plain values, no torch).

``abilities.json`` beside this file is made of ``docs/board/mini/board.json`` by

    python -m everyformer.lab.suites.abilities docs/board/mini/board.json
"""

import sys
from importlib.resources import files
from pathlib import Path

from everyformer.system.files import write_text
from everyformer.system.plain import from_json, to_json

FILE = "abilities.json"
ABLE = 0.9
"""of the answers of a probe, from which on a member is able"""
SKILLS = ("recall", "copy", "memory", "state")

Abilities = dict[str, dict[str, tuple[int, int]]]
"""of each member, by skill: on how many probes it is able, and how many there are"""


def measured() -> Abilities:
    """The abilities on the recorded board."""
    text = files("everyformer.lab.suites").joinpath(FILE).read_text("utf-8")
    return {
        member: {skill: (able, of) for skill, (able, of) in skills.items()}
        for member, skills in from_json(text).items()
    }


def can(member: str, skill: str, known: Abilities) -> bool:
    """True if a member is able on most probes of a skill; not of one that was not measured."""
    able, of = known.get(member, {}).get(skill, (0, 1))
    return 2 * able > of


def counted(path: Path) -> Abilities:
    """The abilities on a board: the mean over seeds is `ABLE` or more."""
    from everyformer.lab.suites.board import read_board

    board = read_board(path)
    found: Abilities = {}
    for cell in board["cells"]:
        skill = board["probes"][cell["probe"]]["skill"]
        able, of = found.setdefault(cell["member"], {}).get(skill, (0, 0))
        good = cell["status"] == "done" and (cell["accuracy"] or 0.0) >= ABLE
        found[cell["member"]][skill] = able + good, of + 1
    return found


if __name__ == "__main__":
    place = Path(__file__).parent / FILE
    write_text(place, to_json(counted(Path(sys.argv[1]))) + "\n")
