"""Facts that stand beside the answer: how sure it is, what it is worth, what it costs, what now."""

import shlex

from everyformer.comparison.metrics import METRICS
from everyformer.comparison.results import Results, finished
from everyformer.core.wording import counted
from everyformer.report.headline import doubts
from everyformer.report.remedies import remedies
from everyformer.report.words import brief, interval, quality
from sequence_laws.memory import size


def facts(results: Results) -> list[tuple[str, str]]:
    """Names and what they come to, of the first member of the table; none where none is trained."""
    rows, metric = finished(results), METRICS[results["metric"]]
    if not rows:
        return []
    first, known = rows[0], remedies(results)
    over = counted(first["seeds"], "seed") if first["seeds"] > 1 else "validation sequences"
    sure = f"{first['member']} {interval(first, results['metric'])} (95% interval over {over})"
    sure += f"; {counted(len(known), 'doubt')} below, with what helps" if known else ""
    result = [("How sure", sure)]
    if first["baseline"] is not None:
        worth = f"{quality(first['quality'], results['metric'])} beside "
        worth += f"{metric.written(first['baseline'])} of {first['baseline_words']}"
        result.append(("What it is worth", worth))
    costs = [f"{first['parameters']:,} parameters"]
    if first["tokens_per_second"]:
        costs.append(f"{first['tokens_per_second']:,.0f} tokens a second in training")
    if first["peak_bytes"]:
        costs.append(f"{size(first['peak_bytes'])} of memory")
    if first["decode_ms"]:
        context = max(first["decode_ms"], key=int)
        costs.append(f"{brief(first['decode_ms'][context])} ms to write a token")
    result.append((f"What {first['member']} costs", ", ".join(costs)))
    return result


def now(results: Results) -> tuple[str, str]:
    """The next step, and its command: go on, mend the first doubt, or use the best."""
    if results["waiting"]:
        command = f"everyformer compare --resume --out {shlex.quote(str(results['config']['out']))}"
        return "go on with it", command
    words, command = results["next"][0] if results["next"] else ("", "")
    if doubts(results):
        # of what is no better than nothing the first step is a longer training
        return remedies(results)[0][1], "" if results["verdict"]["useful"] else command
    return words, command
