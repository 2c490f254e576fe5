"""The sentences of a report follow from the numbers."""

from __future__ import annotations

import pytest
from report_results import made_up

from everyformer.cli.compare import render
from everyformer.core.memory import size
from everyformer.report.words import answer, brief, listed, notes, question


def test_distinct_intervals_name_a_winner() -> None:
    text = answer(made_up(qualities=(2.0, 2.5)))
    assert "attention is best with 2.000 bits per byte" in text
    assert "no 95% interval overlaps" in text
    assert "gmlp trains fastest" in text


def test_overlapping_intervals_leave_it_open() -> None:
    results = made_up(qualities=(2.0, 2.15))
    assert "overlaps with that of gmlp" in answer(results)
    assert "not settled" in answer(results)
    assert any("attention and gmlp" in note for note in notes(results))


def test_touching_intervals_overlap() -> None:
    assert "not settled" in answer(made_up(qualities=(2.0, 2.5), half=0.25))


def test_accuracy_ranks_high_first() -> None:
    text = answer(made_up(metric="accuracy", qualities=(0.5, 0.9), half=0.01))
    assert "gmlp is best with 90.0% of the validation set right" in text


def test_one_seed_is_said() -> None:
    assert any("One seed only" in note for note in notes(made_up()))
    assert any("over 3 seeds" in note for note in notes(made_up(seeds=3)))


def test_unequal_sizes_are_said() -> None:
    assert any("gmlp 1.30" in note for note in notes(made_up()))


def test_a_member_that_still_learns_is_said() -> None:
    assert any("gmlp still improved" in note for note in notes(made_up(half=0.01)))
    assert not any("still improved" in note for note in notes(made_up(half=10)))


def test_nothing_finished() -> None:
    results = made_up((), qualities=(), failed={"gmlp": "no memory"})
    assert "No member could be trained" in answer(results)
    assert notes(results) == []


def test_the_question_names_what_was_equal() -> None:
    assert question(made_up()) == (
        "Which of attention or gmlp predicts stdlib best, given the same data, equal width and "
        "60 seconds of training each?"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(None, "-"), (12, "12 B"), (2048, "2.0 KiB"), (3 * 2**30, "3.0 GiB")]
)
def test_size(number: int | None, text: str) -> None:
    assert size(number) == text


def test_listed() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_brief() -> None:
    assert [brief(n) for n in (0.12345, 15.94, 187.2, 1234.5)] == ["0.123", "15.9", "187", "1,234"]


def test_a_loss_that_is_not_of_writing_is_marked() -> None:
    results = made_up()
    assert not any("autoregressive" in note for note in notes(results))
    results["rows"][1]["leaks"] = "the future chooses"
    [note] = [note for note in notes(results) if "autoregressive" in note]
    assert "gmlp" in note
    assert "the future chooses" in note
    table = render(results)
    assert "gmlp*" in table
    assert "* gmlp: not strictly autoregressive" in table
    assert "attention*" not in table
