"""Numbers and names of a comparison as its sentences, tables and captions write them."""

from collections.abc import Callable, Sequence
from typing import Any

from everyformer.core.measures import METRICS
from everyformer.core.wording import join_names
from everyformer.lab.bench.points import BASELINE, is_settled
from everyformer.lab.compare.results import Interval, Metric, Results, TableRow, points, task_of
from everyformer.training.config import BUDGETS


def quality(value: float, metric: Metric) -> str:
    """A quality as a table shows it."""
    return METRICS[metric].written(value)


def interval(row: TableRow, metric: Metric) -> str:
    """A row's 95% interval."""
    return between(row["interval"], METRICS[metric].written) or "unknown"


def faster_from(row: TableRow, results: Results) -> str:
    """The length from which one layer of a member is surely faster than attention, or why none."""
    if row["member"] == BASELINE:
        return "baseline"
    measured = points(results)
    settled = is_settled(measured, row["member"])
    if settled is None:
        return "not measured"
    start = row.get("beats_attention_from")
    if start:
        return f"{start:,}"
    longest = max(p.length for p in measured if p.member == row["member"] and p.seconds)
    return f"not up to {longest:,}" if settled else f"not settled up to {longest:,}"


def contexts_of(rows: Sequence[TableRow]) -> list[str]:
    """Numbers of tokens after which some of ``rows`` were timed, ascending."""
    return sorted({context for row in rows for context in row["decode_ms"]}, key=int)


def apart(a: Interval | None, b: Interval | None) -> bool:
    """True if two intervals share no value; unknown ones could."""
    return a is not None and b is not None and (a[1] < b[0] or b[1] < a[0])


def count(number: float) -> str:
    """1234567 as 1.23 million."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,.0f}"


def brief(number: float) -> str:
    """Three digits at least, and no powers of ten: 0.797, 15.9, 1,234."""
    return f"{number:.3g}" if abs(number) < 100 else f"{number:,.0f}"


def between(ends: Interval | None, written: Callable[[float], str] = brief) -> str:
    """The ends of an interval; '' where they are not known."""
    return "" if ends is None else f"{written(ends[0])} to {written(ends[1])}"


def several(names: Sequence[str], one: str, more: str) -> str:
    """The verb of a subject: ``one`` of a single name, else ``more``."""
    return one if len(names) == 1 else more


def budget(config: dict[str, Any]) -> str:
    """The budget of each member."""
    training = config["training"]
    for kind in BUDGETS:
        if (amount := training[f"budget_{kind}"]) is not None:
            unit = "FLOPs" if kind == "flops" else kind
            return f"{amount:,.6g} {unit}" if amount < 1e6 else f"{count(amount)} {unit}"
    return f"{training['steps']:,} steps"


def title(results: Results) -> str:
    """The members compared, in a line: up to four names, else their number."""
    return f"{_who(results, 'and')} on {results['data']['name']}"


def question(results: Results) -> str:
    """The question of the comparison."""
    goal = task_of(results["data"]).goal
    equal = "parameters" if results["config"]["match"] == "parameters" else "width"
    return (
        f"Which of {_who(results, 'or')} {goal} {results['data']['name']} best, given "
        f"the same data, equal {equal} and {budget(results['config'])} of training each?"
    )


def _who(results: Results, word: str) -> str:
    members = results["config"]["members"]
    return join_names(members, word) if len(members) <= 4 else f"{len(members)} members"


_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""control character -> its picture"""


def visible(value: Any) -> str:
    """Any text with control characters made visible, and half surrogates as question marks."""
    text = str(value).replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
    return text.translate(_VISIBLE)
