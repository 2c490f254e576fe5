"""Every doubt has what helps beside it, and the first screen says the first of them."""

from typing import Any

import pytest

from everyformer.lab.compare.verdict import verdict
from everyformer.lab.report.facts import facts, now, remedies
from report_results import made_up


def _doubting(changes: dict[str, Any], in_seconds: bool = True) -> Any:
    """Three seeds of two members with ``changes`` in the first one's row, judged."""
    results = made_up(seeds=3)
    calibrated = {"rounds": [0.1], "seconds": 0.1, "cpu_seconds": 0.1}
    for row in results["rows"]:
        row |= {"calibrated": calibrated, "trained_tokens_per_second": 10_000.0}
    results["rows"][0] |= changes
    results["verdict"] = verdict(
        results["rows"], "bits_per_byte", in_seconds=in_seconds, cores=2
    )  # fmt: skip
    return results


QUIET = "--budget-tokens 120000"


@pytest.mark.parametrize(
    ("changes", "helps"),
    [
        ({"load": 5.0}, QUIET),
        ({"calibrated": {"rounds": [0.1, 0.9]}}, QUIET),
        ({"calibrated": None}, QUIET),
        ({"steps": 12, "tokens": 12_000}, "9 times the budget: --budget-seconds 540, or a smaller"),
        ({"beats_baseline": False, "baseline": 1.9, "baseline_words": "counting"}, "longer"),
        ({"leaks": "it sees the future"}, "apart"),
    ],
)
def test_every_doubt_has_a_remedy(changes: dict[str, Any], helps: str) -> None:
    results = _doubting(changes)
    [(doubt, remedy)] = remedies(results)
    assert helps in remedy
    assert not doubt.endswith(".")
    command = "" if results["verdict"]["useful"] else "everyformer show 'runs/a b' all"
    assert now(results) == (remedy, command)


def test_steps_are_multiplied_where_the_budget_is_of_steps() -> None:
    results = _doubting({"steps": 30, "tokens": 1e4}, in_seconds=False)
    results["config"]["training"] |= {"budget_seconds": None, "steps": 30}
    [(_, remedy)] = remedies(results)
    assert remedy == "give more steps: --steps 120"
    # advice that a doubt brings is its remedy
    results = made_up(seeds=3, doubts=("no member is surely better than counting; give more",))
    assert remedies(results) == [("no member is surely better than counting", "give more")]
    # one seed is a doubt of several members
    assert remedies(made_up(seeds=1))[-1][1] == "repeat with --seeds 3"
    assert remedies(made_up(seeds=3)) == []
    assert remedies(made_up(("gmlp",), qualities=(2.0,))) == []


def test_doubts_of_one_remedy_stand_together() -> None:
    """Hardly any steps on a busy machine: both remedies are worth as many tokens."""
    results = _doubting({"load": 5.0, "calibrated": None, "steps": 5, "tokens": 5_000})
    (busy, quiet), (_, longer) = remedies(results)
    assert busy.count("; ") == 1
    assert "--budget-tokens 2400000," in quiet
    assert longer.startswith("give 20 times the budget: --budget-seconds 1200, or a smaller model")


def test_what_now_goes_on_mends_or_uses() -> None:
    assert now(made_up()) == ("look into it", "everyformer show 'runs/a b' all")
    waiting = made_up(waiting=("rope",))
    waiting["config"]["out"] = "a b"
    assert now(waiting)[1] == "everyformer compare --resume --out 'a b'"
    none = made_up((), qualities=(), failed={"gmlp": "no"})
    none["next"] = []
    assert now(none) == ("", "")
    assert facts(none) == []


def test_facts_say_how_sure_what_for_and_at_what_cost() -> None:
    results = made_up(seeds=1)
    results["rows"][0] |= {"baseline": 4.5, "baseline_words": "counting bytes"}
    assert dict(facts(results)) == {
        "How sure": "attention 1.900 to 2.100 (95% interval over validation sequences); 1 doubt "
        "below, with what helps",
        "Against a baseline": "2.000 against 4.500 of counting bytes",
        "What attention costs": "100,000 parameters, 1,000 tokens a second in training, 4.8 MiB of "
        "memory, 0.6 ms to write a token",
    }
    assert "over 3 seeds)" in dict(facts(made_up(seeds=3)))["How sure"]
