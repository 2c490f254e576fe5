"""What the numbers of a comparison say, in sentences made from the numbers alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from everyformer.comparison.results import Metric, Results, Row, finished, interval_of, quality_of
from everyformer.comparison.summary import NOT_WRITING

UNITS: dict[Metric, str] = {
    "bits_per_byte": "bits per byte",
    "bits_per_dim": "bits per dimension",
    "loss": "nats per token",
    "accuracy": "accuracy",
}
CLOSE = 0.10
"""parameter counts further apart than this are pointed out"""


def quality(value: float, metric: Metric) -> str:
    """A quality as a table shows it."""
    return f"{value:.1%}" if metric == "accuracy" else f"{value:.3f}"


def interval(row: Row, metric: Metric) -> str:
    """A row's 95% interval."""
    if row["interval"] is None:
        return "unknown"
    low, high = row["interval"]
    return f"{quality(low, metric)} to {quality(high, metric)}"


def overlap(a: Row, b: Row) -> bool:
    """Whether the intervals of two rows share a value; unknown ones could."""
    if a["interval"] is None or b["interval"] is None:
        return True
    return bool(a["interval"][0] <= b["interval"][1] and b["interval"][0] <= a["interval"][1])


def count(number: float) -> str:
    """1234567 as 1.23 million."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,.0f}"


def brief(number: float) -> str:
    """Three digits at least, and no powers of ten: 0.797, 15.9, 1,234."""
    return f"{number:.3g}" if abs(number) < 100 else f"{number:,.0f}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """a, b and c."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def budget(config: dict[str, Any]) -> str:
    """What each member was given."""
    training = config["training"]
    for kind, unit in (("seconds", "seconds"), ("tokens", "tokens"), ("flops", "FLOPs")):
        amount = training[f"budget_{kind}"]
        if amount is not None:
            return f"{amount:,.6g} {unit}" if amount < 1e6 else f"{count(amount)} {unit}"
    return f"{training['steps']:,} steps"


def question(results: Results) -> str:
    """What was asked."""
    members, data = results["config"]["members"], results["data"]
    equal = "parameters" if results["config"]["match"] == "parameters" else "width"
    goals = {"lm": "predicts", "mlm": "fills in", "seq2seq": "translates"}
    goals |= {"pixels": "predicts the pixels of", "super-resolution": "enlarges the pictures of"}
    goal = goals.get(data["task"], "classifies")
    return (
        f"Which of {listed(members, 'or')} {goal} {data['name']} best, given the same data, equal "
        f"{equal} and {budget(results['config'])} of training each?"
    )


def answer(results: Results) -> str:
    """Who is best, whether that is settled, and who is fastest."""
    rows, metric = finished(results), results["metric"]
    if not rows:
        return "No member could be trained: the table gives the reason for each."
    best, rest = rows[0], rows[1:]
    unit = "" if metric == "accuracy" else f" {UNITS[metric]}"
    top = f"{quality(best['quality'], metric)}{unit} ({results['better']} is better)"
    if metric == "accuracy":
        top = f"{quality(best['quality'], metric)} of the validation set right"
    if not rest:
        return f"Only {best['member']} was trained to the end: {top}."
    near = [row["member"] for row in rest if overlap(best, row)]
    second = f"{rest[0]['member']} follows with {quality(rest[0]['quality'], metric)}"
    if not near:
        verdict = f"{best['member']} is best with {top}; {second}, and no 95% interval overlaps"
        verdict += " with that of the best."
    else:
        verdict = (
            f"{best['member']} is ahead with {top} and {second}, but its 95% interval overlaps "
            f"with that of {listed(near)}: which of them is best is not settled by this run."
        )
    return f"{verdict} {_fastest(rows)}"


def _fastest(rows: list[Row]) -> str:
    trained = max(rows, key=lambda row: row["tokens_per_second"])
    text = (
        f"{trained['member']} trains fastest, at {trained['tokens_per_second']:,.0f} tokens per "
        "second"
    )
    contexts = sorted({c for row in rows for c in row["decode_ms"]}, key=int)
    if not contexts:
        return text + "."
    able = [row for row in rows if contexts[-1] in row["decode_ms"]]
    decoded = min(able, key=lambda row: row["decode_ms"][contexts[-1]])
    who = "it also" if decoded is trained else decoded["member"]
    spent = decoded["decode_ms"][contexts[-1]]
    return (
        f"{text}; {who} writes fastest after {int(contexts[-1]):,} tokens, {brief(spent)} ms each."
    )


def notes(results: Results) -> list[str]:
    """What a reader must know before deciding from the table."""
    rows, config = finished(results), results["config"]
    found = [*_leak_notes(rows), *_interval_notes(rows), *_fairness_notes(rows, config)]
    found += _preset_notes(rows)
    if unfinished := _still_learning(results):
        found.append(
            f"{listed(unfinished)} still improved over the last third of training by more than the "
            "measurement is unsure: a longer budget can change the order."
        )
    if results["bench"]:
        found.append(
            "“Beats attention from” is measured on one layer with a batch of one row, forward and "
            "backward, on the machine below; the other columns are of the whole model."
        )
    return found


def _leak_notes(rows: list[Row]) -> list[str]:
    return [
        f"* The loss of {row['member']} is {NOT_WRITING}: {row['leaks']}. Do not rank it among "
        "the others."
        for row in rows
        if row.get("leaks")
    ]


def _interval_notes(rows: list[Row]) -> Iterator[str]:
    if rows and rows[0]["interval_of"] != "seeds":
        yield (
            "One seed only: the interval is over validation sequences. It says how sure the "
            "measurement of this one trained model is, not how another training would turn out. "
            "Repeat with --seeds 3 before you rely on a small difference."
        )
    elif rows:
        yield (
            f"The interval is of the mean over {rows[0]['seeds']} seeds (Student's t): how much "
            "another set of trainings would differ."
        )
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if overlap(a, b)]
    if pairs:
        names = "; ".join(f"{a['member']} and {b['member']}" for a, b in pairs)
        yield f"Overlapping intervals, so the order is not settled: {names}."


def _fairness_notes(rows: list[Row], config: dict[str, Any]) -> Iterator[str]:
    uneven = [
        f"{row['member']} {row['parameter_ratio']:.2f}"
        for row in rows
        if row["parameter_ratio"] and abs(row["parameter_ratio"] - 1) > CLOSE
    ]
    if uneven:
        yield (
            f"Not of equal size: parameters over those of the first member are {listed(uneven)}. "
            "With --match parameters the width is chosen to make them equal."
        )
    if config["training"]["budget_seconds"] is not None and len(rows) > 1:
        steps = [f"{row['member']} {row['steps']:,.0f}" for row in rows]
        yield (
            f"Equal seconds are not equal steps ({', '.join(steps)}): on another machine the order "
            "can differ. With --budget-tokens every member sees the same tokens."
        )
    if not config["lr_grid"] and len(rows) > 1:
        yield (
            f"All were trained with one learning rate, {config['training']['lr']:g}; a member may "
            "do better with its own (--lr-grid)."
        )


def _preset_notes(rows: list[Row]) -> Iterator[str]:
    """What presets change besides their genes, where not all of them do."""
    own = {row["member"]: row.get("preset", {}) for row in rows}
    names = {name for preset in own.values() for name in preset}
    alike = {n for n in names if all(own[m].get(n) == next(iter(own.values())).get(n) for m in own)}
    changes = {
        member: [f"{name} {value}" for name, value in preset.items() if name not in alike]
        for member, preset in own.items()
    }
    differing = [f"{member} ({listed(what)})" for member, what in changes.items() if what]
    if differing:
        yield (
            f"Published presets differ in more than their gene: {'; '.join(differing)}. Give such "
            "an option for all (--block.dropout 0), or for one member with --options, to compare "
            "genes alone."
        )


def _still_learning(results: Results) -> list[str]:
    """Members whose quality moved by more than half an interval in the last third."""
    metric, names = results["metric"], []
    for row in finished(results):
        run = next(r for r in results["runs"] if r["member"] == row["member"])
        seen = [(e["tokens"], quality_of(e["evaluation"], metric)) for e in run["evaluations"]]
        earlier = [value for tokens, value in seen if tokens <= 2 / 3 * seen[-1][0]]
        around = interval_of(run["evaluation"], metric) if run["status"] == "done" else None
        if not earlier or around is None:
            continue
        if abs(earlier[-1] - seen[-1][1]) > (around[1] - around[0]) / 2:
            names.append(row["member"])
    return names
