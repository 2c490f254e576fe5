"""`everyformer bench` ends in 1 where a point failed, in 2 where one was refused or did not fit."""

from typing import Any

import pytest

from everyformer.benchmark.points import Point
from everyformer.cli import main

MEASURED = Point("attention", 8, seconds=0.001, quartiles=(0.001, 0.001))
ENDS = [
    ((), 0),
    ((Point("gmlp", 8, status="refused", detail="for a reason"),), 2),
    ((Point("gmlp", 8, status="out of memory", detail="for a reason"),), 2),
    ((Point("gmlp", 8, status="failed", detail="for a reason"),), 1),
]


@pytest.mark.parametrize("json", [(), ("--json",)])
@pytest.mark.parametrize(("more", "code"), ENDS)
@pytest.mark.parametrize("last", [True, False])
def test_a_point_that_was_not_measured_is_told_by_the_exit(
    more: tuple[Point, ...],
    code: int,
    last: bool,
    json: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def bench(*_: Any, **__: Any) -> list[Point]:
        return [MEASURED, *more] if last else [*more, MEASURED]

    monkeypatch.setattr("everyformer.cli.verbs.bench.bench", bench)
    assert main(["bench", "attention", "--lengths", "8", *json]) == code
    assert ("for a reason" in capsys.readouterr().out) == bool(code)
