"""Facts of a comparison's report: how sure its answer is, what it costs, each doubt with its
remedy, and what to do next."""

import math
import shlex
from collections.abc import Callable

from everyformer.core.measures import METRICS
from everyformer.core.wording import pluralise
from everyformer.lab.compare.results import Results, finished
from everyformer.lab.compare.verdict import FEWEST_STEPS
from everyformer.lab.report.headline import doubts
from everyformer.lab.report.words import brief, interval, quality
from everyformer.training.config import BUDGETS
from sequence_laws.memory import size

HARDLY = 5
"""times the budget from which on a smaller model is named beside it"""


def facts(results: Results) -> list[tuple[str, str]]:
    """Names and what they come to, of the first member of the table; none where none is trained."""
    rows, metric = finished(results), METRICS[results["metric"]]
    if not rows:
        return []
    first, known = rows[0], remedies(results)
    over = pluralise(first["seeds"], "seed") if first["seeds"] > 1 else "validation sequences"
    sure = f"{first['member']} {interval(first, results['metric'])} (95% interval over {over})"
    sure += f"; {pluralise(len(known), 'doubt')} below, with what helps" if known else ""
    result = [("How sure", sure)]
    if first["baseline"] is not None:
        against = f"{quality(first['quality'], results['metric'])} against "
        against += f"{metric.written(first['baseline'])} of {first['baseline_words']}"
        result.append(("Against a baseline", against))
    costs = [f"{first['parameters']:,} parameters"]
    if first["tokens_per_second"]:
        costs.append(f"{first['tokens_per_second']:,.0f} tokens a second in training")
    if first["peak_bytes"]:
        costs.append(f"{size(first['peak_bytes'])} of memory")
    if first["decode_ms"]:
        context = max(first["decode_ms"], key=int)
        costs.append(f"{brief(first['decode_ms'][context])} ms to write a token")
    return [*result, (f"What {first['member']} costs", ", ".join(costs))]


def now(results: Results) -> tuple[str, str]:
    """The next step, and its command: go on, mend the first doubt, or use the best."""
    if results["waiting"]:
        command = f"everyformer compare --resume --out {shlex.quote(str(results['config']['out']))}"
        return "continue it", command
    words, command = results["next"][0] if results["next"] else ("", "")
    if doubts(results):
        # of what is no better than nothing the first step is a longer training
        return remedies(results)[0][1], "" if results["verdict"]["useful"] else command
    return words, command


def remedies(results: Results) -> list[tuple[str, str]]:
    """Doubts, those of one remedy together, with the remedy; the one of a single seed last. A doubt
    that brings its own advice behind a semicolon is parted there."""
    pairs: dict[str, list[str]] = {}
    for doubt in doubts(results):
        text, _, advice = doubt.partition("; ")
        known = next((remedy for words, remedy in _REMEDIES.items() if words in text), None)
        pairs.setdefault(advice or ("" if known is None else known(results)), []).append(text)
    rows = finished(results)
    if len(rows) > 1 and rows[0]["interval_of"] != "seeds":
        pairs["repeat with --seeds 3"] = ["every member was trained once, with one seed"]
    return [("; ".join(text), remedy) for remedy, text in pairs.items()]


def _quiet(results: Results) -> str:
    tokens = _times(results) * max(row["tokens"] for row in finished(results))
    return (
        f"repeat while nothing else runs, or with --budget-tokens {tokens:.0f}, on which a busy "
        "machine has no influence"
    )


def _times(results: Results) -> int:
    """Times the budget that give the slowest twice the fewest steps; 1: it has them."""
    fewest = min(row["steps"] for row in finished(results))
    return 1 if fewest >= FEWEST_STEPS else math.ceil(2 * FEWEST_STEPS / max(fewest, 1.0))


def _longer(results: Results) -> str:
    """A budget in which the slowest makes enough steps; a smaller model too, whose step takes about
    an eighth of the time, where it made hardly any."""
    times, training = _times(results), results["config"]["training"]
    if times == 1:
        return "train for longer, or larger models"
    kind = next((kind for kind in BUDGETS if training[f"budget_{kind}"] is not None), None)
    text = f"give more steps: --steps {times * (training['steps'] or 0)}"
    if kind is not None:
        amount = times * training[f"budget_{kind}"]
        text = f"give {times} times the budget: --budget-{kind} {amount:g}"
    sizes, heads = results["config"]["model"], results["config"]["model"]["heads"]
    width, layers = heads * max(1, sizes["width"] // heads // 2), max(1, sizes["layers"] // 2)
    return text + (
        f", or a smaller model: --width {width} --layers {layers}" if times >= HARDLY else ""
    )


_REMEDIES: dict[str, Callable[[Results], str]] = {
    "the machine had other work": _quiet,
    "speeds scattered": _quiet,
    "could not be measured beforehand": _quiet,
    "steps were made": _longer,
    "no member is surely better": _longer,
    "the loss of": lambda results: "compare it apart, since it does not write",
}
"""remedies by words of the doubt (`comparison.verdict`, `report.headline`)"""
