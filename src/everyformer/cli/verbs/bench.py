"""`everyformer bench NAMES --lengths ...`: measured here, as a ratio to what else one could use."""

import dataclasses
from dataclasses import dataclass

import tyro

from everyformer.cli.parsing import say, verb
from everyformer.core.bounds import Count, Part, Whole
from everyformer.core.config import to_dict
from everyformer.family import info, list_members
from everyformer.lab.bench.points import BASELINE, Point, Setting, crossover, is_settled
from everyformer.system.console import emit, table
from sequence_laws.memory import size


@dataclass(frozen=True)
class BenchOptions(Setting):
    """The words of `everyformer bench`."""

    members: tyro.conf.Positional[tuple[str, ...]] = (BASELINE, "aft-local")
    """members to measure"""
    lengths: tuple[Count, ...] = (256, 1024, 4096)
    """tokens of whole calls"""
    decode: tuple[Whole, ...] = ()
    """contexts after which one token is timed, for members with a state"""
    write: tuple[Count, ...] = ()
    """tokens of a text that a whole model of 4 layers writes greedily (peers of gpt: generate of
    transformers with its usual cache and a static one, and llama.cpp, extra `llama`)"""
    shares: tuple[Part, ...] = ()
    """shares that adaptive computation leaves, at every length instead of whole calls, each against
    all of it: steps that tokens take on average in a training step of universal, spans of the
    window of adaptive-span, layers where tokens that depth-adaptive writes leave"""
    peers: bool = False
    """also the installed peer packages, side by side"""
    compile: bool = False
    """also texts that are written by compiled steps, side by side"""
    json: bool = False
    """machine output"""


@verb(
    BenchOptions,
    about="Time, memory and FLOPs of one layer against length, a fresh process for each point.",
    examples=(
        "everyformer bench aft-simple attention --lengths 1024 4096 --decode 1024 65536 --peers",
        "everyformer bench gpt --lengths --write 256 --peers",
    ),
    default=BenchOptions(),
    names=[member.name for member in list_members()],
)
def run(options: BenchOptions) -> int:
    """Measure and print one table."""
    for name in options.members:
        info(name)
    from everyformer.lab.bench.bench import bench

    shared = {f.name: getattr(options, f.name) for f in dataclasses.fields(Setting)}
    points: list[Point] = []
    fields = {"decode", "write", "shares", "peers", "compile"}
    for point in bench(
        options.members,
        options.lengths,
        **{name: getattr(options, name) for name in fields},
        **shared,
    ):
        points.append(point)
        done = f"{1000 * point.seconds:.2f} ms" if point.seconds is not None else point.status
        mark = "" if point.stable else ", unstable"
        say(f"{point.member} ({point.source}), {_work(point)} at {point.length}: {done}{mark}")
    if options.json:
        emit([to_dict(point) for point in points])
    else:
        print(render(points))
    return exit_code(points)


def _work(point: Point) -> str:
    """The work in words."""
    return f"share {point.share:g}" if point.work == "share" else point.work


def _ratio(one: Point | None, other: Point | None) -> str | None:
    """Seconds of ``one`` over those of ``other``; rough where either scatters."""
    if one is None or other is None or not one.seconds or not other.seconds:
        return None
    return f"{'' if one.stable and other.stable else '~'}{one.seconds / other.seconds:.2f}x"


def _limit(point: Point) -> str | None:
    """The least time of a token in ms, and how many times that it took."""
    if point.limit is None or point.seconds is None:
        return None
    return f"{1000 * point.limit:.3f} ({point.seconds / point.limit:.1f}x)"


def exit_code(points: list[Point]) -> int:
    """1 where a measurement broke, 2 where one could not be what was requested, else 0."""
    statuses = {point.status for point in points}
    if "failed" in statuses:
        return 1
    return 2 if statuses & {"refused", "out of memory"} else 0


def render(points: list[Point]) -> str:
    """One row a point; the ratio is to attention of this library at the same length."""
    base = {
        (p.length, _work(p)): p
        for p in points
        if p.member == BASELINE and p.source == "everyformer"
    }
    own = {(p.member, p.length, _work(p)): p for p in points if p.source == "everyformer"}
    rows = []
    for p in points:
        time, other = p.seconds, base.get((p.length, _work(p)))
        ours = own.get((p.member, p.length, _work(p)))
        spread = p.quartiles and f"{1000 * p.quartiles[0]:.2f} to {1000 * p.quartiles[1]:.2f}"
        peaks = p.peak_range and " to ".join(map(size, p.peak_range))
        rows.append(
            (
                p.member,
                p.source,
                _work(p),
                p.length,
                f"{1000 * time:.2f}" if time is not None else p.status,
                spread,
                _limit(p),
                _ratio(p, other),
                _ratio(ours, p) if p.source != "everyformer" else None,
                size(p.state_bytes if p.work == "decode" else p.peak_bytes),
                peaks,
                f"{p.flops / 1e9:.2f}" if p.flops else None,
                None if p.stable else "unstable",
            )
        )
    headers = ("member", "source", "work", "length", "ms", "quartiles", "limit", "of attention")
    memory = ("memory", "of five calls", "GFLOP", "")
    lines = [table((*headers, "ours / peer", *memory), rows)]
    if not all(p.stable for p in points):
        lines.append(
            "unstable: quartiles or peaks beyond 10% of the median however often it was measured, "
            "so ratios (~) are rough: measure again when the machine has no other work, or longer "
            "(--seconds)"
        )
    if any(p.limit for p in points):
        lines.append(
            "limit: the larger of bytes read / bandwidth measured in the same process, and 2 us "
            "for each operation that is no view; (times the limit)"
        )
    for name in dict.fromkeys(p.member for p in points):
        start = crossover(points, name)
        if start is not None:
            lines.append(f"{name} is faster than attention from length {start} on")
        elif name != BASELINE and is_settled(points, name) is False:
            lines.append(
                f"whether {name} is faster than attention at the longest of these lengths is not "
                "settled: their quartiles overlap"
            )
    lines += [f"{p.member} ({p.source}) at {p.length}: {p.detail}" for p in points if p.detail]
    return "\n".join(lines)
