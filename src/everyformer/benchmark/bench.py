"""A benchmark: points, each measured in a fresh process, so that no memory is shared or reused.

Time is the median of repeated calls after warm-up with its quartiles (`torch.utils.benchmark`,
which synchronises devices), repeated until it is steady; memory is the rise of the process's peak
over one call, the median of five. What does not become steady says so. A point that runs out of
memory or is refused is a result, not a crash.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everyformer.benchmark.points import Point, Setting
from everyformer.core.bounds import Count, Part, Whole
from everyformer.core.config import converted
from everyformer.core.errors import ConfigError
from everyformer.family import info
from everyformer.system.children import start

if TYPE_CHECKING:
    from everyformer.benchmark.turns import Measure

IMPORTS = ("everyformer.benchmark.measure", "everyformer.genes.mixers.attention")
"""what every point imports: torch, its compiler and the base of mixers take seconds, once"""


def bench(
    names: Iterable[str],
    lengths: Sequence[int],
    *,
    decode: Sequence[int] = (),
    search: Sequence[int] = (),
    queries: Sequence[int] = (1, 1024),
    neighbours: Sequence[int] = (32,),
    shares: Sequence[float] = (),
    peers: bool = False,
    options: dict[str, dict[str, Any]] | None = None,
    **setting: Any,
) -> Iterator[Point]:
    """Measure members (and their peers) at every length, and yield each point as it is known.

    Args:
        names: members. lengths: of whole calls. decode: contexts after which one token is timed.
        search: numbers of keys among which what a member looks up is searched (`search.SEARCHED`),
            for so many ``queries`` at once and ``neighbours`` of each.
        shares: of steps, spans or layers that adaptive computation leaves (`spared.SPARED`), at
            every length instead of whole calls, each beside all of them.
        peers: also the installed packages that `peers.PEERS` names for each member, and the peers
            of searches, which take turns with them in one process.
        options: mixer options by member. setting: fields of `Setting`.
    """
    shared = Setting(**setting)
    if not lengths and not decode and not search:
        raise ConfigError(
            "nothing to measure: give lengths, contexts to decode after, or keys to search"
        )
    lengths = converted(tuple[Count, ...], tuple(lengths), "lengths")
    shares = converted(tuple[Part, ...], tuple(shares), "shares")
    decode = converted(tuple[Whole, ...], tuple(decode), "decode")
    search, queries, neighbours = (
        converted(tuple[Count, ...], tuple(values), name)
        for values, name in (
            (search, "search"),
            (queries, "queries"),
            (neighbours, "neighbours"),
        )
    )
    members = list(names)
    for name in members:
        info(name)
    sources = {name: ["everyformer"] for name in members}
    if peers:
        from everyformer.benchmark.peers import PEERS

        for name in members:
            sources[name] += [peer for peer, able in PEERS.items() if name in able]
    whole = () if shares else lengths
    points = [Point(m, length, s) for length in whole for m in members for s in sources[m]]
    points += [Point(m, context, work="decode") for context in decode for m in members]
    searches = [
        Point(name, size, work="search", queries=count, neighbours=k)
        for size, count, k, name in itertools.product(search, queries, neighbours, members)
    ]
    spared = [
        Point(name, length, work="share", share=share)
        for length, share, name in itertools.product(lengths if shares else (), shares, members)
    ]
    mixer_options = options or {}
    return itertools.chain(
        (measure(point, shared, mixer_options.get(point.member, {})) for point in points),
        (result for point in searches for result in measure_search(point, shared, peers)),
        (result for point in spared for result in measure_share(point, shared)),
    )


def bench_together(
    names: Sequence[str],
    length: int,
    *,
    options: Mapping[str, dict[str, Any]],
    **setting: Any,
) -> list[Point]:
    """One layer of every member at one length, in turn in one process, as speeds are compared.

    Where that process is ended (out of memory), each is tried alone, and those that can be measured
    take turns without the others.

    Args:
        options: mixer options by member. setting: fields of `Setting`.
    """
    from everyformer.benchmark.layers import measured
    from everyformer.benchmark.turns import fill_in_turn

    shared, points = Setting(**setting), [Point(name, length) for name in names]
    work = functools.partial(measured, options=options)
    result: list[Point] | _Ended = _in_process(fill_in_turn, work, points, shared)
    if not isinstance(result, _Ended):
        return result
    if len(points) == 1:
        return [result.of(points[0])]
    alone = [measure(point, shared, options.get(point.member, {})) for point in points]
    able = [point.member for point in alone if point.status == "ok"]
    if len(able) == len(alone):
        return [result.of(point) for point in points]
    again = bench_together(able, length, options=options, **setting) if able else []
    timed = {point.member: point for point in again}
    return [timed.get(point.member, point) for point in alone]


def measure(point: Point, setting: Setting, options: dict[str, Any]) -> Point:
    """Fill ``point`` in a process of its own."""
    from everyformer.benchmark.measure import fill

    result: Point | _Ended = _in_process(fill, point, setting, options)
    return result.of(point) if isinstance(result, _Ended) else result


def measure_search(point: Point, setting: Setting, peers: bool) -> list[Point]:
    """Fill ``point`` and the point of its peer in one process."""
    from everyformer.benchmark.search import SEARCHED, measured

    return _together(measured, point, SEARCHED if peers else {}, setting)


def measure_share(point: Point, setting: Setting) -> list[Point]:
    """Fill ``point`` and the point that spares nothing in one process."""
    from everyformer.benchmark.spared import SPARED, measured

    return _together(measured, point, SPARED, setting)


def _together(
    measured: Measure, point: Point, peers: Mapping[str, str], setting: Setting
) -> list[Point]:
    """``point`` and that of its peer, if it has one, filled in one process."""
    from everyformer.benchmark.turns import fill_in_turn

    points = [point]
    if point.member in peers:
        points.append(dataclasses.replace(point, source=peers[point.member]))
    result: list[Point] | _Ended = _in_process(fill_in_turn, measured, points, setting)
    return [result.of(p) for p in points] if isinstance(result, _Ended) else result


class _Ended(NamedTuple):
    """A process that ended without a result."""

    code: int | None

    def of(self, point: Point) -> Point:
        status: Any = "out of memory" if self.code == -9 else "failed"
        detail = f"the process ended with {self.code}"
        return dataclasses.replace(point, status=status, detail=detail)


def _in_process(fill: Callable[..., None], *arguments: Any) -> Any:
    """Points that ``fill`` sends from a process of its own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = start(fill, send, *arguments, imports=IMPORTS, daemon=True)
    send.close()
    try:
        result = receive.recv()
    except KeyboardInterrupt:
        child.kill()
        raise
    except EOFError:
        child.join()
        result = _Ended(child.exitcode)
    child.join()
    return result
