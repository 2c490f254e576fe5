"""`nearest`: exactly the largest products, by whatever blocks and groups they are found."""

import math

import pytest
import torch
from torch import Tensor

from everyformer.engines.content import nearest as module
from everyformer.engines.content.best import largest
from everyformer.engines.content.nearest import nearest


@pytest.fixture(autouse=True, params=["in blocks", "at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in blocks":
        monkeypatch.setattr(module, "SMALL", 0)
    return request.param


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.double)


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 1), (5, 3), (7, 7), (100, 1), (131, 3), (1000, 5), (1003, 30), (4096, 32), (5000, 700)],
)
def test_the_largest_are_those_of_a_whole_sort(size: int, count: int) -> None:
    scores = normal(3, 2, size)
    scores[..., -1] += 9  # behind the last whole group, where there is one
    found = largest(scores, count)
    expected = scores.sort(-1, descending=True)
    assert torch.equal(found.scores, expected.values[..., :count])
    assert torch.equal(found.keys, expected.indices[..., :count])


SIZES = [(1, 40, 4), (5, 37, 3), (6, 3, 3), (2, 60, 25)]


@pytest.mark.parametrize(("block", "budget"), [(8192, 1 << 22), (16, 64), (7, 1), (1, 100)])
@pytest.mark.parametrize(("length", "size", "count"), SIZES)
def test_nearest_is_a_sort_of_all_visible_products(
    block, budget, length, size, count, monkeypatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "BUDGET", budget)
    q, k = normal(2, 3, length, 4), normal(2, 3, size, 4)
    places = torch.randperm(size).expand(2, 3, -1)
    low = torch.randint(0, size // 2 + 1, (2, 1, length))
    high = low + torch.randint(0, size, (2, 1, length))
    found = nearest(q, k, count, places=places, within=(low, high))
    products = torch.einsum("bhld,bhsd->bhls", q, k)
    seen = (places[:, :, None] >= low[..., None]) & (places[:, :, None] < high[..., None])
    products = products.masked_fill(~seen, -math.inf)
    expected = products.sort(-1, descending=True).values[..., :count]
    torch.testing.assert_close(found.scores, expected)
    real = expected > -math.inf
    torch.testing.assert_close(products.gather(-1, found.keys)[real], expected[real])


def test_more_than_there_are_is_filled_with_nothing() -> None:
    found = nearest(normal(1, 2, 3), normal(1, 4, 3), 6)
    assert found.scores.shape == found.keys.shape == (1, 2, 6)
    assert (found.scores[..., 4:] == -math.inf).all()
    assert (found.scores[..., :4] > -math.inf).all()


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_keys_in_any_order_of_their_scores(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rising: every block is better than all before; falling: none is; equal: any will do."""
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setattr(module, "BUDGET", 1)
    keys = {"rising": torch.arange(99), "falling": -torch.arange(99), "equal": torch.zeros(99)}
    found = nearest(torch.ones(1, 3, 1), keys[order][None, :, None].float(), 7)
    assert torch.equal(found.scores, keys[order].float().topk(7).values.expand(1, 3, 7))
    assert all(len(set(row.tolist())) == 7 for row in found.keys[0])


@pytest.mark.parametrize("dtype", [torch.double, torch.half])
@pytest.mark.parametrize(
    ("length", "size", "count", "block", "budget"),
    # few queries meet blocks of half the budget
    [(6, 20_003, 600, 8192, 1 << 22), (6, 20_003, 1024, 8192, 1 << 22)]
    + [(length, 90, 7, 16, 1 << 10) for length in (1, 16, 17)],
)
def test_keys_of_any_precision_and_number_are_those_of_a_sort(
    length, size, count, block, budget, dtype, monkeypatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "BUDGET", budget)
    q, k = normal(1, length, 6), normal(1, size, 6).to(dtype)
    found = nearest(q, k, count)
    expected = (q @ k.double().mT).sort(-1, descending=True)
    assert torch.equal(found.keys, expected.indices[..., :count])
    torch.testing.assert_close(found.scores, expected.values[..., :count])


@pytest.mark.parametrize(("length", "most"), [(20, 2048), (4, 1024)])
def test_products_are_asked_in_pieces_within_the_budget(length, most, monkeypatch) -> None:
    """Half of it for few queries, whose products may be written twice."""
    sizes = []
    meet = module.Best.meet

    def watched(self: module.Best, scores: Tensor, first: int) -> None:
        sizes.append(scores.numel())
        meet(self, scores, first)

    monkeypatch.setattr(module.Best, "meet", watched)
    monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(module, "BUDGET", 2048)
    nearest(normal(3, length, 4), normal(3, 5000, 4), 40)
    assert max(sizes) <= most
    assert sum(sizes) == 3 * length * 5000
