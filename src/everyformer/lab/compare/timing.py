"""Time and memory of one layer of each member against length, saved in the comparison's folder.

At every length all members are measured in turn in one process, plain attention among them.
"""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everyformer.core.config import to_dict
from everyformer.core.devices import pick_device
from everyformer.core.errors import CheckpointError
from everyformer.family import info
from everyformer.lab.bench.bench import bench_together
from everyformer.lab.bench.points import BASELINE, Point
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.plan import own_options
from everyformer.system.plain import from_json, to_json
from everyformer.system.sealed import read_json, write_json
from everyformer.system.status import status

FILE, FORMAT = "layers.json", "everyformer-layer-times"
SECONDS = 0.2
"""least time spent on the repetitions of a point"""
PILOT = 1024
"""tokens of the first measurement, by which the others are foretold; fewer where fewer are asked"""
START, CALLS = 1.0, 12
"""seconds until a process measures; calls of a layer at a length, for peaks and times"""
SIZES = ("width", "heads", "layers", "max_length")
"""what a benchmark of one layer sets itself"""


class LayerTimes:
    """One layer of each of ``members``, and of plain attention."""

    def __init__(self, config: CompareConfig, members: Sequence[str], folder: Path) -> None:
        self._lengths, self._path = config.lengths, folder / FILE
        self._own = {
            member: {name: value for name, value in options.items() if name not in SIZES}
            for member, options in own_options(config).items()
        }
        self._members = list(dict.fromkeys((BASELINE, *members))) if members else []
        self._sizes: dict[str, Any] = {size: config.model[size] for size in ("width", "heads")}
        self._device = pick_device(config.training.device).type
        self._known = self._read()
        self._spent: dict[int, float] = {}

    @property
    def points(self) -> list[Point]:
        """All that were measured, member by member."""
        return [
            Point(**self._known[str(length)][member])
            for member in self._members
            for length in self._lengths
            if str(length) in self._known
        ]

    def pilot(self) -> None:
        """Measure at a short length, and at the next where others follow, so that these can be
        foretold by how both grew."""
        if missing := self._missing():
            self._measure(min(PILOT, *missing, *map(int, self._known)))
            if len(known := sorted(self._missing())) > 1 and known[0] <= PILOT:
                self._measure(known[0])

    def expected(self) -> dict[int, float]:
        """About how many seconds each length will take that is not known yet.

        Of a call, what is linear in length grows so, and what mixes as its member claims: at
        length L and width d about L of 2 d + L. Where two lengths are known it grows as fast as
        from one to the other, if that is faster: a claim of a row may be wrong.
        """
        missing = self._missing()
        if not missing:
            return {}
        *before, first = sorted(map(int, self._known))
        calls = self._seconds(first)
        shorter = self._seconds(before[-1]) if before else {}
        usual = START + 2 * SECONDS * len(calls)
        fixed = max(usual, self._spent.get(first, 0.0) - CALLS * sum(calls.values()))
        mixing = first / (2 * self._sizes["width"] + first)

        def grown(name: str, ratio: float) -> float:
            claim = info(name).cost.time
            mixed: float = ratio ** (2 if claim is None else claim)  # a guess, told to nobody
            claimed = (1 - mixing) * ratio + mixing * mixed
            if ratio > 1 and shorter.get(name):
                # short calls scatter, so that no more than squares are believed
                seen = math.log(max(calls[name] / shorter[name], 1), first / before[-1])
                claimed = max(claimed, ratio ** min(seen, 2.0))
            return calls[name] * claimed

        return {
            length: fixed + CALLS * sum(grown(name, length / first) for name in calls)
            for length in missing
        }

    def _seconds(self, length: int) -> dict[str, float]:
        """Seconds of a call at a known length, by member."""
        known = self._known[str(length)]
        return {name: point["seconds"] or 0.0 for name, point in known.items()}

    def measure(self) -> Iterator[tuple[int, float]]:
        """Measure at every length that is not known yet, and tell each with the seconds that it
        took; a stop ends it at once."""
        for length in self._missing():
            self._measure(length)
            yield length, self._spent[length]

    def _missing(self) -> list[int]:
        lengths = self._lengths if self._members else ()
        return [length for length in lengths if str(length) not in self._known]

    def _measure(self, length: int) -> None:
        if str(length) in self._known:
            return
        start = time.perf_counter()
        members = f"{len(self._members)} members at {length:,} tokens"
        with status(
            f"timing one layer of {members} (--lengths chooses them; without numbers, none)"
        ):
            points = bench_together(
                self._members,
                length,
                options=self._own,
                seconds=SECONDS,
                device=self._device,
                **self._sizes,
            )
        self._spent[length] = time.perf_counter() - start
        self._known[str(length)] = {point.member: to_dict(point) for point in points}
        self._write()

    def _read(self) -> dict[str, dict[str, Any]]:
        """Measurements of an earlier session, of the same members at the same sizes."""
        try:
            values = read_json(self._path, FORMAT)
        except CheckpointError:
            return {}
        return values["lengths"] if values["setting"] == self._setting() else {}

    def _write(self) -> None:
        values = {"format": FORMAT, "setting": self._setting(), "lengths": self._known}
        write_json(self._path, values)

    def _setting(self) -> dict[str, Any]:
        setting = {"members": self._members, "sizes": self._sizes, "options": self._own}
        setting["device"] = self._device
        plain: dict[str, Any] = from_json(to_json(setting))
        return plain
