"""The boards in docs/board: each failure was looked at, and pages say what the data does."""

import re
from pathlib import Path

import pytest

from everyformer.lab.suites import abilities
from everyformer.lab.suites.board import as_csv, cell_of, read_board, verdicts
from everyformer.lab.suites.page import write_text_page
from everyformer.lab.suites.presets import GUESTS
from sequence_laws.board import cause_of, read
from sequence_laws.pages import lines, markdown
from sequence_laws.verdict import BROKEN

BOARDS = Path(__file__).parents[1] / "docs" / "board"
LINES = [line.split("|") for line in (BOARDS.parents[1] / "boards.txt").read_text().splitlines()]
PROBED = sorted(file.parent for file in BOARDS.glob("mini*/board.json"))
PRINTED = sorted(file.parent for file in BOARDS.glob("paper-*/board.json"))
RECORDED = {line[0].strip(): line[3].split() for line in LINES if len(line) == 4}


@pytest.mark.parametrize(
    "name",
    sorted(
        {file.parent.name for file in BOARDS.glob("*/board.json")}
        - {folder.name for folder in PROBED + PRINTED}
    ),
)
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


def test_what_is_said_of_the_board_of_probes_is_what_it_holds(tmp_path: Path) -> None:
    board, *others = (read_board(folder / "board.json") for folder in PROBED)
    write_text_page(board, tmp_path, others)
    assert (PROBED[0] / "board.md").read_text() == (tmp_path / "board.md").read_text()
    assert (PROBED[0] / "board.csv").read_bytes().decode() == as_csv(board)
    assert abilities.measured() == abilities.counted(PROBED[0] / "board.json")
    chosen = " ".join((BOARDS.parent / "choose.md").read_text().split())
    said = re.findall(r"\(([a-z0-9:-]+): ([^()]*%)\)", chosen)
    assert {probe for probe, _ in said} == {*board["probes"]}
    for probe, cells in said:
        for member, value in (cell.rsplit(" ", 1) for cell in cells.split(", ")):
            cell = cell_of(board, probe, GUESTS.get(member, member))
            assert value == f"{cell['accuracy']:.1%}", (probe, member)


@pytest.mark.parametrize("folder", PRINTED, ids=lambda folder: folder.name)
def test_what_is_said_of_numbers_that_papers_printed_is_what_the_boards_hold(
    folder: Path, tmp_path: Path
) -> None:
    board = read_board(folder / "board.json")
    write_text_page(board, tmp_path)
    assert (folder / "board.md").read_text() == (tmp_path / "board.md").read_text()
    said = " ".join((BOARDS / "README.md").read_text().split())
    assert board["command"] in said
    for sentence in verdicts(board):
        assert sentence in said
