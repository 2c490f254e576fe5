"""What may be said of plans themselves: texts, pairs, squares of FlexAttention, reach."""

import math

import pytest
import torch
from test_sparse import HEADS, NAMES, PLANS, heads, layers_to
from torch.testing import assert_close

from everyformer.core.errors import GeneError, ShapeError
from everyformer.engines.sparse.attention import SQUARE, _kept_blocks, sparse_attention
from everyformer.engines.sparse.patterns import (
    Blocks,
    BlockTable,
    Columns,
    GlobalKeys,
    GlobalQueries,
    Near,
)
from everyformer.engines.sparse.plan import SparsePlan


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_its_text_and_complete_if_and_only_if_it_shows_every_pair(name):
    plan, every = PLANS[name], torch.ones(43, 43, dtype=torch.bool)
    shown = plan.mask(43, HEADS) == (every.tril() if plan.causal else every)
    assert plan.complete == bool(shown.all())
    assert SparsePlan.from_text(plan.text) == plan


@pytest.mark.parametrize("tokens", [(), (0,), (4,), (0, 5, 6, 7), (9, 3, 3, 2), (11, 40)])
def test_global_tokens_are_those_that_are_named(tokens):
    at = torch.arange(12)
    named = torch.isin(at, torch.tensor(tokens, dtype=torch.long)).expand(12, 12)
    keys, queries = (
        cls(tokens=tokens, causal=False).visible(at[:, None], at[None], at[:1])
        for cls in (GlobalKeys, GlobalQueries)
    )
    assert torch.equal(keys, named)
    assert torch.equal(queries, named.T)


LENGTHS = [(n, (1, 43, 128, 300)[(k + at) % 4]) for k, n in enumerate(NAMES) for at in (0, 2)]


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_squares_of_flex_attention_are_those_of_the_mask(name, length):
    """Some pairs of a listed square are visible, all of a full one, none of the others."""
    plan, count = PLANS[name], -(-length // SQUARE)
    mask = torch.zeros(1, HEADS, count * SQUARE, count * SQUARE, dtype=torch.bool)
    mask[..., :length, :length] = plan.mask(length, HEADS)
    squares = mask.unflatten(3, (count, SQUARE)).unflatten(2, (count, SQUARE)).transpose(3, 4)
    some, every = squares.flatten(4).any(-1), squares.flatten(4).all(-1)

    def listed(numbers, order):
        places = torch.zeros_like(order, dtype=torch.bool)
        chosen = torch.arange(count) < numbers[..., None]
        return places.scatter(-1, order.long(), chosen).expand_as(some)

    kept = _kept_blocks(plan.text, HEADS, length, torch.device("cpu"), False)
    assert torch.equal(listed(kept.full_kv_num_blocks, kept.full_kv_indices), every)
    assert torch.equal(listed(kept.kv_num_blocks, kept.kv_indices), some & ~every)
    asked = _kept_blocks(plan.text, HEADS, length, torch.device("cpu"), True)
    assert asked.full_kv_num_blocks is None
    assert torch.equal(listed(asked.kv_num_blocks, asked.kv_indices), some)
    assert _kept_blocks(plan.text, HEADS, length, torch.device("cpu"), True) is asked


def test_distances_are_the_layers_after_which_a_token_is_reached():
    """Of windows |i - j| / w rounded up; of sets in turn, what is seen of what is seen."""
    at = torch.arange(23)
    apart = (at[:, None] - at).abs()
    window = SparsePlan.of(Near(before=3, after=3, causal=False))
    assert_close(layers_to(window, length=23), (apart / 3).ceil())
    causal = layers_to(SparsePlan.of(Near(before=3)), length=23)
    assert_close(causal, (apart / 3).ceil().masked_fill(at[:, None] < at, math.inf))
    near, strided = SparsePlan.of(Near(before=7)), SparsePlan.of(Near(dilation=8))
    for turns in ((near, strided), (strided, near)):
        far, reached = layers_to(*turns, length=64), torch.eye(64).bool()
        for layers in range(4):
            assert_close(far <= layers, reached)
            seen = turns[layers % 2].mask(64)[0] | torch.eye(64).bool()
            reached = (seen.float() @ reached.float()) > 0
        assert_close(far <= 2, torch.ones(64, 64, dtype=torch.bool).tril())


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Near(before=-1), GeneError, "-1"),
        (lambda: Near(before=1, dilation=0), GeneError, "dilation"),
        (lambda: Blocks(size=0), GeneError, "at least 1"),
        (lambda: Columns(period=4, first=2, last=5), GeneError, "period of 4"),
        (lambda: GlobalKeys(tokens=(-1,)), GeneError, "from 0 on"),
    ],
)
def test_patterns_that_cannot_be_are_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_density_counts_pairs_and_a_drawing_has_a_line_a_query():
    assert SparsePlan.of(Near(before=0)).density(10) == 10 / 55
    assert SparsePlan.of(Blocks(size=5, causal=False)).density(10) == 0.5
    assert SparsePlan.of(Near(before=1)).draw(3) == "#..\n##.\n.##"


def test_a_table_for_other_heads_is_refused():
    table = BlockTable(size=4, table=(((0,),),) * 3)
    inputs = heads(12)
    sparse_attention(*inputs, SparsePlan.of(table))
    for plan in (SparsePlan.of(Near(), BlockTable(size=4, table=(((0,),),) * 2)),
                 SparsePlan(((table,), (Near(),), (Near(),)))):  # fmt: skip
        with pytest.raises(ShapeError, match=r"a table of the plan is for [23] heads"):
            sparse_attention(*inputs, plan)
    with pytest.raises(GeneError, match="none of them is -1"):
        BlockTable(size=4, table=(((-1,),),))


def test_a_table_with_fewer_rows_than_blocks_shows_every_block_that_it_names():
    plan = SparsePlan.of(BlockTable(size=2, table=(((0, 2), (), (1, 4)),), causal=False))
    seen = plan.mask(10)[0].unflatten(1, (5, 2)).unflatten(0, (5, 2)).any(-1).any(1)
    assert [row.nonzero()[:, 0].tolist() for row in seen] == [[0, 2], [], [1, 4], [], []]
