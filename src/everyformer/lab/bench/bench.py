"""A benchmark: points, each measured in a fresh process, so that no memory is shared or reused.

Time is the median of calls in rounds after a warm-up with its quartiles, repeated until it is
steady (`everyformer.lab.bench.timing`); memory is the rise of the process's peak
over one call, the median of five. What does not become steady says so. A point that runs out of
memory or is refused is a result, not a crash.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from everyformer.core.errors import ConfigError
from everyformer.family import of_family
from everyformer.lab.bench.points import Point, Setting
from sequence_laws.children import start

if TYPE_CHECKING:
    from everyformer.lab.bench.measure import Measure, Own

IMPORTS = ("everyformer.lab.bench.measure", "everyformer.genes.mixers.attention")
"""what every point imports: torch, its compiler and the base of mixers take seconds, once"""


def bench(
    names: Iterable[str],
    lengths: Sequence[int],
    *,
    decode: Sequence[int] = (),
    write: Sequence[int] = (),
    shares: Sequence[float] = (),
    peers: bool = False,
    compile: bool = False,
    options: Own | None = None,
    **setting: Any,
) -> Iterator[Point]:
    """Measure members (and their peers) at every length, and yield each point as it is known.

    Args:
        names: members. lengths: of whole calls. decode: contexts after which one token is timed.
        write: tokens of a text that a whole model writes (`everyformer.lab.bench.writing`).
        shares: of steps, spans or layers that adaptive computation leaves (`spared.SPARED`), at
            every length instead of whole calls, each against all of them.
        peers: also the installed packages that `peers.PEERS` names for each member, and the peers
            of texts, which take turns with them in one process.
        compile: also texts that are written by compiled steps.
        options: mixer options by member. setting: fields of `Setting`.
    """
    shared = _settled(setting)
    if not lengths and not decode and not write:
        raise ConfigError(
            "nothing to measure: give lengths, contexts to decode after, or lengths of texts to "
            "write"
        )
    if compile and not write:
        raise ConfigError(
            "only texts are written by compiled steps: give lengths of texts to write "
            "(--write 256), or leave out compile"
        )
    members = list(names)
    for name in members:
        of_family(name)
    whole = () if shares else lengths
    points = [point for length in whole for point in _layers(members, length, peers)]
    points += [Point(m, context, work="decode") for context in decode for m in members]
    texts = [Point(name, size, work="write") for size in write for name in members]
    spared = [
        Point(name, length, work="share", share=share)
        for length, share, name in itertools.product(lengths if shares else (), shares, members)
    ]
    return itertools.chain(
        (measure(point, shared, options or {}) for point in points),
        (p for point in texts for p in measure_with_peers(point, shared, peers, compile)),
        (p for point in spared for p in measure_with_peers(point, shared, True)),
    )


def bench_together(
    names: Sequence[str], length: int, *, options: Own, peers: bool = False, **setting: Any
) -> list[Point]:
    """One layer of every member at one length, in turn in one process, as speeds are compared.

    Where that process is ended (out of memory), each is tried alone, and those that can be measured
    take turns without the others.

    Args:
        options: mixer options by member. peers: as for `bench`. setting: fields of `Setting`.
    """
    shared = _settled(setting)
    return _together(_layers(names, length, peers), shared, options)


def _settled(setting: dict[str, Any]) -> Setting:
    """The `Setting` of these fields, whose device is there."""
    from everyformer.core.devices import pick_device

    shared = Setting(**setting)
    return dataclasses.replace(shared, device=str(pick_device(shared.device)))


def _layers(names: Iterable[str], length: int, peers: bool) -> list[Point]:
    """A whole call of each member's layer, and if ``peers`` of the installed packages that
    `peers.PEERS` names for it."""
    points = []
    for name in names:
        points.append(Point(name, length))
        if peers:
            from everyformer.lab.bench.peers import PEERS

            points += [Point(name, length, peer) for peer, able in PEERS.items() if name in able]
    return points


def _together(points: list[Point], shared: Setting, options: Own) -> list[Point]:
    from everyformer.lab.bench.measure import layers_in_turn

    result, ended = _in_process(partial(layers_in_turn, options=options), points, shared)
    if not ended or len(points) == 1:
        return result
    alone = [measure(point, shared, options) for point in points]
    able = [at for at, point in enumerate(alone) if point.status == "ok"]
    if len(able) == len(alone):
        return result
    again = _together([points[at] for at in able], shared, options) if able else []
    timed = dict(zip(able, again, strict=True))
    return [timed.get(at, point) for at, point in enumerate(alone)]


def measure(point: Point, setting: Setting, options: Own) -> Point:
    """Fill ``point`` in a process of its own."""
    from everyformer.lab.bench.measure import one_by_one

    return _in_process(partial(one_by_one, options=options), [point], setting)[0][0]


def measure_with_peers(
    point: Point, setting: Setting, peers: bool, compile: bool = False
) -> list[Point]:
    """Fill the ``point`` of a text or a share, and if ``peers`` those of its peers, which is what
    spares nothing for a share, in one process; so too a text by compiled steps."""
    if point.work == "write":
        from everyformer.lab.bench.writing import COMPILED, measured
        from everyformer.lab.bench.writing import WRITTEN as others
    else:
        from everyformer.lab.bench.spared import SPARED as others
        from everyformer.lab.bench.spared import measured

    sources = others.get(point.member, ()) if peers else ()
    if compile and point.work == "write":
        sources = (COMPILED, *sources)
    points = [point, *(dataclasses.replace(point, source=source) for source in sources)]
    return _in_process(measured, points, setting)[0]


def _in_process(
    measured: Measure, points: Sequence[Point], setting: Setting
) -> tuple[list[Point], bool]:
    """``points``, measured in a process of their own, and whether that one ended before."""
    from everyformer.lab.bench.measure import fill

    receive, send = multiprocessing.Pipe(duplex=False)
    child = start(fill, send, measured, points, setting, imports=IMPORTS, daemon=True)
    send.close()
    try:
        results: list[Point] = receive.recv()
    except KeyboardInterrupt:
        child.kill()
        raise
    except EOFError:
        child.join()
        status: Any = "out of memory" if child.exitcode == -9 else "failed"
        detail = f"the process ended with {child.exitcode}"
        return [dataclasses.replace(p, status=status, detail=detail) for p in points], True
    child.join()
    return results, False
