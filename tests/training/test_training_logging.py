"""metrics.jsonl: every row has its own sum; a damaged line is named, never dropped in silence."""

from pathlib import Path
from typing import Any

import pytest

from everyformer.core.errors import CheckpointError
from everyformer.training.logging import MetricsLog, read_metrics

ROWS: list[dict[str, Any]] = [
    {"step": 1, "loss": 2.5, "losses": {"size": 0.125}},
    {"step": 2, "loss": 2.25},
    {"step": 2, "evaluation": {"loss": 2.0, "interval": None}},
    {"step": 3, "loss": 1.5},
]


def written(path: Path) -> bytes:
    log = MetricsLog(path)
    for row in ROWS:
        log.write(row)
    log.close()
    return path.read_bytes()


def flips(whole: bytes) -> list[bytes]:
    """The file with one bit of each byte turned, another one from byte to byte."""
    return [
        whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for place in range(len(whole))
    ]


def test_any_flipped_bit_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = written(path)
    assert read_metrics(path) == ROWS
    *inside, end = flips(whole)
    for damaged in inside:
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"line \d of .*jsonl was changed or damaged"):
            read_metrics(path)
        for step in (3, 10):
            with pytest.raises(CheckpointError, match=r"line \d of .* put back a copy"):
                MetricsLog(path, step)
        assert path.read_bytes() == damaged
    path.write_bytes(end)
    assert read_metrics(path) == ROWS


def test_damage_behind_the_checkpoint_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = written(path).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1] + lines[-1].replace(b"1.5", b"9.5"))
    MetricsLog(path, 2).close()
    assert read_metrics(path) == ROWS[:3]
    # a row cut short by a kill ends them
    for left in (1, 20):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
        assert read_metrics(path) == ROWS[:3]
