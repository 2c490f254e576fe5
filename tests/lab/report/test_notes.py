"""What a reader must know before deciding: the sentences follow from the numbers."""

import statistics
from typing import Any

import pytest

from everyformer.core.measures import METRICS
from everyformer.core.wording import join_first, join_names
from everyformer.lab.compare.contrasts import seeds_for, smallest_seen
from everyformer.lab.report.notes import beyond, notes
from everyformer.lab.report.terminal import render
from everyformer.lab.report.words import brief, question, title, visible
from report_results import made_up, many, same
from sequence_laws.memory import size


def _changed(first: dict[str, Any], **known: Any) -> Any:
    """Results with ``first`` in the first row."""
    results = made_up(**known)
    results["rows"][0] |= first
    return results


def _lr_grid() -> Any:
    results = made_up(("attention", "gmlp", "rope", "linear"), qualities=(2.0, 2.1, 2.2, 2.3))
    results["config"]["lr_grid"] = [1e-3, 3e-3, 3e-4]
    for row, lr in zip(results["rows"], (3e-3, 1e-3, 3e-3, 3e-4), strict=True):
        row["lr"] = lr
    return results


def _one_function() -> Any:
    results = made_up(("attention", "longformer", "gmlp"), qualities=(2.0, 2.0, 3.0))
    same(results, "longformer", "attention")
    return results


@pytest.mark.parametrize(
    ("results", "said", "without", "never"),
    [
        (made_up(seeds=1), "One seed only", made_up(seeds=3), "One seed"),
        (made_up(), "gmlp 1.30", made_up(("attention",), qualities=(2.0,)), "equal size"),
        (made_up(half=0.25), "letter in common", made_up(half=0.1), "letter in common"),
        (made_up(half=0.01), "gmlp still improved", made_up(half=10), "still improved"),
        # an accuracy that falls as far as that loss
        (made_up(), "one learning rate, 0.001", _lr_grid(), "one learning rate"),
        (_lr_grid(), "first of 3 seeds on the held-out part, so that its value in each mean is the "
         "best of 3:", made_up(half=0.01, metric="accuracy", qualities=(0.2, 0.3)), "still"),
        (_changed({"leaks": "the future chooses"}), "* The loss of attention is not strictly auto"
         "regressive, so no measure of what it writes: the future chooses. Do not rank it.",
         made_up(), "autoregressive"),
        (_changed({"trained_tokens_per_second": 600.0}), "of that speed: attention 0.60): the mach",
         _changed({"trained_tokens_per_second": 1200.0}), "another speed"),
        (_one_function(), "attention and longformer gave the same loss to the last digit: at this "
         "length they compute the same function.", made_up(), "same function"),
        (_changed({"baseline": 4.5, "baseline_words": "counting bytes"}), "Counting bytes, which "
         "takes no model, comes to 4.500 bits per byte (lower is better).", made_up(), "no model"),
        (_lr_grid(), "The best learning rate of attention and rope is 0.003, the largest tried; try"
         " 1e-2, 3e-2 (--lr-grid).", made_up(), "tried"),
        (_lr_grid(), "The best learning rate of linear is 0.0003, the smallest tried; try 1e-4, "
         "3e-5 (--lr-grid).", made_up(), "tried"),
    ],
)  # fmt: skip
def test_each_note_is_there_where_it_is_true(
    results: Any, said: str, without: Any, never: str
) -> None:
    assert sum(said in note for note in notes(results)) == 1
    assert not any(never in note for note in notes(without))


def test_a_grid_of_one_rate_has_no_ends_and_no_row_no_note() -> None:
    results = _lr_grid()
    results["config"]["lr_grid"] = [3e-3]
    assert not any("tried" in note for note in notes(results))
    assert notes(made_up((), qualities=(), failed={"gmlp": "no memory"})) == []


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


def test_the_smallest_difference_that_would_have_shown_is_said() -> None:
    results = made_up()
    rows = results["rows"]
    rows[0]["values"], rows[1]["values"] = [2.0, 2.1, 2.0], [2.5, 2.5, 2.5]
    results["verdict"]["smallest"] = seen = smallest_seen(rows, "bits_per_byte")
    assert seen == pytest.approx(4.3027 * statistics.stdev([0.5, 0.4, 0.5]) / 3**0.5, rel=1e-4)
    more = seeds_for(rows, "bits_per_byte", seen / 2) - 3
    said = f"With 3 seeds a difference below 0.14 bits per byte would not show; {more} more for"
    assert f"{said} 0.072 bits per byte." in notes(results)
    assert METRICS["accuracy"].difference(0.0123) == "1.2 points"
    assert not any("not show" in note for note in notes(made_up(seeds=1)))


def test_a_smaller_difference_that_did_show_is_named_beside_it() -> None:
    """Of a pair that scatters less, or that is judged after others."""
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.02, 3.0))
    results["verdict"]["smallest"] = 0.5
    near, far, _ = results["contrasts"]
    near |= {"difference": 0.02, "apart": True}
    pair = f"{near['better']} and {near['worse']}"
    said = "below 0.5 bits per byte would not show"
    found = " ".join(notes(results))
    assert f"{said} in a usual pair (0.02 bits per byte between {pair} did)" in found
    near["apart"], far["difference"] = False, 1.0
    assert f"{said} in a usual pair" not in " ".join(notes(results))


@pytest.mark.parametrize(
    ("metric", "seen", "said"),
    [
        ("accuracy", 1.3, "With 3 seeds no difference could have shown."),
        ("accuracy", 1.0, "With 3 seeds no difference could have shown."),
        ("accuracy", 0.4, "With 3 seeds a difference below 40 points would not show"),
        ("rmse", 1.3, "a difference below 1.3 root mean square error would not show"),
    ],
)
def test_a_difference_of_shares_that_cannot_be_is_not_named(
    metric: Any, seen: float, said: str
) -> None:
    results = made_up(metric=metric, qualities=(0.5, 0.9))
    results["verdict"]["smallest"] = seen
    assert [said in note for note in notes(results) if "difference" in note] == [True]


@pytest.mark.parametrize(
    ("seeds", "found", "said"),
    [
        (3, 7, "To see 0.1 bits per byte in 80% of comparisons takes 7 seeds, 4 more."),
        (3, 2, "To see 0.1 bits per byte in 80% of comparisons takes 2 seeds, which it had."),
        (3, None, "To see 0.1 bits per byte takes more than 200 seeds."),
        (1, None, "How many seeds see 0.1 bits per byte is not known from one training each"),
    ],
)
def test_how_many_seeds_see_a_difference_is_said(seeds: int, found: int | None, said: str) -> None:
    results = made_up(seeds=seeds)
    results["verdict"]["power"] = {"difference": 0.1, "seeds": found}
    assert said in " ".join(notes(results))


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ("winner", "It ended after 3 of at most 12 seeds, since no other shares the first tier."),
        ("seeds", "All 12 seeds are spent, and the winner is not settled."),
        ("margin", "It ended after 3 of at most 12 seeds, since attention and gmlp are shown to be "
         "within 0.4 bits per byte of each other (two one-sided tests)."),
    ],
)  # fmt: skip
def test_what_ended_it_is_said(ended: str, said: str) -> None:
    results = made_up(qualities=(2.0, 2.01))
    results["config"] |= {"until_settled": 12, "margin": 0.4}
    results["verdict"]["ended"] = ended
    assert said in notes(results)


@pytest.mark.parametrize(
    ("lr", "up", "down"),
    [
        (3e-3, ["1e-2", "3e-2"], ["1e-3", "3e-4"]),
        (1e-3, ["3e-3", "1e-2"], ["3e-4", "1e-4"]),
        (2.5e-3, ["1e-2", "3e-2"], ["1e-3", "3e-4"]),
        (8e-3, ["3e-2", "1e-1"], ["3e-3", "1e-3"]),
        (0.5, ["1e0", "3e0"], ["1e-1", "3e-2"]),
    ],
)
def test_rates_beyond_the_grid_go_on_in_ones_and_threes(
    lr: float, up: list[str], down: list[str]
) -> None:
    assert (beyond(lr, up=True), beyond(lr, up=False)) == (up, down)


def test_a_terminal_has_the_table_every_doubt_and_every_note() -> None:
    results = made_up(seeds=1, failed={"rope": "no memory"}, doubts=("the machine had other work",))
    results["rows"][0] |= {"leaks": "the future chooses", "limits": ["reads slowly"]}
    results["rows"][1]["limits"] = ["reads slowly", "is odd"]
    said = render(results)
    for line in (
        "attention and gmlp: each reads slowly",
        "gmlp: is odd",
        "rope failed: no memory",
        "Doubt: the loss of attention is not strictly autoregressive, so no measure of what it "
        "writes. What helps: compare it apart, since it does not write.",
        "Doubt: every member was trained once, with one seed. What helps: repeat with --seeds 3.",
        *notes(results),
        "look into it  everyformer show 'runs/a b' all",
    ):
        assert said.splitlines().count(line) == 1, line
    assert "Doubt: the machine had other work. What helps: repeat while nothing else" in said
    lines = {line.split()[0]: line for line in said.splitlines()[2:7]}
    assert "2.000 (1.900 to 2.100)" in lines["attention*"]
    assert lines["rope"].split()[1] == "failed"


def test_the_question_names_what_was_equal() -> None:
    """And up to four members; a title has no line of thirty names."""
    five = ("attention", "gmlp", "rope", "alibi", "t5")
    four = made_up(five[:4], qualities=(1, 2, 3, 4))
    assert title(four) == "attention, gmlp, rope and alibi on stdlib"
    assert title(made_up(five, qualities=(1, 2, 3, 4, 5))) == "5 members on stdlib"
    assert question(made_up()) == (
        "Which of attention or gmlp predicts stdlib best, given the same data, equal width and "
        "60 seconds of training each?"
    )


def test_numbers_and_lists_in_sentences() -> None:
    assert [brief(n) for n in (0.12345, 15.94, 187.2, 1234.5)] == ["0.123", "15.9", "187", "1,234"]
    assert [size(n) for n in (None, 12, 2048, 3 * 2**30)] == ["-", "12 B", "2.0 KiB", "3.0 GiB"]
    assert [join_names(list(names)) for names in ("", "a", "abc")] == ["", "a", "a, b and c"]
    ten = list("abcdefghij")
    assert join_first(ten[:6]) == "a, b, c, d, e and f"
    assert join_first(ten) == "a, b, c, d, e, f and 4 more"
    assert visible("a\x00\x7f\r\n\tb\ud800") == "a\u2400\u2421\n\tb?"
