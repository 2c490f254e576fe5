"""`make gpu`: laws, the real compiler and speeds on a GPU, in one JSON file and one table.

Laws go in processes, as many as there are cores; then layers take turns in one. A table of what is
broken, and of each layer's time as a share of attention's, is printed and written next to the
numbers.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from everyformer.checks.processes import verify_in_processes
from everyformer.cli.parsing import say
from everyformer.cli.verbs.bench import render
from everyformer.core.bounds import Count
from everyformer.core.config import Options, to_dict
from everyformer.core.errors import EveryformerError
from everyformer.family import info, list_members
from everyformer.lab.bench.bench import bench_together
from everyformer.lab.bench.points import BASELINE, Point
from everyformer.system.console import table
from everyformer.system.files import write_text
from everyformer.system.plain import to_json
from sequence_laws.verdict import LawResult

LAWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "float64",
        (
            *("equation", "causality", "streaming", "padding", "packing", "conditions", "limits"),
            *("numbers", "gradients", "compiles", "saving", "determinism", "bidirectional"),
            "compiles-fully",
        ),
    ),
    ("float32", ("equation", "streaming", "padding", "packing", "conditions")),
)
"""dtypes, and the laws that look at a device"""
MOST = 300
"""seconds for the laws of one member"""
OTHERS = ("gpt", "transformer", "bert", "vit", "decision-transformer", "learned-per-layer", "axial")
"""members whose layers are those of others"""
SETTING: dict[str, Any] = {"width": 1024, "heads": 16, "batch": 4, "seconds": 0.1}


@dataclass(frozen=True)
class GpuOptions(Options):
    """The words of ``python -m everyformer.cli.gpu``."""

    members: tyro.conf.Positional[tuple[str, ...]] = ()
    """members to try (default: all)"""
    device: str = "cuda"
    """where"""
    out: str = "runs/gpu"
    """folder of gpu.json and gpu.txt"""
    length: Count = 4096
    """tokens of the layers that are measured"""
    speeds: bool = True
    """also measure layers"""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """dtype of the layers that are measured"""
    jobs: Count = os.cpu_count() or 1
    """processes at a time"""


def main(options: GpuOptions) -> int:
    """Try the laws, measure the layers, write both; exit code 1 if a law is broken or a layer of
    this library failed."""
    from everyformer.core.devices import pick_device

    names = [info(name).name for name in options.members] or [m.name for m in list_members()]
    pick_device(options.device)
    folder = Path(options.out)
    results = laws_of(names, options, folder)
    write(folder, options, results, [])
    points = speeds_of(names, options) if options.speeds else []
    print(write(folder, options, results, points))
    own = [point for point in points if point.source == "everyformer"]
    failed = any(r.status == "failed" for r in results) or any(p.status == "failed" for p in own)
    return 1 if failed else 0


def write(folder: Path, options: GpuOptions, results: list[LawResult], points: list[Point]) -> str:
    """Write what is known so far; the text of it."""
    from everyformer.training.surroundings import environment

    text = "\n\n".join([broken(results), *([render(points)] if points else [])])
    record = {"environment": environment(), "setting": SETTING | to_dict(options)}
    found = {"laws": [to_dict(r) for r in results], "speeds": [to_dict(p) for p in points]}
    write_text(folder / "gpu.json", to_json(record | found, indent=1) + "\n", parents=True)
    write_text(folder / "gpu.txt", text + "\n")
    return text


def laws_of(names: list[str], options: GpuOptions, folder: Path) -> list[LawResult]:
    """The verdicts of all members, each in a process of its own."""
    found = []
    many = {"jobs": min(options.jobs, len(names)), "seconds": MOST}
    for results in verify_in_processes(names, LAWS, options.device, folder / "laws", **many):
        failed = [one.law for one in results if one.status == "failed"]
        broken_ones = f", failed: {', '.join(failed)}" if failed else ""
        seconds = sum(one.seconds for one in results)
        say(f"{results[0].member}: laws in {seconds:.0f} s{broken_ones}")
        found += results
    return sorted(found, key=lambda one: names.index(one.member))


def broken(results: list[LawResult]) -> str:
    """Counts of verdicts that held, by law, and those that did not, in words."""
    laws = list(dict.fromkeys(result.law for result in results))
    rows: list[tuple[Any, ...]] = []
    for law in laws:
        of = [result.status for result in results if result.law == law]
        rows.append((law, *(of.count(status) or None for status in ("held", "failed", "exempt"))))
    lines = [table(("law", "held", "failed", "exempt"), rows)]
    failed = [result for result in results if result.status == "failed"]
    return "\n".join([*lines, *(f"FAILED {r.member}, {r.law}: {r.detail}" for r in failed)])


def speeds_of(names: list[str], options: GpuOptions) -> list[Point]:
    """Times of a layer of each member that has one of its own, and of its peers, in turn."""
    genes = ("mixer", "position")
    layers = [n for n in names if info(n).gene in genes and n not in OTHERS]
    points = bench_together(
        list(dict.fromkeys((BASELINE, *layers))), options.length, options={}, peers=True,
        device=options.device, precision=options.precision, **SETTING,
    )  # fmt: skip
    for point in points:
        done = point.status if point.seconds is None else f"{1000 * point.seconds:.2f} ms"
        say(f"{point.member} ({point.source}): {done}")
    return points


if __name__ == "__main__":
    try:
        raise SystemExit(main(tyro.cli(GpuOptions)))
    except EveryformerError as error:
        print(f"everyformer: {error}", file=sys.stderr)
        raise SystemExit(2) from None
