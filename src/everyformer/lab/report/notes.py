"""Notes that a reader must know before deciding from the table of a comparison."""

import math
from collections.abc import Iterator
from typing import Any

from everyformer.core.measures import METRICS
from everyformer.core.wording import NOT_WRITING, join_first, join_names
from everyformer.lab.compare.contrasts import MOST_SEEDS, POWER, seeds_for
from everyformer.lab.compare.results import (
    Results,
    TableRow,
    finished,
    interval_of,
    quality_of,
)
from everyformer.lab.compare.verdict import SCATTER
from everyformer.lab.report.words import several

CLOSE = 0.10
"""parameter counts further apart than this are pointed out"""


def notes(results: Results) -> list[str]:
    """Notes that a reader must know before deciding from the table, in short sentences."""
    rows, config = finished(results), results["config"]
    if not rows:
        return []
    return [
        *_leaks(rows),
        *_same_functions(rows),
        *_ended(results, rows),
        *_baseline(results, rows),
        *_intervals(rows),
        *_smallest(results, rows),
        *_power(results, rows),
        *_edges(rows, config),
        *_fairness(rows, config),
        *_drifts(rows, config),
        *_presets(rows),
        *_still_learning(results, rows),
    ]


def _leaks(rows: list[TableRow]) -> Iterator[str]:
    """One note for all members that leak for the same reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["leaks"]:
            reasons.setdefault(row["leaks"], []).append(row["member"])
    for why, names in reasons.items():
        them = several(names, "it", "them")
        yield f"* The loss of {join_first(names)} is {NOT_WRITING}: {why}. Do not rank {them}."


def _same_functions(rows: list[TableRow]) -> Iterator[str]:
    """Each set of members whose losses do not differ."""
    order = {row["member"]: n for n, row in enumerate(rows)}
    sets = [sorted((r["member"], *r["same_as"]), key=lambda m: order.get(m, 0)) for r in rows]
    for names in dict.fromkeys(tuple(names) for names in sets if len(names) > 1):
        yield (
            f"{join_first(names)} gave the same loss to the last digit: at this length they "
            "compute the same function."
        )


def _ended(results: Results, rows: list[TableRow]) -> Iterator[str]:
    """Which of three reasons ended a comparison that was to go on until it was settled."""
    why, most = results["verdict"].get("ended"), results["config"]["until_settled"]
    so_far = f"It ended after {rows[0]['seeds']} of at most {most} seeds, since"
    if why == "winner":
        yield f"{so_far} no other shares the first tier."
    elif why == "seeds":
        yield f"All {most} seeds are spent, and the winner is not settled."
    elif why == "margin":
        within = METRICS[results["metric"]].difference(results["config"]["margin"])
        yield (
            f"{so_far} {join_names(results['verdict']['best'])} are shown to be within {within} of "
            "each other (two one-sided tests)."
        )


def _baseline(results: Results, rows: list[TableRow]) -> Iterator[str]:
    """The quality of an answer that reads nothing, where it is known."""
    base = next((row for row in rows if row["baseline"] is not None), None)
    if base is not None:
        value = METRICS[results["metric"]].sentence(base["baseline"] or 0.0)
        words = base["baseline_words"]
        yield f"{words[0].upper()}{words[1:]}, which takes no model, comes to {value}."


def _intervals(rows: list[TableRow]) -> Iterator[str]:
    letters = [letter for row in rows for letter in row["letters"]]
    if len(set(letters)) < len(letters):
        yield (
            "Tiers: members with a letter in common cannot be told apart; others are, seed for "
            "seed (Student's paired test, corrected for the number of pairs)."
        )
    if rows[0]["interval_of"] != "seeds":
        yield (
            "One seed only: the interval is over validation sequences. It says how sure the "
            "measurement of this one trained model is, not how another training would turn out."
        )


def _smallest(results: Results, rows: list[TableRow]) -> Iterator[str]:
    """The smallest difference that would have shown, and what half of it would take; none where
    nothing is known of training's luck."""
    seen, metric, seeds = results["verdict"]["smallest"], results["metric"], rows[0]["seeds"]
    if not seen:
        return
    written = METRICS[metric].difference
    if METRICS[metric].share and seen >= 1:
        yield f"With {seeds} seeds no difference could have shown."
        return
    half = seeds_for(rows, metric, seen / 2, results["verdict"].get("looks", 1))
    more = f"; {half - seeds} more for {written(seen / 2)}" if half else ""
    # a pair that scatters less needs less
    shown = [one for one in results["contrasts"] if one["apart"] and one["difference"] < seen]
    of = ""
    if shown:
        one = min(shown, key=lambda one: one["difference"])
        pair = f"{one['better']} and {one['worse']}"
        of = f" in a usual pair ({written(one['difference'])} between {pair} did)"
    yield f"With {seeds} seeds a difference below {written(seen)} would not show{of}{more}."


def _power(results: Results, rows: list[TableRow]) -> Iterator[str]:
    """Seeds that it takes to see the difference that was asked about; none if none was."""
    power = results["verdict"].get("power")
    if not power or len(rows) < 2:
        return
    written = METRICS[results["metric"]].difference(power["difference"])
    seeds, had = power["seeds"], rows[0]["seeds"]
    if not results["contrasts"]:
        yield f"How many seeds see {written} is not known from one training each (--seeds 3)."
    elif seeds is None:
        yield f"To see {written} takes more than {MOST_SEEDS} seeds."
    else:
        more = f"{seeds - had} more" if seeds > had else "which it had"
        yield f"To see {written} in {POWER:.0%} of comparisons takes {seeds} seeds, {more}."


def _edges(rows: list[TableRow], config: dict[str, Any]) -> Iterator[str]:
    """Each end of the grid that was the best learning rate of some member."""
    grid = config["lr_grid"]
    ends = ((max(grid), "largest", True), (min(grid), "smallest", False)) if grid else ()
    for lr, which, up in ends:
        names = [row["member"] for row in rows if row.get("lr") == lr]
        if names and len(set(grid)) > 1:
            yield (
                f"The best learning rate of {join_names(names)} is {lr:g}, the {which} tried; try "
                f"{', '.join(beyond(lr, up=up))} (--lr-grid)."
            )


def beyond(lr: float, *, up: bool) -> list[str]:
    """The next two of ... 1e-3, 3e-3, 1e-2 ... that are at least twice a rate, or half of it."""
    power, factor = math.floor(math.log10(lr)), 1 if up else -1
    steps = [f"{digit}e{n}" for n in range(power - 2, power + 3) for digit in (1, 3)][::factor]
    return [step for step in steps if (float(step) / lr) ** factor > 1.99][:2]


def _fairness(rows: list[TableRow], config: dict[str, Any]) -> Iterator[str]:
    uneven = [
        f"{row['member']} {row['parameter_ratio']:.2f}"
        for row in rows
        if row["parameter_ratio"] and abs(row["parameter_ratio"] - 1) > CLOSE
    ]
    if uneven:
        yield (
            "Not of equal size: parameters over those of the first member are "
            f"{join_first(uneven)}. With --match parameters the width is chosen to make them equal."
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
        found = f"{join_first(half)} in bfloat16, the others in float32"
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


def _drifts(rows: list[TableRow], config: dict[str, Any]) -> Iterator[str]:
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
            f"with all others (as a share of that speed: {join_first(far)}): the machine or the "
            "member changed meanwhile."
        )


def _presets(rows: list[TableRow]) -> Iterator[str]:
    """Changes by presets besides their genes, where not all of them do."""
    presets = {row["member"]: row.get("preset", {}) for row in rows}
    changes = {
        member: [
            f"{name} {value}"
            for name, value in preset.items()
            if any(other.get(name) != value for other in presets.values())
        ]
        for member, preset in presets.items()
    }
    differing = [f"{member} ({join_names(what)})" for member, what in changes.items() if what]
    if differing:
        yield (
            f"Published presets differ in more than their gene: {join_first(differing)}. Give such "
            "an option for all (--model.block.dropout 0), or for one member with --options, to "
            "compare genes alone."
        )


def _still_learning(results: Results, rows: list[TableRow]) -> Iterator[str]:
    """Members that became better by more than half an interval in the last third."""
    metric, names = results["metric"], []
    for row in rows:
        run = next(r for r in results["runs"] if r["member"] == row["member"])
        seen = [(e["tokens"], quality_of(e["evaluation"], metric)) for e in run["evaluations"]]
        earlier = [value for tokens, value in seen if tokens <= 2 / 3 * seen[-1][0]]
        around = interval_of(run["evaluation"], metric) if run["status"] == "done" else None
        if earlier and around is not None:
            gain = METRICS[metric].sign * (earlier[-1] - seen[-1][1])
            names += [row["member"]] * (gain > (around[1] - around[0]) / 2)
    if names:
        yield (
            f"{join_first(names)} still improved over the last third of training by more than the "
            "measurement is unsure: a longer budget can change the order."
        )
