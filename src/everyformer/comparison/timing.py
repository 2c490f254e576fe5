"""Time and memory of one layer of each member against length, kept in the comparison's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everyformer.benchmark.bench import bench
from everyformer.benchmark.points import BASELINE, Point
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.plan import own_options
from everyformer.core.config import to_dict
from everyformer.core.errors import CheckpointError
from everyformer.core.plain import from_json, to_json
from everyformer.core.pulse import doing
from everyformer.core.sealed import read_json, write_json
from everyformer.core.stopping import Gentle

FILE, FORMAT = "layers.json", "everyformer-layer-times"
SECONDS = 0.2
"""least time spent on the repetitions of a point"""
SIZES = ("width", "heads", "layers", "max_length")
"""what a benchmark of one layer sets itself"""


class LayerTimes:
    """What has been measured of one layer of each member, and of plain attention beside them."""

    def __init__(self, config: CompareConfig, folder: Path) -> None:
        self._lengths, self._path = config.bench_lengths, folder / FILE
        self._own = {
            member: {name: value for name, value in options.items() if name not in SIZES}
            for member, options in own_options(config).items()
        }
        self._sizes: dict[str, Any] = {"width": config.model.width, "heads": config.model.heads}
        self._known = self._kept()

    @property
    def points(self) -> list[Point]:
        """All that were measured, member by member."""
        return [
            Point(**known[str(length)])
            for known in self._known.values()
            for length in self._lengths
            if str(length) in known
        ]

    def measure(self, member: str, stop: Gentle) -> None:
        """Measure a member, and plain attention before the first, where it is not known yet."""
        for name in dict.fromkeys((BASELINE, member)):
            found = self._known.setdefault(name, {})
            missing = [n for n in self._lengths if str(n) not in found]
            if not missing or stop.received is not None:
                continue
            with doing(f"timing one layer of {name} at {', '.join(map(str, missing))} tokens"):
                options = {name: self._own.get(name, {})}
                try:
                    for point in bench(
                        [name], missing, options=options, seconds=SECONDS, **self._sizes
                    ):
                        found[str(point.length)] = to_dict(point)
                        if stop.received is not None:
                            break
                except (EOFError, ConnectionError):
                    # Ctrl-C on a terminal ends the processes that measure as well
                    if stop.received is None:
                        raise
            self._write()

    def _kept(self) -> dict[str, dict[str, Any]]:
        """What an earlier sitting measured at the same sizes."""
        try:
            values = read_json(self._path, FORMAT)
        except CheckpointError:
            return {}
        same = values["setting"] == self._setting()
        return values["members"] if same else {}

    def _write(self) -> None:
        values = {"format": FORMAT, "setting": self._setting(), "members": self._known}
        write_json(self._path, values)

    def _setting(self) -> dict[str, Any]:
        setting = {"sizes": self._sizes, "options": self._own}
        plain: dict[str, Any] = from_json(to_json(setting))
        return plain
