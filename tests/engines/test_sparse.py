"""Every plan: units equal masks, pair by pair."""

import math

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
import helpers
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.sparse import branches
from everyformer.engines.sparse.attention import BACKENDS, by_flex, sparse_attention
from everyformer.engines.sparse.by_torch import by_parts
from everyformer.engines.sparse.layouts import Tables
from everyformer.engines.sparse.patterns import (
    Blocks,
    BlockTable,
    Columns,
    GlobalKeys,
    GlobalQueries,
    Near,
    PastBlocks,
)
from everyformer.engines.sparse.plan import SparsePlan, distances
from everyformer.genes.positions import make_position
from sequence_laws.flops import count_flops

HEADS, SIZE = 3, 8


def table(blocks, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return tuple(
        tuple(
            tuple(sorted(set(torch.randint(blocks, (2,), generator=draw).tolist())))
            for _ in range(blocks)
        )
        for _ in range(HEADS)
    )


TOKENS = {"tokens": (0, 9), "causal": False}
PLANS = {
    "all": SparsePlan.of(Near()),
    "all, both sides": SparsePlan.of(Near(causal=False)),
    "all before and two behind": SparsePlan.of(Near(after=2, causal=False)),
    "window": SparsePlan.of(Near(before=5)),
    "window of one": SparsePlan.of(Near(before=0)),
    "both sides": SparsePlan.of(Near(before=3, after=2, causal=False)),
    "dilated": SparsePlan.of(Near(before=3, dilation=3)),
    "dilated, both sides, wide": SparsePlan.of(Near(before=70, after=70, dilation=2, causal=False)),
    "strided": SparsePlan.of(Near(before=6), Near(dilation=7)),
    "strided, both sides": SparsePlan.of(
        Near(before=6, after=6, causal=False), Near(dilation=7, causal=False)
    ),
    "fixed": SparsePlan.of(Blocks(size=7), Columns(period=7, first=5, last=7)),
    "summaries alone": SparsePlan.of(Columns(period=7, first=5, last=7)),
    "blocks and memory": SparsePlan.of(Blocks(size=6, before=4)),
    "blocks, both sides": SparsePlan.of(Blocks(size=6, before=4, after=2, causal=False)),
    "window and globals": SparsePlan.of(
        GlobalKeys(**TOKENS), GlobalQueries(**TOKENS), Near(before=4, after=4, causal=False)
    ),
    "window and a table": SparsePlan.of(
        Near(before=4, after=4, causal=False), BlockTable(size=5, table=table(70), causal=False)
    ),
    "a causal table": SparsePlan.of(BlockTable(size=5, table=table(70, 1)[:1]), Near(before=2)),
    "a table behind two tokens": SparsePlan.of(
        BlockTable(size=5, table=table(70, 2), causal=False, skip=2),
        GlobalQueries(tokens=(0, 1), causal=False),
    ),
    "a table with fewer rows than blocks": SparsePlan.of(
        BlockTable(size=5, table=(((0, 2), (), (1, 4)),), causal=False)
    ),
    "a prefix": SparsePlan.of(Near(), GlobalKeys(tokens=tuple(range(6)), causal=False)),
    "one head causal, one to both sides": SparsePlan(
        ((Near(),), (Near(causal=False),), (Near(after=3, causal=False),))
    ),
    "a block before": SparsePlan.of(PastBlocks(size=5, shift=2)),
    "head by head": SparsePlan(
        (
            (Near(before=3),),
            (Near(dilation=5),),
            (Near(before=3), Columns(period=4, first=3, last=4)),
        )
    ),
}
NAMES = [*PLANS]


def heads(length, batch=2, dtype=torch.float64):
    torch.manual_seed(length)
    return [
        torch.randn(batch, HEADS, length, SIZE, dtype=dtype, requires_grad=True) for _ in range(3)
    ]


def literal(q, k, v, mask):
    scores = (q @ k.mT / math.sqrt(SIZE)).masked_fill(~mask, -math.inf)
    empty = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v


def with_gradients(y, inputs, padding_mask=None):
    real = 1 if padding_mask is None else padding_mask[:, None, :, None]
    return helpers.with_gradients(y * real, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_units_equal_the_mask(name):
    for length in (1, 2, 7, 23, 193):
        inputs, plan = heads(length), PLANS[name]
        want = with_gradients(literal(*inputs, plan.mask(length, HEADS)), inputs)
        rows = [t.transpose(1, 2) for t in inputs]
        found = [sparse_attention(*inputs, plan, backend=b) for b in ("dense", "blocked")]
        found += [by_parts(*rows, None, plan, Scores(1 / math.sqrt(SIZE)))[0].transpose(1, 2)]
        for got in found:
            assert_close(with_gradients(got, inputs), want, rtol=0, atol=1e-12)
        if length == 23:
            assert_close(ef.reference.sparse_attention(*inputs, plan), want[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [7, 43])
@pytest.mark.parametrize("name", NAMES)
def test_windows_may_be_worked_through_one_at_a_time(name, length, padded, monkeypatch):
    """Or in twos: what is merged and summed up is the same."""
    inputs, lengths = heads(length), torch.tensor([length, length // 2]) if padded else None
    mask, padding_mask = PLANS[name].mask(length, HEADS), None
    if lengths is not None:
        padding_mask = torch.arange(length) < lengths[:, None]
        mask = mask & padding_mask[:, None, None]
    want = with_gradients(literal(*inputs, mask), inputs, padding_mask)
    for backend in ("dense", "blocked"):
        got = sparse_attention(*inputs, PLANS[name], lengths=lengths, backend=backend)
        assert_close(with_gradients(got, inputs, padding_mask), want, rtol=0, atol=1e-12)
    monkeypatch.setattr(branches, "LARGEST_SAVED", 0 if padded else branches.LARGEST_SAVED)
    for room in (1, 2 * HEADS * SIZE * 12 // torch.get_num_threads()):
        monkeypatch.setattr(branches, "ROOM", room)
        got = sparse_attention(*inputs, PLANS[name], lengths=lengths, backend="blocked")
        assert_close(with_gradients(got, inputs, padding_mask), want, rtol=0, atol=1e-12)


def test_no_more_than_some_windows_have_gradients_of_their_keys_at_a_time(monkeypatch):
    """Of 33 windows of 8 to 40 keys each, in place of 40 keys for every 8 tokens."""
    asked = []
    real = branches.kernels.backward

    def backward(*tensors, **given):
        found = real(*tensors, **given)
        asked.append(found[1].numel())
        return found

    monkeypatch.setattr(branches.kernels, "backward", backward)
    q, k, v = (torch.randn(1, HEADS, 264, SIZE, requires_grad=True) for _ in range(3))
    plan = SparsePlan.of(Blocks(size=8, before=32))
    for room, calls in ((branches.ROOM, 1), (HEADS * SIZE * 40 * 4, 9)):
        monkeypatch.setattr(branches, "ROOM", room // torch.get_num_threads())
        asked.clear()
        sparse_attention(q, k, v, plan, backend="blocked").sum().backward()
        assert len(asked) == calls
        assert max(asked) <= room


def test_a_table_is_gathered_a_head_at_a_time(monkeypatch):
    """Where the keys of all heads are more than there is room for."""
    taken = []
    real = Tables.take

    def take(self, t):
        units = real(self, t)
        taken.append(units.numel())
        return units

    monkeypatch.setattr(Tables, "take", take)
    q, k, v = (torch.randn(1, HEADS, 350, SIZE, requires_grad=True) for _ in range(3))
    plan = SparsePlan.of(BlockTable(size=5, table=table(70), causal=False))
    of_a_head = 70 * 2 * 5 * SIZE
    whole, apart = (4, HEADS * of_a_head), (4 * HEADS, of_a_head)
    for room, (calls, most) in ((HEADS * of_a_head, whole), (HEADS * (of_a_head - SIZE), apart)):
        monkeypatch.setattr(branches, "ROOM", room // torch.get_num_threads())
        taken.clear()
        sparse_attention(q, k, v, plan, backend="blocked").sum().backward()
        assert taken == [most] * calls  # keys and values, forward and backward


@pytest.mark.parametrize("name", [n for n in NAMES if PLANS[n].causal])
def test_needed_keys_are_those_that_a_later_query_sees(name):
    mask = PLANS[name].mask(60, HEADS)
    for now in (1, 5, 6, 7, 20, 21):
        later = mask[:, now:, :now].any(0).any(0)
        needed = PLANS[name].needed(torch.arange(now), torch.tensor(now))
        assert not bool((later & ~needed).any())
        if PLANS[name].span is not None:
            assert not bool(later[: max(0, now - PLANS[name].span)].any())


ACTING = ["alibi", "t5-relative", "shaw", "xl-relative"]


# each plan with a position that is added to scores and one of vectors
@pytest.mark.parametrize(
    ("name", "position"), [(n, ACTING[(k + at) % 4]) for k, n in enumerate(NAMES) for at in (0, 2)]
)
def test_positions_that_act_on_scores_are_those_of_the_dense_form(name, position):
    plan = PLANS[name]
    torch.manual_seed(0)
    made = make_position(
        position, {}, width=HEADS * SIZE, heads=HEADS, head_dim=SIZE, value_dim=SIZE,
        max_length=43, causal=plan.causal,
    ).double()  # fmt: skip
    for weight in made.parameters():
        torch.nn.init.normal_(weight)
    tensors = [*heads(43), *made.parameters()]
    if not made.additive and "table" in name and name != "a causal table":
        with pytest.raises(UnsupportedError, match="different blocks"):
            sparse_attention(*tensors[:3], plan, scores=Scores(position=made), backend="blocked")
        return
    got, want = (
        sparse_attention(*tensors[:3], plan, scores=Scores(position=made), backend=backend)
        for backend in ("blocked", "dense")
    )
    got, want = with_gradients(got, tensors), with_gradients(want, tensors)
    assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["strided", "window and globals", "summaries alone"])
def test_lower_precision_and_large_scores_stay_finite(name, dtype):
    inputs = [t.detach().to(dtype).requires_grad_() for t in heads(300)]
    got = sparse_attention(*inputs, PLANS[name], backend="blocked")
    want = sparse_attention(*(t.double() for t in inputs), PLANS[name], backend="dense")
    assert got.dtype == dtype
    assert_close(got.double(), want, rtol=0, atol={torch.float32: 1e-5}.get(dtype, 3e-2))
    large = sparse_attention(*(t * 1e3 for t in inputs), PLANS[name], backend="blocked")
    assert bool(large.isfinite().all())
    if dtype != torch.float16:
        # there gradients themselves are beyond 65,504
        assert all(bool(t.isfinite().all()) for t in with_gradients(large, inputs))


@pytest.mark.full("many cases", parts=3)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", NAMES)
def test_flex_attention_has_the_same_mask(name):
    q, k, v = (t.detach().float() for t in heads(43))
    for lengths in (None, torch.tensor([43, 30])):
        got = by_flex(q, k, v, PLANS[name], lengths, 1 / math.sqrt(SIZE))
        want = sparse_attention(q, k, v, PLANS[name], lengths=lengths, backend="dense")
        assert_close(got[0], want[0], rtol=0, atol=1e-5)
        assert_close(got[1, :, :30], want[1, :, :30], rtol=0, atol=1e-5)


def test_heads_come_back_in_their_order():
    """Five heads of three kinds: heads in groups are no order that is its own inverse."""
    plan = SparsePlan(tuple((Near(before=width),) for width in (1, 4, 9, 1, 4)))
    q, k, v = (torch.randn(2, 21, 5, SIZE, dtype=torch.float64) for _ in range(3))
    got = by_parts(q, k, v, None, plan, Scores())[0].transpose(1, 2)
    want = literal(*(t.transpose(1, 2) for t in (q, k, v)), plan.mask(21, 5))
    assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: FlexAttention runs on one")
def test_flex_attention_on_a_gpu():
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 2, 300, 32, generator=draw).cuda().requires_grad_() for _ in "qkv"]
    ways = [sparse_attention(*inputs, PLANS["strided"], backend=b) for b in ("flex", "dense")]
    found = [[y, *torch.autograd.grad(y.square().sum(), inputs)] for y in ways]
    assert_close(*found, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["strided", "window and a table", "summaries alone"])
def test_channels_may_lie_apart_and_values_be_of_another_size(name):
    q, k, v = heads(43)
    q, k = (t.mT.contiguous().mT for t in (q, k))
    v = v[..., ::2]
    got = sparse_attention(q, k, v, PLANS[name], backend="blocked")
    want = literal(q, k, v, PLANS[name].mask(43, HEADS))
    g = torch.ones(()).expand(got.shape).double()
    for y in (got, want):
        assert y.shape == v.shape
    found = [torch.autograd.grad(y, (q, k, v), g) for y in (got, want)]
    assert_close([got, *found[0]], [want, *found[1]], rtol=0, atol=1e-12)


SOME = [(12, 21, 43), (13, 40), (14, 20, 42)]


@pytest.mark.parametrize(("name", "lengths"), [(n, SOME[k % 3]) for k, n in enumerate(NAMES)])
def test_heads_may_lie_side_by_side_as_projections_give_them(name, lengths):
    """Blocks are picked where they lie, whether the last of them is full or not."""
    for length in lengths:
        every = helpers.draw(2, length, 3 * HEADS, SIZE, seed=length).requires_grad_()
        inputs = [t.transpose(1, 2) for t in every.chunk(3, 2)]
        got = sparse_attention(*inputs, PLANS[name], backend="blocked")
        want = literal(*inputs, PLANS[name].mask(length, HEADS))
        assert_close(*(with_gradients(y, [every]) for y in (got, want)), rtol=0, atol=1e-12)


def test_windows_cost_as_many_operations_as_they_have_keys():
    def operations(length):
        q, k, v = (torch.zeros(1, 1, length, SIZE, requires_grad=True) for _ in range(3))
        plan, of = SparsePlan.of(Near(before=255)), {"backend": "blocked"}
        return count_flops(lambda: sparse_attention(q, k, v, plan, **of).sum().backward())

    assert operations(8192) == 2 * operations(4096)
    # 64 rows read 64 + 255 + 1 keys: 14 products of a pair forward and backward
    assert operations(4096) == 14 * SIZE * 4096 * 320


def layers_to(*plans, length):
    return distances([plan.mask(length)[0] for plan in plans])


def test_fixed_sets_reach_every_earlier_token_only_first_set_first():
    first = SparsePlan.of(Blocks(size=8))
    second = SparsePlan.of(Columns(period=8, first=7, last=8))
    # of 2,080 causal pairs
    assert int((layers_to(first, second, length=64) <= 2).sum()) == 2080
    assert int((layers_to(second, first, length=64) <= 2).sum()) == 512


@pytest.mark.parametrize(
    ("shapes", "plan", "backend", "error", "says"),
    [
        ([(1, 3, 4, 8), (1, 3, 5, 8), (1, 3, 4, 8)], "window", "auto", ShapeError, "alike"),
        ([(1, 2, 4, 8)] * 3, "head by head", "auto", ShapeError, "3 heads"),
        ([(1, 3, 4, 8)] * 3, "window", "fast", ConfigError, ", ".join(BACKENDS)),
        ([(1, 3, 4, 8)] * 3, "window", "flex", UnsupportedError, "GPU"),
    ],
)
def test_calls_that_cannot_be_are_refused(shapes, plan, backend, error, says):
    with pytest.raises(error, match=says):
        sparse_attention(*map(torch.zeros, shapes), PLANS[plan], backend=backend)


def test_scores_of_a_plan_have_no_softcap_and_no_sink():
    for scores in (Scores(softcap=5.0), Scores(sink=torch.zeros(HEADS))):
        with pytest.raises(UnsupportedError, match="no softcap and no sink"):
            sparse_attention(*heads(8), PLANS["strided"], scores=scores)


@pytest.mark.parametrize("backend", ["blocked", "auto"])
@pytest.mark.parametrize("name", ["window", "strided", "window and globals", "head by head"])
def test_dropout_changes_outputs_by_as_much_as_it_should(name, backend):
    """The mean over many drops is what is without; the weights that stay weigh more."""
    q, k, v = (t.detach() for t in heads(300, batch=1))
    one = torch.ones_like(v)
    rule = Scores(1 / math.sqrt(SIZE), dropout=0.5)
    torch.manual_seed(0)
    kept = sparse_attention(q, k, one, PLANS[name], scores=rule, backend=backend)
    again = sparse_attention(q, k, one, PLANS[name], scores=rule, backend=backend)
    assert (kept - again).abs().max() > 0.1
    # each sum of weights is 1 without dropout: with it some are more, some less, 1 in the mean
    assert kept.std() > 0.1
    assert abs(float(torch.stack((kept, again)).mean()) - 1) < 0.1
