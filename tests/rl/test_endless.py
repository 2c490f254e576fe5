"""Rows that are played on and on: how an episode ended is one thing or the other."""

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from everyformer.rl import EnvironmentConfig
from everyformer.rl.endless import EndlessRows
from scripted import scripted


@pytest.mark.parametrize(
    ("length", "limit", "ended", "cut"),
    [(3, None, True, False), (None, 3, False, True), (3, 3, True, False), (4, 3, False, True)],
)
def test_a_step_that_ends_at_the_limit_of_time_was_not_cut(
    length: int | None, limit: int | None, ended: bool, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gymnasium sets both flags there; an end is worth nothing more, what is cut is."""
    rows = EndlessRows(
        EnvironmentConfig(scripted(monkeypatch, length=length, max_episode_steps=limit)), 2
    )
    rows.begin(0)
    steps = [rows.step(np.zeros(2, np.int64)) for _ in range(6)]
    over = [False, False, True, False, False, True]
    for step, here in zip(steps, over, strict=True):
        assert step.terminated.tolist() == [here and ended] * 2
        assert step.truncated.tolist() == [here and cut] * 2
    assert rows.finished == 4
