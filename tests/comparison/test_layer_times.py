"""Timing of single layers in a comparison."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everyformer.benchmark.points import Point
from everyformer.comparison import timing
from everyformer.comparison.config import CompareConfig
from everyformer.core.stopping import Gentle


@pytest.mark.parametrize("stopped", [True, False])
def test_what_measures_may_end_with_the_stop_of_a_terminal_but_not_without(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Gentle("stopping")

    def ended(*given: Any, **more: Any) -> Iterator[Point]:
        yield Point("attention", 8)
        stop.received = signal.SIGINT if stopped else None
        raise EOFError

    monkeypatch.setattr(timing, "bench", ended)
    times = timing.LayerTimes(CompareConfig(members=("gmlp",), bench_lengths=(8, 16)), tmp_path)
    if stopped:
        times.measure("gmlp", stop)
        assert times.points == [Point("attention", 8)]
    else:
        with pytest.raises(EOFError):
            times.measure("gmlp", stop)
