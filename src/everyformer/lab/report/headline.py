"""The head of a comparison's page: who is best, or why nobody may be called that.

It has four outcomes: a winner, not settled between some, not finished, nothing to be named. No
winner is named while members wait, where the verdict has doubts, among members that share the
first tier, or where the numbers that are shown do not differ.
"""

import re

from everyformer.core.measures import METRICS
from everyformer.core.wording import NOT_WRITING, join_first, join_names
from everyformer.lab.compare.results import Results, TableRow, finished
from everyformer.lab.report.words import budget, quality, several


def answer(results: Results) -> str:
    """The conclusion that the numbers support on which member is best; all else is in notes."""
    rows = finished(results)
    if results["waiting"]:
        return " ".join([_progress(results), *([_order(results, rows)] if rows else [])])
    if not rows:
        return "No member could be trained: the table gives the reason for each."
    if reasons := doubts(results):
        first = re.sub(r" \(.*?\)", "", reasons[0].partition("; ")[0])
        more = f"; {len(reasons) - 1} more below" if len(reasons) > 1 else ""
        return f"{_order(results, rows)} Not settled: {first}{more}."
    return _won(results, rows) if winners(results) else _unsettled(results, rows)


def _progress(results: Results) -> str:
    waiting, rows = results["waiting"], results["rows"]
    done, failed = len(finished(results)), [r["member"] for r in rows if r["status"] == "failed"]
    lost = f", {len(failed)} failed ({join_first(failed)})" if failed else ""
    return (
        f"{done} of {len(results['config']['members'])} members {'is' if done == 1 else 'are'} "
        f"trained{lost}; {join_first(waiting)} {several(waiting, 'is', 'are')} waiting."
    )


def _order(results: Results, rows: list[TableRow]) -> str:
    metric = METRICS[results["metric"]]
    order = join_first([f"{row['member']} {metric.written(row['quality'])}" for row in rows])
    return f"In the order of this table: {order} ({metric.unit}, {metric.better} is better)."


def decided(results: Results) -> bool:
    """True if numbers may be called the best: all members are trained, and nothing is doubted."""
    return not results["waiting"] and not doubts(results)


def doubts(results: Results) -> list[str]:
    """Reasons to name no winner: losses that are not of writing, and those of the verdict."""
    best = results["verdict"]["best"]
    leaking = [row["member"] for row in finished(results) if row["leaks"] and row["member"] in best]
    warnings = [f"the loss of {join_first(leaking)} is {NOT_WRITING}"] if leaking else []
    return [*warnings, *results["verdict"]["doubts"]]


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


def _won(results: Results, rows: list[TableRow]) -> str:
    """One winner, or several that are one function; who follows, and how sure that is."""
    metric, best, pairs = METRICS[results["metric"]], winners(results), results["contrasts"]
    one, others = len(best) == 1, [row for row in rows if row["member"] not in best]
    who = f"{best[0]} is best" if one else f"{join_names(best)}, which are one function, are best"
    text = f"{who} after {budget(results['config'])} of training, with "
    text += metric.sentence(rows[0]["quality"])
    if not others:
        return f"{text}."
    apart = [p["probability"] for p in pairs if (p["better"] in best) != (p["worse"] in best)]
    largest = max(apart)
    family = f", corrected for {len(pairs)} pairs" if len(pairs) > 1 else ""
    return (
        f"{text}; {others[0]['member']} follows with {metric.written(others[0]['quality'])}, and "
        f"every other is told apart from {'the best' if one else 'theirs'} ({rows[0]['seeds']} "
        f"seeds, p {'< 0.001' if largest < 0.001 else f'= {largest:.2g}'}{family})."
    )


def _unsettled(results: Results, rows: list[TableRow]) -> str:
    """Members that share the first tier, with the reason; equal numbers are a tie."""
    metric, best, first = METRICS[results["metric"]], results["verdict"]["best"], rows[0]
    top = metric.sentence(first["quality"])
    if len(rows) == 1:
        return f"Only {first['member']} was trained to the end, with {top}."
    number = metric.written(first["quality"])
    tied = [row["member"] for row in rows if metric.written(row["quality"]) == number]
    near = [row["member"] for row in rows if row["member"] in best and row["member"] not in tied]
    why = f"{first['seeds']} seeds do not tell them apart"
    if not results["contrasts"]:
        why = "one training each says nothing of training's luck"
    elif results["verdict"].get("ended") == "margin":
        why = f"they are as good as equal, within {metric.difference(results['config']['margin'])}"
    elif len(tied) > 1:
        also = f", and {join_first(near)} {several(near, 'is', 'are')} not told apart from them"
        best, why = [*tied, *near], f"{join_first(tied)} tie" + (also if near else "")
    return (
        f"Not settled between {join_first(best)}, of which {first['member']} stands first in the "
        f"table with {top}: {why}."
    )
