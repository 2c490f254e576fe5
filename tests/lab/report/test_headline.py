"""The headline of a comparison names a winner only where its numbers allow one."""

import re
from typing import Any

import pytest

from everyformer.lab.compare.verdict import verdict
from everyformer.lab.report.figures import draw_all
from everyformer.lab.report.headline import answer, winners
from report_results import made_up, many, same

BUSY = "the machine had other work (a load of 3.2 beside 2 threads of training on 2 cores)"
SHORT = "fewer than 50 steps were made (gmlp 45)"
PRAISE = re.compile(r"\b(best|ahead|first(?! seed)|fastest|leads|lowest|wins|winner|tie|most)\b")
LOWER = "(bits per byte, lower is better)."
THREE = ("attention", "gmlp", "linear")


def test_distinct_intervals_name_a_winner_and_who_follows() -> None:
    assert answer(made_up(qualities=(2.0, 2.5))) == (
        "attention is best after 60 seconds of training, with 2.000 bits per byte (lower is "
        "better); gmlp follows with 2.500, and every other is told apart from the best (3 seeds, "
        "p = 0.012)."
    )
    high = answer(made_up(metric="accuracy", qualities=(0.5, 0.9), half=0.01))
    assert high.startswith(
        "gmlp is best after 60 seconds of training, with 90.0% of the validation set right"
    )


def test_a_winner_is_as_sure_as_its_least_sure_difference() -> None:
    results = made_up(THREE, qualities=(2.0, 2.5, 3.0))
    for one, p in zip(results["contrasts"], (0.03, 0.0001, 0.045), strict=True):
        one["probability"] = p
    assert "(3 seeds, p = 0.03, corrected for 3 pairs)" in answer(results)
    results["contrasts"][0]["probability"] = 0.0002
    assert "(3 seeds, p < 0.001, corrected for 3 pairs)" in answer(results)
    # several that are one function win together
    results = made_up((*THREE, "rope"), qualities=(2.0, 2.0, 2.0, 3.0))
    same(results, *THREE)
    assert winners(results) == [*THREE]
    assert answer(results).startswith(
        "attention, gmlp and linear, which are one function, are best after 60 seconds of training,"
        " with 2.000 bits per byte (lower is better); rope follows with 3.000, and every other is "
        "told apart from theirs (3 seeds, p = 0.012, corrected for 6 pairs)."
    )


def _ended_by_margin() -> Any:
    results = made_up(qualities=(2.0, 2.01))
    results["config"] |= {"until_settled": 12, "margin": 0.4}
    results["verdict"]["ended"] = "margin"
    return results


@pytest.mark.parametrize(
    ("results", "between", "why"),
    [
        # one training each, whatever their intervals over validation sequences are
        (made_up(qualities=(2.0, 9.0), half=0.001, seeds=1), "attention and gmlp",
         "one training each says nothing of training's luck"),
        # intervals that touch, or overlap
        (made_up(half=0.25), "attention and gmlp", "3 seeds do not tell them apart"),
        (made_up(half=0.3), "attention and gmlp", "3 seeds do not tell them apart"),
        (made_up(THREE, qualities=(2.0, 2.05, 3.0)), "attention and gmlp", "3 seeds do not tell "
         "them apart"),
        (made_up(THREE, qualities=(2.0, 2.05, 2.1)), "attention, gmlp and linear", "3 seeds do not "
         "tell them apart"),
        # equal numbers, however narrow their intervals
        (made_up(qualities=(2.00002, 2.00001), half=0.1), "gmlp and attention", "gmlp and attention"
         " tie"),
        (made_up(qualities=(2.00002, 2.00001), half=1e-6), "gmlp and attention", "gmlp and "
         "attention tie"),
        (made_up((*THREE, "rope"), qualities=(2.0, 2.1, 2.0, 3.0)), "attention, linear and gmlp",
         "attention and linear tie, and gmlp is not told apart from them"),
        (_ended_by_margin(), "attention and gmlp",
         "they are as good as equal, within 0.4 bits per byte"),
    ],
)  # fmt: skip
def test_what_is_not_settled_has_its_reason_in_one_sentence(
    results: Any, between: str, why: str
) -> None:
    first = results["rows"][0]["member"]
    assert winners(results) == []
    assert answer(results) == (
        f"Not settled between {between}, of which {first} stands first in the table with 2.000 "
        f"bits per byte (lower is better): {why}."
    )


def test_a_comparison_that_goes_on_says_who_is_trained_and_who_waits() -> None:
    waiting = ("rope", "alibi", "linear", "performer", "rfa")
    results = made_up(waiting=waiting, failed={"routing": "no memory"})
    assert answer(results) == (
        "2 of 8 members are trained, 1 failed (routing); rope, alibi, linear, performer and rfa "
        f"are waiting. In the order of this table: attention 2.000 and gmlp 2.500 {LOWER}"
    )
    for drawing in draw_all(results):
        assert not PRAISE.search(drawing.caption), drawing.caption
    none = made_up((), qualities=(), waiting=("rope",))
    assert answer(none) == "0 of 1 members are trained; rope is waiting."
    failed = made_up((), qualities=(), failed={"gmlp": "no memory"})
    assert answer(failed) == "No member could be trained: the table gives the reason for each."
    # one member wins nothing
    assert answer(made_up(("gmlp",), qualities=(2.0,))) == (
        "Only gmlp was trained to the end, with 2.000 bits per byte (lower is better)."
    )


@pytest.mark.parametrize("results", [many(12), made_up(metric="accuracy")])
def test_the_first_doubt_follows_the_order_and_no_winner_is_named(results: Any) -> None:
    """Neither in the headline nor in a caption."""
    results["verdict"]["doubts"] = [BUSY, SHORT]
    text = answer(results)
    assert text.startswith("In the order of this table: ")
    assert text.endswith(" is better). Not settled: the machine had other work; 1 more below.")
    captions = [drawing.caption for drawing in draw_all(results)]
    for said in (text.replace("is better", "").removesuffix("; 1 more below."), *captions):
        assert not PRAISE.search(said), said


def test_a_loss_that_is_not_of_writing_wins_nothing() -> None:
    results = made_up()
    results["rows"][0]["leaks"] = "the future chooses"
    assert "Not settled: the loss of attention is not strictly autoregressive" in answer(results)
    results = made_up()
    results["rows"][1]["leaks"] = "the future chooses"
    assert answer(results).startswith("attention is best")


@pytest.mark.parametrize(("beats", "settled"), [(True, True), (None, True), (False, False)])
def test_nothing_no_better_than_a_constant_answer_is_best(
    beats: bool | None, settled: bool
) -> None:
    results = made_up(metric="accuracy", qualities=(0.9, 0.95), half=0.01)
    for row in results["rows"]:
        words = "always answering '5 stars'"
        row |= {"baseline": 0.952, "baseline_words": words, "beats_baseline": beats}
    judged = verdict(results["rows"], "accuracy", in_seconds=False, cores=2)
    results["verdict"] = judged
    assert judged["useful"] == settled
    assert winners(results) == ["gmlp"] * settled
    reason = "Not settled: no member is surely better than always answering '5 stars'."
    assert answer(results).endswith(reason) == (not settled)
