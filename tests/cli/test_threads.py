"""`generate` and `eval` take the number of threads that a few steps were fastest with."""

import time

import pytest
import torch

from everyformer.cli.threads import choose_threads


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("slow", [1, 2])
def test_the_faster_number_is_taken_and_said(two_threads, capsys, slow):
    used = []

    def step():
        used.append(torch.get_num_threads())
        time.sleep(0.02 if used[-1] == slow else 0)

    choose_threads(step)
    assert torch.get_num_threads() == 3 - slow
    assert used[1:5] == [1, 2, 1, 2]  # in turn, after one that warms up
    assert f"threads: {3 - slow}, since" in capsys.readouterr().err


def test_who_says_how_many_is_obeyed(two_threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    choose_threads(lambda: pytest.fail("nothing is to be tried"))
    assert torch.get_num_threads() == 2
