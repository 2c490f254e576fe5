"""The sentences of a report follow from the numbers."""

import pytest
from report_results import made_up, many

from everyformer.cli.verbs.compare import render
from everyformer.core.wording import few, listed
from everyformer.report.notes import notes
from everyformer.report.words import brief, question, title
from sequence_laws.memory import size


def test_one_seed_is_said() -> None:
    assert any("One seed only" in note for note in notes(made_up(seeds=1)))
    assert any("over 3 seeds" in note for note in notes(made_up(seeds=3)))


def test_unequal_sizes_are_said() -> None:
    assert any("gmlp 1.30" in note for note in notes(made_up()))


def test_trainings_at_another_speed_than_in_rounds_are_told_with_their_share() -> None:
    results = made_up()
    assert not any("another speed" in note for note in notes(results))
    slow, steady = results["rows"][:2]
    slow["trained_tokens_per_second"] = 0.6 * slow["tokens_per_second"]
    steady["trained_tokens_per_second"] = 1.2 * steady["tokens_per_second"]
    [note] = [note for note in notes(results) if "another speed" in note]
    assert f"(as a share of that speed: {slow['member']} 0.60): the machine" in note


def test_a_member_that_still_learns_is_said() -> None:
    assert any("gmlp still improved" in note for note in notes(made_up(half=0.01)))
    assert not any("still improved" in note for note in notes(made_up(half=10)))
    # an accuracy that falls as far as that loss
    worse = made_up(half=0.01, metric="accuracy", qualities=(0.2, 0.3))
    assert not any("still improved" in note for note in notes(worse))


def test_the_question_names_what_was_equal() -> None:
    """And up to four members; a title has no line of thirty names."""
    four, five = (
        ("attention", "gmlp", "rope", "alibi"),
        ("attention", "gmlp", "rope", "alibi", "t5"),
    )
    assert (
        title(made_up(four, qualities=(1, 2, 3, 4))) == "attention, gmlp, rope and alibi on stdlib"
    )
    assert title(made_up(five, qualities=(1, 2, 3, 4, 5))) == "5 members on stdlib"
    assert question(made_up(five, qualities=(1, 2, 3, 4, 5))).startswith(
        "Which of 5 members predicts"
    )
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


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "a"), (6, "a, b, c, d, e and f"), (7, "a, b, c, d, e, f and 1 more"),
     (10, "a, b, c, d, e, f and 4 more")],
)  # fmt: skip
def test_long_lists_are_counted(count: int, text: str) -> None:
    assert few(list("abcdefghij")[:count]) == text


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


def test_notes_of_many_members_stay_short() -> None:
    """31 members are no list of hundreds of pairs, nor of thirty numbers."""
    results = many(31)
    for row in results["rows"]:
        row["leaks"] = "the future chooses"
        row["preset"] = {"block.dropout": len(row["member"])}
    found = notes(results)
    assert max(map(len, found)) < 400
    assert sum("cannot be told apart" in note for note in found) == 1
    assert any("and 25 more is not strictly autoregressive" in note for note in found)


def test_tiers_are_explained_where_there_are_any() -> None:
    assert any("letter in common" in note for note in notes(made_up(half=0.25)))
    assert not any("letter in common" in note for note in notes(made_up(half=0.1)))


def test_rates_that_were_chosen_on_the_held_out_part_are_told() -> None:
    results = made_up()
    assert not any("rates were chosen" in note for note in notes(results))
    results["config"]["lr_grid"] = [1e-3, 3e-3, 1e-2]
    [note] = [note for note in notes(results) if "rates were chosen" in note]
    assert "the first of 3 seeds" in note
    assert "the best of 3:" in note
    assert not any("one learning rate" in note for note in notes(results))
