"""A benchmark: points, each measured in a fresh process, so that no memory is shared or reused.

Time is the median of repeated calls after warm-up with its quartiles (`torch.utils.benchmark`,
which synchronises devices), repeated until it is steady; memory is the rise of the process's peak
over one call, the median of five. What does not become steady says so. A point that runs out of
memory or is refused is a result, not a crash.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from everyformer.benchmark.points import Point, Setting
from everyformer.core.bounds import Count, Whole
from everyformer.core.children import start
from everyformer.core.config import converted
from everyformer.core.errors import ConfigError
from everyformer.family import info

IMPORTS = ("everyformer.benchmark.measure", "everyformer.mixers.attention")
"""what every point imports: torch, its compiler and the base of mixers take seconds, once"""


def bench(
    names: Iterable[str],
    lengths: Sequence[int],
    *,
    decode: Sequence[int] = (),
    peers: bool = False,
    options: dict[str, dict[str, Any]] | None = None,
    **setting: Any,
) -> Iterator[Point]:
    """Measure members (and their peers) at every length, and yield each point as it is known.

    Args:
        names: members. lengths: of whole calls. decode: contexts after which one token is timed.
        peers: also the installed packages that `peers.PEERS` names for each member.
        options: mixer options by member. setting: fields of `Setting`.
    """
    shared = Setting(**setting)
    if not lengths and not decode:
        raise ConfigError("nothing to measure: give lengths, or contexts to decode after")
    lengths = converted(tuple[Count, ...], tuple(lengths), "lengths")
    decode = converted(tuple[Whole, ...], tuple(decode), "decode")
    members = list(names)
    for name in members:
        info(name)
    sources = {name: ["everyformer"] for name in members}
    if peers:
        from everyformer.benchmark.peers import PEERS

        for name in members:
            sources[name] += [peer for peer, able in PEERS.items() if name in able]
    points = [Point(m, length, s) for length in lengths for m in members for s in sources[m]]
    points += [Point(m, context, work="decode") for context in decode for m in members]
    own = options or {}
    return (measure(point, shared, own.get(point.member, {})) for point in points)


def measure(point: Point, setting: Setting, options: dict[str, Any]) -> Point:
    """Fill ``point`` in a process of its own."""
    from everyformer.benchmark.measure import fill

    receive, send = multiprocessing.Pipe(duplex=False)
    child = start(fill, send, point, setting, options, imports=IMPORTS, daemon=True)
    send.close()
    try:
        result: Point = receive.recv()
    except KeyboardInterrupt:
        child.kill()
        raise
    except EOFError:
        child.join()
        detail = f"the process ended with {child.exitcode}"
        status: Any = "out of memory" if child.exitcode == -9 else "failed"
        result = dataclasses.replace(point, status=status, detail=detail)
    child.join()
    return result
