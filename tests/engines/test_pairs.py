"""Tables over distances in blocks, and blocks of queries under every mask."""

import itertools

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.engines.softmax import scored
from everyformer.engines.softmax.pairs import Pairs

SIZES = [(1, 1), (1, 5), (4, 4), (3, 7), (5, 5), (2, 9)]


def positioned(queries, keys, regular):
    slots = torch.arange(keys)[None] + 11
    return Pairs.of(slots[:, keys - queries :], slots, regular=regular)


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_a_pair_gets_the_column_of_its_distance(queries, keys, regular):
    where = positioned(queries, keys, regular)
    column = where.farthest - where.distances()[0]
    assert torch.equal(where.span()[column], where.distances()[0])
    by_query = torch.randn(3, 2, queries, where.columns)
    expected = by_query.gather(-1, column.expand(3, 2, -1, -1))
    assert torch.equal(where.lay(by_query), expected)
    table = torch.randn(2, where.columns)
    assert torch.equal(where.of_cut(where.cut(where.tile(table)))[0], table[:, column])


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_a_block_reads_its_part_of_the_tables(queries, keys, regular):
    where = positioned(queries, keys, regular)
    table = torch.randn(2, where.columns)
    by_query = torch.randn(3, 2, queries, where.columns)
    column = where.farthest - where.distances()[0]
    for first, last in itertools.combinations(range(queries + 1), 2):
        seen = keys - queries + last
        part = where.block(slice(None), first, last, seen)
        whole = table[:, column][..., first:last, :seen]
        assert torch.equal(part.of_cut(part.cut(where.tile(table)))[0], whole)
        rows = by_query[:, :, first:last]
        rows = part.take(rows) if regular else rows
        assert torch.equal(part.lay(rows), where.lay(by_query)[..., first:last, :seen])


def mixed(mixer, x, mask=None):
    inputs = [x, *mixer.parameters()]
    y = mixer(x, mask=mask).y
    return y, torch.autograd.grad(y.square().sum(), inputs)


MASKS = {
    "plain": lambda: None,
    "holes": lambda: Mask(keep=torch.rand(2, 37) > 0.3),
    "left": lambda: Mask(keep=torch.arange(37) >= torch.tensor([[0], [9]])),
    "documents": lambda: Mask(documents=(torch.arange(37) // 15).expand(2, -1)),
    "allowed": lambda: Mask(allowed=torch.rand(2, 1, 37, 37) > 0.4),
    "bias": lambda: Mask(bias=torch.randn(37, 37).double()),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, {"window": 5}, {"softcap": 2.0, "sink": True}])
@pytest.mark.parametrize("kind", MASKS)
def test_blocks_equal_the_whole_with_gradients(kind, options, causal, monkeypatch):
    torch.manual_seed(0)
    mixer = ef.create_mixer(
        "attention", width=12, heads=3, causal=causal, position="t5-relative",
        position_options={"buckets": 8, "max_distance": 12}, **options,
    ).double()  # fmt: skip
    x, mask = torch.randn(2, 37, 12).double().requires_grad_(), MASKS[kind]()
    whole, gradients = mixed(mixer, x, mask)
    monkeypatch.setattr(scored, "BLOCK", 2 * 3 * 37 * 5)
    blocks, same = mixed(mixer, x, mask)
    torch.testing.assert_close(blocks, whole)
    for a, b in zip(same, gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (4, 4), (3, 8)])
def test_the_shift_puts_distances_at_pairs(queries, keys):
    torch.manual_seed(0)
    scores = torch.randn(2, 3, queries, queries + keys - 1, dtype=torch.float64, requires_grad=True)
    got, want = (part.relative_shift(scores) for part in (ef.functional, ef.reference))
    assert torch.equal(got, want)
    # of keys that end with the queries, the number is that of the pair's distance alone
    apart = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
    distances = (keys - 1 - torch.arange(queries + keys - 1)).expand(queries, -1)
    assert torch.equal(ef.functional.relative_shift(distances), -apart)
    torch.autograd.gradcheck(ef.functional.relative_shift, scores, fast_mode=True)


def test_a_shift_of_too_few_distances_is_refused():
    with pytest.raises(ShapeError, match="at least 4"):
        ef.functional.relative_shift(torch.zeros(4, 3))


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 20])
def test_slopes_have_a_closed_form(heads):
    slopes = [part.alibi_slopes(heads) for part in (ef.functional, ef.reference)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-15)
