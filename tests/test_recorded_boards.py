"""The boards in docs/board: each failure was looked at, and pages say what the data does."""

from pathlib import Path

import pytest

from sequence_laws.board import cause_of, read
from sequence_laws.pages import lines, markdown
from sequence_laws.verdict import BROKEN

BOARDS = Path(__file__).parents[1] / "docs" / "board"
LINES = [line.split("|") for line in (BOARDS.parents[1] / "boards.txt").read_text().splitlines()]
RECORDED = {line[0].strip(): line[3].split() for line in LINES if len(line) == 4}


@pytest.mark.parametrize("name", sorted(file.parent.name for file in BOARDS.glob("*/board.json")))
def test_each_failure_of_a_recorded_board_has_a_cause(name: str) -> None:
    board = read(BOARDS / name)
    assert board["models"]
    unknown = [
        (one["library"], one["model"], law)
        for one in board["models"]
        for law, cell in one["cells"].items()
        if cell["status"] in BROKEN and cause_of(board, one, law) is None
    ]
    assert not unknown
    assert (BOARDS / name / "board.json").read_text() == lines(board)
    assert (BOARDS / name / "board.md").read_text() == markdown(board)
    for machine in ("sys.path.insert(0, '/", "-packages/", " at 0x"):
        assert machine not in lines(board), "of one machine"
    # versions are those that `make board` installs
    pins = dict(pin.split("==") for pin in RECORDED[name] if "==" in pin)
    for one in board["models"]:
        for package, version in one["versions"].items():
            assert pins.get(package, version) == version, one["model"]
