"""The head of a comparison's page: who is best, or why nobody may be called that.

No winner is named while members wait, where the verdict has doubts, among members that share the
first tier, or where the numbers that are shown do not differ.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence

from everyformer.comparison.contrasts import MOST_SEEDS, POWER, seeds_for
from everyformer.comparison.metrics import METRICS
from everyformer.comparison.results import Interval, Results, TableRow, finished
from everyformer.comparison.summary import NOT_WRITING
from everyformer.core.wording import few, listed
from everyformer.report.words import apart, brief, budget, contexts_of, quality, several
from sequence_laws.memory import size
from sequence_laws.names import is_target


def answer(results: Results, *, short: bool = False) -> str:
    """The best member and for what: quality after the budget, speed, cost of a token when long.

    ``short``: doubts by their first words, where they stand in full, with what helps, below.
    """
    rows = finished(results)
    if not rows:
        return progress(results) or (
            "No member could be trained: the table gives the reason for each."
        )
    sentences = [progress(results), *_seers(rows)]
    sentences += [_standing(results, rows, short), *same_functions(rows), *_edges(results, rows)]
    sentences.append(_ended(results, rows))
    best = winners(results)
    sentences += [
        f"{row['member']} {limit}."
        for row in rows
        if row["member"] in best
        for limit in row["limits"]
    ]
    sentences += [_smallest(results, rows), _power(results, rows)]
    if decided(results):
        sentences += _fastest(rows)
    return " ".join(filter(None, sentences))


def _seers(rows: Sequence[TableRow]) -> Iterator[str]:
    """A sentence about each model of someone else that sees the future: it would win anywhere."""
    for row in rows:
        if row["leaks"] and is_target(row["member"]):
            yield (
                f"{row['member']} sees the future, so that its loss measures nothing and its place "
                f"is none: {row['leaks']}."
            )


def progress(results: Results) -> str:
    """Progress of a comparison that is not finished; else ''."""
    waiting = results["waiting"]
    if not waiting:
        return ""
    members, done = results["config"]["members"], len(finished(results))
    failed = [row["member"] for row in results["rows"] if row["status"] == "failed"]
    lost = f", {len(failed)} failed ({few(failed)})" if failed else ""
    return (
        f"{done} of {len(members)} members {'is' if done == 1 else 'are'} trained{lost}; "
        f"{few(waiting)} {several(waiting, 'is', 'are')} waiting."
    )


def decided(results: Results) -> bool:
    """True if numbers may be called the best: all members are trained, and nothing is doubted."""
    return not results["waiting"] and not doubts(results)


def doubts(results: Results) -> list[str]:
    """Reasons to name no winner: those of the verdict, and losses that are not of writing."""
    leaking = [
        row["member"]
        for row in finished(results)
        if row["leaks"] and row["member"] in results["verdict"]["best"]
    ]
    result = list(results["verdict"]["doubts"])
    if leaking:
        result.append(f"the loss of {few(leaking)} is {NOT_WRITING}")
    return result


def winners(results: Results) -> list[str]:
    """Members that may be called the best: one, or several that are the same function; or none."""
    rows, best = finished(results), results["verdict"]["best"]
    if not decided(results) or len(rows) < 2 or not best:
        return []
    first, metric = rows[0], results["metric"]
    alike = {first["member"], *first["same_as"]}
    others = [row for row in rows if row["member"] not in alike]
    tied = others and quality(others[0]["quality"], metric) == quality(first["quality"], metric)
    return best if set(best) <= alike and not tied else []


def same_functions(rows: Sequence[TableRow]) -> list[str]:
    """A sentence about each set of members whose losses do not differ."""
    order = {row["member"]: n for n, row in enumerate(rows)}
    alike = dict.fromkeys(
        tuple(sorted((row["member"], *row["same_as"]), key=lambda name: order.get(name, 0)))
        for row in rows
        if row["same_as"]
    )
    return [
        f"{few(names)} gave the same loss to the last digit: at this length they compute the same "
        "function."
        for names in alike
    ]


def _edges(results: Results, rows: Sequence[TableRow]) -> Iterator[str]:
    """A sentence about each end of the grid that was the best learning rate of some member."""
    grid = results["config"]["lr_grid"]
    ends = ((max(grid), "largest", True), (min(grid), "smallest", False)) if grid else ()
    for lr, which, up in ends:
        names = [row["member"] for row in rows if row.get("lr") == lr]
        if names and len(set(grid)) > 1:
            yield (
                f"The best learning rate of {listed(names)} is {lr:g}, the {which} tried; try "
                f"{', '.join(beyond(lr, up=up))} (--lr-grid)."
            )


def beyond(lr: float, *, up: bool) -> list[str]:
    """The next two of ... 1e-3, 3e-3, 1e-2 ... that are at least twice a rate, or half of it."""
    power, factor = math.floor(math.log10(lr)), 1 if up else -1
    steps = [f"{digit}e{n}" for n in range(power - 2, power + 3) for digit in (1, 3)][::factor]
    return [step for step in steps if (float(step) / lr) ** factor > 1.99][:2]


def _standing(results: Results, rows: list[TableRow], short: bool) -> str:
    """The order, and what it is worth."""
    metric = METRICS[results["metric"]]
    first, best = rows[0], winners(results)
    top = metric.sentence(first["quality"])
    spent = f"after {budget(results['config'])} of training"
    if not decided(results):
        reasons = doubts(results)
        if short:
            reasons = [re.sub(r" \(.*?\)", "", one.partition("; ")[0]) for one in reasons]
        order = [f"{row['member']} {metric.written(row['quality'])}" for row in rows]
        text = f" Not settled: {'; '.join(reasons)}." if reasons else ""
        numbers = f"{metric.unit}, {metric.better} is better"
        return f"In the order of this table: {few(order)} ({numbers}).{text}"
    if len(rows) == 1:
        return f"Only {first['member']} was trained to the end: {top}."
    if best:
        who = f"{best[0]} is best" if len(best) == 1 else f"{listed(best)} share the first place"
        who += f" {spent},"
        others = [row for row in rows if row["member"] not in best]
        if not others:
            return f"{who} with {top}."
        second = f"{others[0]['member']} follows with {metric.written(others[0]['quality'])}"
        of = "the best" if len(best) == 1 else "theirs"
        sure = f"every other is told apart from {of} ({_sure(results)})"
        return f"{who} with {top}; {second}, and {sure}."
    return _unsettled(results, rows, short)


def _sure(results: Results) -> str:
    """Sureness of the first tier being apart from the others."""
    pairs, best = results["contrasts"], results["verdict"]["best"]
    largest = max(
        one["probability"] for one in pairs if (one["better"] in best) != (one["worse"] in best)
    )
    seeds = finished(results)[0]["seeds"]
    family = f", corrected for {len(pairs)} pairs" if len(pairs) > 1 else ""
    return f"{seeds} seeds, p {'< 0.001' if largest < 0.001 else f'= {largest:.2g}'}{family}"


def _smallest(results: Results, rows: list[TableRow]) -> str:
    """The smallest difference that would have shown, and what half of it would take; '' where
    nothing is known of training's luck."""
    seen, metric = results["verdict"]["smallest"], results["metric"]
    if not seen:
        return ""
    seeds = rows[0]["seeds"]
    written = METRICS[metric].difference
    if METRICS[metric].share and seen >= 1:
        return f"With {seeds} seeds no difference could have shown."
    looks = results["verdict"].get("looks", 1)
    half = seeds_for(rows, metric, seen / 2, looks)
    more = f"; {half - seeds} more for {written(seen / 2)}" if half else ""
    of = ""
    # a pair that scatters less needs less
    shown = [one for one in results["contrasts"] if one["apart"] and one["difference"] < seen]
    if shown:
        one = min(shown, key=lambda one: one["difference"])
        pair = f"{one['better']} and {one['worse']}"
        of = f" in a usual pair ({written(one['difference'])} between {pair} did)"
    return f"With {seeds} seeds a difference below {written(seen)} would not show{of}{more}."


def _power(results: Results, rows: list[TableRow]) -> str:
    """Seeds that it takes to see the difference that was asked about; '' if none was."""
    asked = results["verdict"].get("power")
    if not asked or len(rows) < 2:
        return ""
    written = METRICS[results["metric"]].difference(asked["difference"])
    seeds, now = asked["seeds"], rows[0]["seeds"]
    if not results["contrasts"]:
        return f"How many seeds see {written} is not known from one training each (--seeds 3)."
    if seeds is None:
        return f"To see {written} takes more than {MOST_SEEDS} seeds."
    more = f", {seeds - now} more" if seeds > now else ", which it had"
    return f"To see {written} in {POWER:.0%} of comparisons takes {seeds} seeds{more}."


def _ended(results: Results, rows: list[TableRow]) -> str:
    """The one of three reasons that ended a comparison that was to go on until it was settled."""
    why = results["verdict"].get("ended")
    if why is None:
        return ""
    most, margin = results["config"]["until_settled"], results["config"]["margin"]
    seeds, best = rows[0]["seeds"], results["verdict"]["best"]
    if why == "winner":
        return (
            f"It ended after {seeds} of at most {most} seeds, since no other shares the first tier."
        )
    if why == "seeds":
        return f"All {most} seeds are spent, and the winner is not settled."
    within = METRICS[results["metric"]].difference(margin)
    return (
        f"It ended after {seeds} of at most {most} seeds, since {listed(best)} are shown to be "
        f"within {within} of each other (two one-sided tests)."
    )


def _unsettled(results: Results, rows: list[TableRow], short: bool) -> str:
    """Members that share the first tier; equal numbers are a tie."""
    metric, best = METRICS[results["metric"]], results["verdict"]["best"]
    first = rows[0]
    if not results["contrasts"]:
        order = few([f"{row['member']} {metric.written(row['quality'])}" for row in rows])
        helps = "" if short else " (--seeds 3 does)"
        return (
            f"In the order of this table: {order} ({metric.unit}, {metric.better} is better). Not "
            f"settled: one training each says nothing of training's luck{helps}."
        )
    number = metric.written(first["quality"])
    tied = [row["member"] for row in rows if metric.written(row["quality"]) == number]
    near = [row["member"] for row in rows if row["member"] in best and row["member"] not in tied]
    if results["verdict"].get("ended") == "margin":
        within = metric.difference(results["config"]["margin"])
        return (
            f"{listed(best)} are as good as equal, within {within}: {first['member']} stands first "
            f"in the table with {metric.sentence(first['quality'])}."
        )
    if len(tied) > 1:
        text = f"{few(tied)} tie at {metric.sentence(first['quality'])}"
        if near:
            text += f", and {few(near)} {several(near, 'is', 'are')} not told apart from them"
        return f"{text}: which of them is best is not settled by this run."
    return (
        f"{first['member']} stands first in the table with {metric.sentence(first['quality'])}. "
        f"Not settled between {few(best)}: {first['seeds']} seeds do not tell them apart."
    )


def _fastest(rows: list[TableRow]) -> Iterator[str]:
    """Fastest members in training and in writing, where measurements tell it from all others, and
    those that keep least of a long text."""
    timed = [row for row in rows if row["tokens_per_second"] is not None]
    trained = _first(
        timed, lambda row: row["speed_spread"], lambda row: -(row["tokens_per_second"] or 0.0)
    )
    if trained:
        speed = f"{trained[0]['tokens_per_second']:,.0f} tokens per second"
        yield f"{_names(trained)} {_verb(trained, 'train')} fastest, at {speed}."
    contexts = contexts_of(rows)
    if not contexts:
        return
    long = contexts[-1]
    able = [row for row in rows if long in row["decode_ms"]]
    writes = _first(
        able, lambda row: row["decode_spread"].get(long), lambda r: r["decode_ms"][long]
    )
    if writes:
        spent = brief(writes[0]["decode_ms"][long])
        yield (
            f"{_names(writes)} {_verb(writes, 'write')} fastest after {int(long):,} tokens, "
            f"{spent} ms each."
        )
    kept = {row["member"]: row.get("decode_bytes", {}).get(long) for row in rows}
    sizes = {member: count for member, count in kept.items() if count is not None}
    least = [member for member, count in sizes.items() if count == min(sizes.values())]
    if least and 2 * len(least) <= len(sizes):
        yield (
            f"{few(least)} {several(least, 'keeps', 'keep')} least memory a stream after "
            f"{int(long):,} tokens, {size(sizes[least[0]])}."
        )


def _first(
    rows: list[TableRow],
    spread: Callable[[TableRow], Interval | None],
    cost: Callable[[TableRow], float],
) -> list[TableRow]:
    """The row of least ``cost`` with those of the same function, if no other's spread overlaps with
    its own; else none."""
    if not rows:
        return []
    best = min(rows, key=cost)
    equal = [row for row in rows if row["member"] in best["same_as"]]
    others = [row for row in rows if row is not best and row not in equal]
    surely = others and all(apart(spread(best), spread(row)) for row in others)
    return [best, *equal] if surely else []


def _names(rows: list[TableRow]) -> str:
    return listed([row["member"] for row in rows])


def _verb(rows: list[TableRow], verb: str) -> str:
    return verb if len(rows) > 1 else f"{verb}s"
