"""An account tells the engine, the time, the share of its limit, the largest part of the rest."""

import pytest
import torch

from everyformer.core.dispatch import take
from everyformer.lab.bench import limits
from everyformer.lab.bench.limits import account

A, ROW = torch.ones(500, 1000), torch.ones(1, 1000)


def step():
    """2,008,000 bytes read, of which 4,000 once more, 1,000,000 operations of numbers, in two."""
    take("an engine", "a way")
    return (ROW @ A.T).sum()


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Two gigabytes and two giga-operations a second, one thread."""
    monkeypatch.setattr(limits, "bandwidth", lambda device: 2e9)
    monkeypatch.setattr(limits, "products", lambda device: 2e9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"seconds": 4e-3},
            "ran an engine: a way, 1 thread: 4 ms a token, the limit 1 (2.01 MB at 2 GB/s), 25%; "
            "most of the rest, 3 ms: operations above their limit",
        ),
        (
            {"seconds": 4e-3, "outside": 2e-3},
            "ran an engine: a way, 1 thread: 4 ms a token, the limit 1 (2.01 MB at 2 GB/s), 25%; "
            "most of the rest, 2 ms: choosing tokens",
        ),
        (
            {"seconds": 2e-3, "compiled": True, "spared": 2_000_000},
            "ran a compiled program, 1 thread: 2 ms a token, the limit 0.5 (0.001 GFLOP at 2 a "
            "second), 25%; most of the rest, 1.5 ms: operations above their limit",
        ),
        (
            {"seconds": 1e-3, "tokens": 10, "device": "meta"},
            "ran an engine: a way: 1 ms a token, the limit 0.1 (2.01 MB at 2 GB/s), 10%; most of "
            "the rest, 0.9 ms: operations above their limit",
        ),
    ],
)
def test_an_account_names_what_ran_and_what_kept_it(given, said):
    assert account(step, **given) == said


def test_beginning_is_a_limit_of_what_is_not_compiled():
    small = torch.ones(2)
    said = account(lambda: small + small, 1e-5)
    assert "operations of torch" in said
    assert "the limit 0.002 (1 operations to begin), 20%" in said
    assert "to begin" not in account(lambda: small + small, 1e-5, compiled=True)
