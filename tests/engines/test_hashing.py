"""Locality-sensitive hashes: the definition, its factors, and that near vectors collide more."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError
from everyformer.engines.content import hashing
from helpers import draw


@pytest.mark.parametrize("factors", [(2,), (8,), (4, 6), (2, 2, 8)], ids=str)
def test_the_hash_is_its_definition(factors):
    x = draw(2, 3, 50, 7)
    rotations = hashing.seeded_rotations(1, 3, 4, 7, hashing.columns(factors))
    fast = ef.functional.lsh_buckets(x, rotations, factors)
    slow = ef.reference.lsh_buckets(x, rotations.double(), factors)
    assert torch.equal(fast.long(), slow)
    count = torch.tensor(factors).prod()
    assert fast.min() >= 0
    assert fast.max() < count
    assert len(fast.unique()) > count // 2


def test_length_of_a_vector_does_not_matter_and_its_opposite_is_elsewhere():
    x = draw(1, 1, 40, 6)
    rotations = hashing.seeded_rotations(0, 1, 2, 6, 4)
    found = hashing.lsh_buckets(x, rotations, (8,))
    assert torch.equal(found, hashing.lsh_buckets(1e-3 * x, rotations, (8,)))
    assert torch.equal((found + 4) % 8, hashing.lsh_buckets(-x, rotations, (8,)))


def test_vectors_collide_the_more_the_nearer_they_point():
    size, rounds = 16, 4000
    rotations = hashing.seeded_rotations(3, 1, rounds, size, 8)
    axes = torch.linalg.qr(draw(size, 2)).Q.T
    cosines = torch.tensor([1.0, 0.9, 0.7, 0.4, 0.0, -0.5, -1.0], dtype=torch.float64)
    x = cosines[:, None] * axes[0] + (1 - cosines**2).sqrt()[:, None] * axes[1]
    (buckets,) = hashing.lsh_buckets(x[None, None], rotations, (16,))[0]
    buckets = buckets if buckets.dim() == 2 else buckets[None]
    share = (buckets == buckets[:, :1]).double().mean(0)
    assert share[0] == 1
    assert share[-1] == 0
    margin = 3 * (0.25 / rounds) ** 0.5
    assert (share[:-2] - share[1:-1] > margin).all(), share


def test_order_is_stable_inside_a_bucket():
    buckets = torch.tensor([[2, 0, 2, 1, 0, 2]])
    assert hashing.bucket_order(buckets).tolist() == [[1, 4, 3, 0, 2, 5]]


@pytest.mark.parametrize(("count", "factors"), [(8, (8,)), (64, (8, 8)), (512, (32, 16))])
def test_many_buckets_are_hashed_in_two_factors(count, factors):
    assert hashing.bucket_factors(count) == factors


@pytest.mark.parametrize("factors", [(), (3,), (4, 0), (8, 5)])
def test_numbers_of_buckets_that_cannot_be_are_refused(factors):
    with pytest.raises(GeneError, match="even numbers"):
        hashing.check_factors(factors)


def test_a_round_is_the_same_however_many_there_are():
    few, many = (hashing.seeded_rotations(5, 2, n, 4, 3) for n in (2, 6))
    assert torch.equal(few, many[:, :2])
