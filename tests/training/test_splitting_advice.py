"""Which splitting is advised: the numbers of the published rules, and each side of every bound."""

import pytest

import everyformer as ef
from everyformer.cli.cluster import parameters
from everyformer.training.parallel.advice import Cluster, overlap, split

GB = 10**9


def cluster(processes: int = 8, nodes: int = 1, memory: float = 80 * GB) -> Cluster:
    return Cluster(processes, nodes, memory, 400e12, 350 * GB)


@pytest.mark.parametrize(
    ("bandwidth", "tokens"), [(350 * GB, 1_524), (40 * GB, 13_333), (1.5625 * GB, 341_333)]
)
def test_tokens_at_which_moving_takes_as_long_as_computing(bandwidth: float, tokens: int) -> None:
    assert overlap(Cluster(8, 1, 1, 400e12, bandwidth)) == pytest.approx(tokens, rel=1e-3)


def test_one_process_moves_nothing() -> None:
    assert overlap(Cluster(1, 1, 1, 400e12, None)) is None


@pytest.mark.parametrize(
    ("count", "of", "way"),
    [
        (125e6, cluster(), "ddp"),
        (1.3e9, cluster(), "ddp"),
        (2.5e9, cluster(), "ddp"),
        (2.6e9, cluster(), "fsdp"),
        (7e9, cluster(), "fsdp"),
        (7e9, cluster(16, 2), "hybrid"),
        (30e9, cluster(16, 2), "fsdp"),
        (30e9, cluster(), "none"),
    ],
)
def test_weights_are_split_as_far_as_they_have_to_be(count: float, of: Cluster, way: str) -> None:
    assert split(int(count), of).parallel == way


def test_what_does_not_fit_says_how_many_would_hold_it() -> None:
    assert "need 13 processes" in split(32 * GB, cluster()).why


def test_parameters_are_those_of_the_member() -> None:
    model = ef.create_model(
        "attention", width=128, heads=2, layers=2, max_length=1024, vocabulary=50_000
    )
    assert parameters("attention", 128, 2, 1024) == sum(w.numel() for w in model.parameters())
