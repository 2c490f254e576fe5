"""Notes that a reader must know before deciding from the table of a comparison."""

from collections.abc import Iterator
from typing import Any

from everyformer.comparison.results import (
    Metric,
    Results,
    TableRow,
    finished,
    interval_of,
    quality_of,
)
from everyformer.comparison.verdict import SCATTER
from everyformer.core.measures import METRICS
from everyformer.core.wording import NOT_WRITING, few, listed
from everyformer.report.words import several

CLOSE = 0.10
"""parameter counts further apart than this are pointed out"""


def notes(results: Results) -> list[str]:
    """Notes that a reader must know before deciding from the table, in short sentences."""
    rows, config = finished(results), results["config"]
    sentences = [
        *_leak_notes(rows),
        *baseline_notes(rows, results["metric"]),
        *_interval_notes(rows),
        *_fairness_notes(rows, config),
    ]
    sentences += [*drifts(rows, config), *_preset_notes(rows)]
    if unfinished := _still_learning(results):
        sentences.append(
            f"{few(unfinished)} still improved over the last third of training by more than the "
            "measurement is unsure: a longer budget can change the order."
        )
    return sentences


def _leak_notes(rows: list[TableRow]) -> Iterator[str]:
    """One note for all members that leak for the same reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["leaks"]:
            reasons.setdefault(row["leaks"], []).append(row["member"])
    for why, names in reasons.items():
        them = several(names, "it", "them")
        yield f"* The loss of {few(names)} is {NOT_WRITING}: {why}. Do not rank {them}."


def baseline_notes(rows: list[TableRow], metric: Metric) -> Iterator[str]:
    """The quality of an answer that reads nothing, where it is known."""
    base = next((row for row in rows if row["baseline"] is not None), None)
    if base is not None:
        value, words = METRICS[metric].sentence(base["baseline"] or 0.0), base["baseline_words"]
        yield f"{words[0].upper()}{words[1:]}, which takes no model, comes to {value}."


def _interval_notes(rows: list[TableRow]) -> Iterator[str]:
    letters = [letter for row in rows for letter in row["letters"]]
    if len(set(letters)) < len(letters):
        yield (
            "Tiers: members with a letter in common cannot be told apart; others are, seed for "
            "seed (Student's paired test, corrected for the number of pairs)."
        )
    if rows and rows[0]["interval_of"] != "seeds":
        yield (
            "One seed only: the interval is over validation sequences. It says how sure the "
            "measurement of this one trained model is, not how another training would turn out."
        )
    elif rows:
        yield (
            f"The interval is of the mean over {rows[0]['seeds']} seeds (Student's t): how much "
            "another set of trainings would differ."
        )


def _fairness_notes(rows: list[TableRow], config: dict[str, Any]) -> Iterator[str]:
    uneven = [
        f"{row['member']} {row['parameter_ratio']:.2f}"
        for row in rows
        if row["parameter_ratio"] and abs(row["parameter_ratio"] - 1) > CLOSE
    ]
    if uneven:
        yield (
            f"Not of equal size: parameters over those of the first member are {few(uneven)}. "
            "With --match parameters the width is chosen to make them equal."
        )
    if config["training"]["budget_seconds"] is not None and len(rows) > 1:
        least, most = (end(rows, key=lambda row: row["steps"]) for end in (min, max))
        steps = f"from {least['steps']:,.0f} ({least['member']}) to {most['steps']:,.0f} "
        yield (
            f"Equal seconds are not equal steps ({steps}({most['member']})): on another machine "
            "the order can differ. With --budget-tokens every member sees the same tokens."
        )
    if config["training"]["precision"] == "auto":
        timed = ((row["member"], row["calibrated"]) for row in rows)
        half = [name for name, known in timed if known and known["precision"] == "bfloat16"]
        found = f"{few(half)} in bfloat16, the others in float32"
        if len(half) in (0, len(rows)):
            found = f"all in {'bfloat16' if half else 'float32'}"
        yield f"Each was trained in the precision whose steps were the faster here: {found}."
    if config["lr_grid"]:
        yield (
            f"Learning rates were chosen by the loss of the first of {rows[0]['seeds']} seeds on "
            "the held-out part, so that its value in each mean is the best of "
            f"{len(config['lr_grid'])}: a little better than training again would be."
        )
    elif len(rows) > 1:
        yield (
            f"All were trained with one learning rate, {config['training']['lr']:g}; a member may "
            "do better with its own (--lr-grid)."
        )


def drifts(rows: list[TableRow], config: dict[str, Any]) -> Iterator[str]:
    """Members whose own trainings ran at another speed than in the rounds with all others, unless
    it was side by side or on other machines."""
    if config.get("launcher") == "ray":
        return
    ratios = {
        row["member"]: row["trained_tokens_per_second"] / row["tokens_per_second"]
        for row in rows
        if row["tokens_per_second"]
    }
    far = [f"{name} {ratio:.2f}" for name, ratio in ratios.items() if abs(ratio - 1) > SCATTER]
    if far:
        yield (
            "In their own trainings, one after the other, some ran at another speed than in rounds "
            f"with all others (as a share of that speed: {few(far)}): the machine or the member "
            "changed meanwhile."
        )


def _preset_notes(rows: list[TableRow]) -> Iterator[str]:
    """Changes by presets besides their genes, where not all of them do."""
    presets = {row["member"]: row.get("preset", {}) for row in rows}
    names = {name for preset in presets.values() for name in preset}
    alike = {
        n
        for n in names
        if all(presets[m].get(n) == next(iter(presets.values())).get(n) for m in presets)
    }
    changes = {
        member: [f"{name} {value}" for name, value in preset.items() if name not in alike]
        for member, preset in presets.items()
    }
    differing = [f"{member} ({listed(what)})" for member, what in changes.items() if what]
    if differing:
        yield (
            f"Published presets differ in more than their gene: {few(differing)}. Give such "
            "an option for all (--model.block.dropout 0), or for one member with --options, to "
            "compare genes alone."
        )


def _still_learning(results: Results) -> list[str]:
    """Members that became better by more than half an interval in the last third."""
    metric, names = results["metric"], []
    sign = METRICS[metric].sign
    for row in finished(results):
        run = next(r for r in results["runs"] if r["member"] == row["member"])
        seen = [(e["tokens"], quality_of(e["evaluation"], metric)) for e in run["evaluations"]]
        earlier = [value for tokens, value in seen if tokens <= 2 / 3 * seen[-1][0]]
        around = interval_of(run["evaluation"], metric) if run["status"] == "done" else None
        if not earlier or around is None:
            continue
        if sign * (earlier[-1] - seen[-1][1]) > (around[1] - around[0]) / 2:
            names.append(row["member"])
    return names
