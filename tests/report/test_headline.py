"""The headline of a comparison names a winner only where its numbers allow one."""

import re
import statistics
from typing import Any

import pytest
from report_results import made_up, many, same

from everyformer.comparison.contrasts import seeds_for, smallest_seen
from everyformer.comparison.verdict import verdict
from everyformer.core.measures import METRICS
from everyformer.report.figures import draw_all
from everyformer.report.headline import answer, beyond, winners
from everyformer.report.notes import notes

BUSY = "the machine had other work (a load of 3.2 beside 2 threads of training on 2 cores)"
SHORT = "fewer than 50 steps were made (gmlp 45)"
PRAISE = re.compile(r"\b(best|ahead|first(?! seed)|fastest|leads|lowest|wins|winner|tie|most)\b")


def test_distinct_intervals_name_a_winner() -> None:
    text = answer(made_up(qualities=(2.0, 2.5)))
    assert text.startswith(
        "attention is best after 60 seconds of training, with 2.000 bits per byte (lower is "
        "better); gmlp follows with 2.500, "
        "and every other is told apart from the best (3 seeds, p = 0.012)."
    )


def test_one_training_each_names_no_winner() -> None:
    """Whatever their intervals over validation sequences are."""
    results = made_up(qualities=(2.0, 9.0), half=0.001, seeds=1)
    text = answer(results)
    assert text.startswith(
        "In the order of this table: attention 2.000 and gmlp 9.000 (bits per byte, lower is "
        "better). Not settled: one training each says nothing of training's luck (--seeds 3 does)."
    )
    assert winners(results) == []
    assert "would not show" not in text


def test_the_smallest_difference_that_would_have_shown_is_said() -> None:
    results = made_up()
    rows = results["rows"]
    rows[0]["values"], rows[1]["values"] = [2.0, 2.1, 2.0], [2.5, 2.5, 2.5]
    results["verdict"]["smallest"] = seen = smallest_seen(rows, "bits_per_byte")
    assert seen == pytest.approx(4.3027 * statistics.stdev([0.5, 0.4, 0.5]) / 3**0.5, rel=1e-4)
    more = seeds_for(rows, "bits_per_byte", seen / 2) - 3
    said = f"With 3 seeds a difference below 0.14 bits per byte would not show; {more} more for"
    assert f"{said} 0.072 bits per byte." in answer(results)
    assert METRICS["accuracy"].difference(0.0123) == "1.2 points"


def test_a_smaller_difference_that_did_show_is_named_beside_it() -> None:
    """Of a pair that scatters less, or that is judged after others."""
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.02, 3.0))
    results["verdict"]["smallest"] = 0.5
    near, far, _ = results["contrasts"]
    near |= {"difference": 0.02, "apart": True}
    pair = f"{near['better']} and {near['worse']}"
    said = "below 0.5 bits per byte would not show"
    assert f"{said} in a usual pair (0.02 bits per byte between {pair} did)" in answer(results)
    near["apart"], far["difference"] = False, 1.0
    assert f"{said}." in answer(results) or f"{said};" in answer(results)


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
    text = answer(results)
    assert said in text
    assert "1.3e+02" not in text
    assert ("would not show" in said) == ("would not show" in text)


def test_a_winner_is_as_sure_as_its_least_sure_difference() -> None:
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.5, 3.0))
    for one, p in zip(results["contrasts"], (0.03, 0.0001, 0.045), strict=True):
        one["probability"] = p
    assert "(3 seeds, p = 0.03, corrected for 3 pairs)" in answer(results)
    results["contrasts"][0]["probability"] = 0.0002
    assert "(3 seeds, p < 0.001, corrected for 3 pairs)" in answer(results)


def test_accuracy_ranks_high_first() -> None:
    text = answer(made_up(metric="accuracy", qualities=(0.5, 0.9), half=0.01))
    assert (
        "gmlp is best after 60 seconds of training, with 90.0% of the validation set right" in text
    )


@pytest.mark.parametrize("half", [0.25, 0.3])
def test_intervals_that_touch_or_overlap_leave_it_open(half: float) -> None:
    results = made_up(qualities=(2.0, 2.5), half=half)
    text = answer(results)
    assert text.startswith(
        "attention stands first in the table with 2.000 bits per byte (lower is better). Not "
        "settled between attention and gmlp: 3 seeds do not tell them apart."
    )
    assert winners(results) == []
    assert " is best" not in text


def test_a_tier_is_not_settled_between_its_members() -> None:
    members = ("attention", "gmlp", "linear")
    text = answer(made_up(members, qualities=(2.0, 2.05, 3.0)))
    assert "Not settled between attention and gmlp: 3 seeds" in text
    everyone = answer(made_up(members, qualities=(2.0, 2.05, 2.1)))
    assert "Not settled between attention, gmlp and linear: 3 seeds do not" in everyone


@pytest.mark.parametrize("half", [0.1, 1e-6])
def test_equal_numbers_are_a_tie_however_narrow_their_intervals(half: float) -> None:
    """ "attention is ahead with 50.0%, linear follows with 50.0%" was printed once."""
    qualities = (0.50002, 0.50001)
    members = ("attention", "linear")
    results = made_up(members, metric="accuracy", qualities=qualities, half=half)
    text = answer(results)
    assert text.startswith("attention and linear tie at 50.0% of the validation set right")
    assert not re.search("ahead|follows|best after", text)
    assert winners(results) == []


def test_members_near_a_tie_are_named_beside_it() -> None:
    members = ("attention", "linear", "gmlp", "rope")
    text = answer(made_up(members, qualities=(2.0, 2.0, 2.1, 3.0)))
    assert text.startswith(
        "attention and linear tie at 2.000 bits per byte (lower is better), and gmlp is not told "
        "apart from them: which of them is best is not settled by this run."
    )


def test_equal_losses_are_one_function() -> None:
    """Nobody said that longformer, bigbird and attention gave the same loss to the last digit."""
    members = ("attention", "longformer", "bigbird", "gmlp")
    results = made_up(members, qualities=(2.0, 2.0, 2.0, 3.0))
    same(results, "longformer", "bigbird", "attention")
    text = answer(results)
    assert text.startswith(
        "attention, longformer and bigbird share the first place after 60 seconds of training, "
        "with 2.000 bits per byte (lower is better); gmlp follows with 3.000, and every other is "
        "told apart from theirs (3 seeds, p = 0.012, corrected for 6 pairs). attention, longformer "
        "and bigbird gave the same loss to the last digit: at this length they compute the same "
        "function."
    )
    assert text.count("same function") == 1


@pytest.mark.parametrize("results", [made_up(half=0.01), many(32), made_up(metric="accuracy")])
def test_doubts_follow_the_order_and_no_winner_is_named(results: Any) -> None:
    """Neither in the headline nor in a caption."""
    results["verdict"]["doubts"] = [BUSY, SHORT]
    text = answer(results)
    assert text.startswith("In the order of this table: ")
    assert f" is better). Not settled: {BUSY}; {SHORT}." in text
    few_words = "Not settled: the machine had other work; fewer than 50 steps were made."
    assert few_words in answer(results, short=True)
    captions = [drawing.caption for drawing in draw_all(results)]
    for said in (text.replace("is better", ""), *captions):
        assert not PRAISE.search(said), said


def test_a_loss_that_is_not_of_writing_wins_nothing() -> None:
    results = made_up()
    results["rows"][0]["leaks"] = "the future chooses"
    assert "Not settled: the loss of attention is not strictly autoregressive" in answer(results)
    results = made_up()
    results["rows"][1]["leaks"] = "the future chooses"
    assert answer(results).startswith("attention is best")


def test_a_comparison_that_goes_on_says_how_far_it_is_and_names_no_winner() -> None:
    waiting = ("rope", "alibi", "linear", "performer", "rfa")
    results = made_up(waiting=waiting, failed={"routing": "no memory"})
    text = answer(results)
    assert text.startswith(
        "2 of 8 members are trained, 1 failed (routing); rope, alibi, linear, performer and rfa "
        "are waiting. In the order of this table: attention 2.000 and gmlp 2.500"
    )
    for said in (text.replace("is better", ""), *(d.caption for d in draw_all(results))):
        assert not PRAISE.search(said), said
    none = answer(made_up((), qualities=(), waiting=("rope",)))
    assert none == "0 of 1 members are trained; rope is waiting."


def test_who_is_fastest_is_said_only_where_spreads_do_not_overlap() -> None:
    results = made_up()
    assert "gmlp trains fastest, at 2,000 tokens per second." in answer(results)
    assert "attention writes fastest after 1,024 tokens, 0.6 ms each." in answer(results)
    attention, gmlp = results["rows"]
    gmlp["speed_spread"] = [1005.0, 2500.0]
    attention["decode_spread"]["1024"] = [0.5, 1.56]
    assert "fastest" not in answer(results)
    gmlp["speed_spread"] = None
    attention["decode_spread"] = {}
    assert "fastest" not in answer(results)
    third = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.5, 3.0))
    assert "linear trains fastest" in answer(third)
    third["rows"][1]["speed_spread"] = [1900.0, 3500.0]
    assert "trains fastest" not in answer(third)


def test_two_names_of_one_function_are_never_told_apart_by_speed() -> None:
    members = ("attention", "sinusoidal", "gmlp")
    results = made_up(members, qualities=(2.0, 2.0, 3.0))
    # gmlp is the fastest and attention the slowest of what was measured
    assert "gmlp trains fastest, at 3,000 tokens per second." in answer(results)
    assert "attention writes fastest after 1,024 tokens" in answer(results)
    same(results, "attention", "sinusoidal")
    assert "attention and sinusoidal write fastest after 1,024 tokens, 0.6 ms" in answer(results)
    results["rows"][1]["speed_spread"], results["rows"][1]["tokens_per_second"] = [5e3, 6e3], 5.5e3
    assert "sinusoidal and attention train fastest, at 5,500 tokens per second" in answer(results)
    alone = made_up(members[:2], qualities=(2.0, 2.0))
    assert "sinusoidal trains fastest" in answer(alone)
    same(alone, *members[:2])
    assert "fastest" not in answer(alone)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((3072, 1024, 2048), "gmlp keeps least memory a stream after 1,024 tokens, 1.0 KiB."),
        # no exact state: no number
        ((3072, None, 2048), "linear keeps least memory a stream after 1,024 tokens, 2.0 KiB."),
        # nothing sets one apart
        ((1024, 1024, 1024), None),
        ((1024, 1024, 2048), None),
        ((None, None, 2048), None),
    ],
)
def test_least_memory_is_said_with_its_length_where_most_need_more(
    kept: tuple[int | None, ...], said: str | None
) -> None:
    results = made_up(("attention", "gmlp", "linear"), qualities=(2.0, 2.5, 3.0))
    for row, count in zip(results["rows"], kept, strict=True):
        row["decode_bytes"] = {"64": 1} | ({} if count is None else {"1024": count})
    text = answer(results)
    assert said in text if said is not None else "memory" not in text
    assert "memory" not in answer(results | {"waiting": ["rope"]})


def test_what_could_not_be_timed_is_never_the_fastest() -> None:
    results = made_up()
    results["rows"][1] |= {"tokens_per_second": None, "speed_spread": None, "decode_ms": {}}
    assert "fastest" not in answer(results)


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
    text = answer(results)
    assert judged["useful"] == settled
    if settled:
        assert text.startswith("gmlp is best after 60 seconds of training, with 95.0%")
    else:
        reason = "no member is surely better than always answering '5 stars'"
        assert text.startswith("In the order of this table: ")
        assert f"Not settled: {reason} (accuracy 95.2%)." in text
        assert winners(results) == []


def test_limits_of_the_winner_stand_beside_it() -> None:
    results = made_up()
    results["rows"][0]["limits"] = ["reads at most 256 tokens", "has no exact state"]
    results["rows"][1]["limits"] = ["is slow"]
    assert "attention reads at most 256 tokens. attention has no exact state." in answer(results)
    assert "is slow" not in answer(results)


def test_one_member_wins_nothing() -> None:
    assert answer(made_up(("gmlp",), qualities=(2.0,))) == (
        "Only gmlp was trained to the end: 2.000 bits per byte (lower is better)."
    )


def test_nothing_finished() -> None:
    results = made_up((), qualities=(), failed={"gmlp": "no memory"})
    assert "No member could be trained" in answer(results)
    assert notes(results) == []


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
    assert said in answer(results)


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ("winner", "It ended after 3 of at most 12 seeds, since no other shares the first tier."),
        ("seeds", "All 12 seeds are spent, and the winner is not settled."),
        (
            "margin",
            "It ended after 3 of at most 12 seeds, since attention and gmlp are shown to be "
            "within 0.4 bits per byte of each other (two one-sided tests).",
        ),
    ],
)
def test_what_ended_it_is_said(ended: str, said: str) -> None:
    results = made_up(qualities=(2.0, 2.01))
    results["config"] |= {"until_settled": 12, "margin": 0.4}
    results["verdict"]["ended"] = ended
    text = answer(results)
    assert said in text
    equal = "attention and gmlp are as good as equal, within 0.4 bits per byte"
    assert text.startswith(equal) is (ended == "margin")
    assert winners(results) == []


def test_a_rate_at_an_end_of_the_grid_is_told_of_every_member() -> None:
    results = made_up(("attention", "gmlp", "rope", "linear"), qualities=(2.0, 2.1, 2.2, 2.3))
    results["config"]["lr_grid"] = [1e-3, 3e-3, 3e-4]
    for row, lr in zip(results["rows"], (3e-3, 1e-3, 3e-3, 3e-4), strict=True):
        row["lr"] = lr
    said = answer(results)
    assert (
        "The best learning rate of attention and rope is 0.003, the largest tried; try 1e-2, 3e-2 "
        "(--lr-grid). The best learning rate of linear is 0.0003, the smallest tried; try 1e-4, "
        "3e-5 (--lr-grid)."
    ) in said
    results["config"]["lr_grid"] = [3e-3]
    assert "tried" not in answer(results)


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
