"""`everyformer compare A B ...`: the main job."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

import tyro

from everyformer.cli.console import emit, size, table
from everyformer.cli.parsing import SHORT, parse, peek, say
from everyformer.comparison.config import CompareConfig


@dataclasses.dataclass(frozen=True)
class CompareOptions(CompareConfig):
    members: tyro.conf.Positional[tuple[str, ...]] = ("attention", "aft-local", "gmlp")
    """members to compare (`everyformer list`)"""
    json: bool = False
    """machine output on stdout"""


def run(words: Sequence[str]) -> int:
    """Compare, print the table, and say where the report is."""
    default, given = CompareOptions(), [SHORT.get(word, word) for word in words]
    others = ("--training.steps", "--training.budget-tokens", "--training.budget-flops")
    if any(peek(given, flag) is not None for flag in others):
        # another budget replaces the default of seconds
        training = dataclasses.replace(default.training, budget_seconds=None)
        default = dataclasses.replace(default, training=training)
    options = parse(
        CompareOptions,
        words,
        verb="compare",
        about="Compare members on your data, on equal footing: quality, speed, memory.",
        examples=(
            "everyformer compare attention aft-conv gmlp --data mytext.txt --budget-seconds 60",
            "everyformer compare attention gmlp --data digits --seeds 3 --match parameters",
        ),
        default=default,
        short=SHORT,
    )
    from everyformer.comparison.compare import run_comparison

    config = CompareConfig(
        **{f.name: getattr(options, f.name) for f in dataclasses.fields(CompareConfig)}
    )
    command = shlex.join(["everyformer", "compare", *words])
    done = run_comparison(config, say=say, command=command)
    if done.interrupted:
        say(f"stopped; go on with: {command} --resume")
        return 128 + done.interrupted
    if options.json:
        emit(done.results)
    else:
        print(render(done.results))
        print(f"\nreport  {done.folder / 'report.html'}")
    return 1 if any(row["status"] != "done" for row in done.rows) else 0


def render(results: dict) -> str:
    """The one table that a person can decide from."""
    metric, unit = results["metric"], results["metric"].replace("_", "/").replace("per", "")
    headers = ["member", "parameters", "ratio", unit.replace("//", "/"), "95% interval", "tokens/s"]
    headers += ["peak memory", "s to slowest"]
    contexts = sorted({c for r in results["rows"] for c in r.get("decode_ms", {})}, key=int)
    headers += [f"ms/token at {c}" for c in contexts] + ["beats attention from"]
    rows = []
    for row in results["rows"]:
        if row["status"] != "done":
            rows.append([row["member"], f"failed: {row['error']}", *[None] * (len(headers) - 2)])
            continue
        low, high = row["interval"] or (None, None)
        span = "-" if low is None else f"{low:.4f} to {high:.4f}"
        start = row["beats_attention_from"]
        shown = "baseline" if row["member"] == "attention" else start and f"L = {start}"
        rows.append(
            [row["member"], f"{row['parameters']:,}", f"{row['parameter_ratio']:.2f}"]
            + [f"{row['quality']:.4f}", span, f"{row['tokens_per_second']:,.0f}"]
            + [size(row["peak_bytes"]), row["seconds_to_slowest"]]
            + [row["decode_ms"].get(c) for c in contexts]
            + [shown or "not measured" if not results["bench"] else shown or "not reached"]
        )
    better = f"{results['better']} {metric.replace('_', ' ')} is better"
    return table(headers, rows) + f"\n{better}; {results['data']['split']}"
