"""Which splitting is advised: the numbers of the published rules, and each side of every bound."""

import pytest

from everyformer.cli.cluster import model_of
from everyformer.training.parallel.advice import Cluster, Model, overlap, ring, sequence, split

GB = 10**9


def cluster(processes: int = 8, nodes: int = 1, memory: float = 80 * GB) -> Cluster:
    return Cluster(processes, nodes, memory, 400e12, 350 * GB)


def model(parameters: float, state: float | None = 2e6, grows: bool = False) -> Model:
    return Model(int(parameters), 4096, 1, 131_072, state, grows)


@pytest.mark.parametrize(
    ("bandwidth", "tokens"), [(350 * GB, 1_524), (40 * GB, 13_333), (1.5625 * GB, 341_333)]
)
def test_tokens_at_which_moving_takes_as_long_as_computing(bandwidth: float, tokens: int) -> None:
    assert overlap(Cluster(8, 1, 1, 400e12, bandwidth)) == pytest.approx(tokens, rel=1e-3)


def test_one_process_moves_nothing() -> None:
    assert overlap(Cluster(1, 1, 1, 400e12, None)) is None


def test_a_ring_moves_four_bytes_a_channel_and_token() -> None:
    assert ring(model(1)) == 2_147_483_648


@pytest.mark.parametrize(
    ("parameters", "of", "way"),
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
def test_weights_are_split_as_far_as_they_have_to_be(
    parameters: float, of: Cluster, way: str
) -> None:
    assert split(model(parameters), of).parallel == way


def test_what_does_not_fit_says_how_many_would_hold_it() -> None:
    assert "need 13 processes" in split(model(32e9), cluster()).why


@pytest.mark.parametrize(
    ("state", "grows", "way", "told"),
    [
        (2e6, False, "sequence", "whatever the length"),
        (2e9, True, "sequence", "growing with the text"),
        (None, False, "no", "nothing from token to token"),
    ],
)
def test_texts_are_split_where_a_state_is_handed_on(
    state: float | None, grows: bool, way: str, told: str
) -> None:
    found = sequence(model(1, state, grows))
    assert found.parallel == way
    assert told in found.why


def test_sizes_are_those_of_the_member() -> None:
    linear, plain = (model_of(name, 128, 2, 1024) for name in ("linear", "attention"))
    assert linear.state is not None
    assert (linear.grows, plain.grows) == (False, True)
    # a sum of 64 x 64 and one of 64 for each of 2 heads and layers, in float32
    assert linear.state == 4 * 2 * 2 * (64 * 64 + 64)
