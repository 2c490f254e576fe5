"""Kernel attention: chunks, steps and the dense sum are one; gates, levels, guards, gradients."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from everyformer.core.errors import ConfigError, ShapeError
from everyformer.engines.kernel import chunks
from everyformer.engines.kernel.attention import ask, kernel_attention, read_all
from everyformer.engines.kernel.denominators import POSITIVE, Denominator, divided
from everyformer.engines.kernel.sums import KernelState
from helpers import close, with_gradients
from sequence_laws.flops import count_flops

B, H, M, D = 2, 3, 5, 4
LENGTHS = (1, 2, 7, 64, 65, 150)
SIGNED = Denominator("signed", 1e-9)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Several segments within the lengths of these tests."""
    monkeypatch.setattr(chunks, "BUDGET", 2 * M * (D + 1))


def draw(length, *, levels=False, gates=False, signed=False, padded=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k = (normal(B, H, length, M) for _ in range(2))
    given = {"q": q if signed else q.abs(), "k": k if signed else k.abs()}
    given["v"] = normal(B, H, length, D)
    if levels:
        given["level"] = 3 * normal(B, H, length)
    if gates:
        given["gate"] = F.logsigmoid(2 * normal(B, H, length))
    for t in given.values():
        t.requires_grad_()
    padding_mask = torch.rand(B, length, generator=generator) > 0.3 if padded else None
    return given, padding_mask


def dense(given, padding_mask=None, guard=POSITIVE, causal=True):
    """The sum over pairs, weights relative to the largest of each row."""
    scores = given["q"] @ given["k"].mT
    logs = torch.zeros_like(scores)
    if "level" in given:
        logs = logs + given["level"][:, :, None]
    if "gate" in given:
        hidden = torch.tensor(False) if padding_mask is None else ~padding_mask[:, None]
        gate = given["gate"].masked_fill(hidden, 0)
        logs = logs - gate.cumsum(2)[:, :, None]
    shown = torch.ones(scores.shape[-2:], dtype=torch.bool)
    shown = (shown.tril() if causal else shown).expand_as(scores)
    if padding_mask is not None:
        shown = shown & padding_mask[:, None, None]
    logs = logs.masked_fill(~shown, -math.inf)
    weights = scores * (logs - logs.detach().amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    sums = torch.cat([weights @ given["v"], weights.sum(-1, keepdim=True)], -1)
    return divided(sums, guard)[0]


def pieces(given, padding_mask, cuts, guard=POSITIVE):
    state, found = None, []
    for a, b in itertools.pairwise(cuts):
        part = {name: t[:, :, a:b] for name, t in given.items()}
        shown = None if padding_mask is None else padding_mask[:, a:b]
        y, state = kernel_attention(**part, padding_mask=shown, state=state, guard=guard)
        found.append(y)
    return torch.cat(found, 2), state


KINDS = [
    ({}, POSITIVE),
    ({}, Denominator("positive", 0.3)),
    ({"signed": True}, Denominator("signed", 0.5)),
    ({"levels": True}, POSITIVE),
    ({"gates": True}, POSITIVE),
    ({"levels": True, "gates": True}, POSITIVE),
    ({"levels": True, "gates": True, "signed": True}, SIGNED),
]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("kind", "guard"), KINDS)
def test_chunks_and_steps_are_the_dense_sum(length, kind, guard):
    for padded in (False, True):
        given, padding_mask = draw(length, padded=padded, **kind)
        real = 1.0 if padding_mask is None else padding_mask[:, None, :, None].double()
        expected = with_gradients(dense(given, padding_mask, guard) * real, [*given.values()])
        for cuts in ((0, length), tuple(sorted({0, 1, length // 2, length - 1, length}))):
            y, *found = with_gradients(
                pieces(given, padding_mask, cuts, guard)[0] * real, [*given.values()]
            )
            close(y, expected[0], 1e-9)
            close(found, expected[1:], 1e-8)


@pytest.mark.parametrize("kind", [{}, {"levels": True, "gates": True}])
def test_a_state_is_the_sum_itself_and_steps_reach_the_same(kind):
    given, _ = draw(70, **kind)
    _, state = kernel_attention(**given)
    _, steps = pieces(given, None, tuple(range(71)))
    close(state.sums, steps.sums, 1e-12)
    ones = torch.ones(B, H, 70, 1, dtype=torch.float64)
    weight = ones[..., 0]
    if kind:
        gate = given["gate"]
        weight = (given["level"] + gate.sum(2, keepdim=True) - gate.cumsum(2)).exp()
        close(state.level, steps.level, 1e-12)
        close(state.level, weight.log().amax(2), 1e-12)
    sums = (given["k"] * weight[..., None]).mT @ torch.cat([given["v"], ones], -1)
    scale = 1.0 if state.level is None else state.level.exp()[..., None, None]
    close(state.sums * scale, sums, 1e-12)
    assert state.num_tokens.tolist() == [70, 70]


@pytest.mark.parametrize("gates", [False, True])
@pytest.mark.parametrize(("rows", "length"), [(0, 5), (2, 0)])
def test_no_rows_or_no_tokens_have_no_averages_and_leave_the_state(rows, length, gates):
    _, state = kernel_attention(**draw(7, gates=gates)[0])
    given = {name: t[:rows, :, :length] for name, t in draw(5, gates=gates)[0].items()}
    before = state.reorder(torch.arange(rows))
    y, after = kernel_attention(**given, state=before)
    assert y.shape == (rows, H, length, D)
    assert torch.equal(after.num_tokens, before.num_tokens)
    assert torch.equal(after.sums, before.sums)


def test_bidirectional_sums_are_the_dense_sum_in_any_order():
    for kind, padded in itertools.product(({}, {"levels": True}), (False, True)):
        given, padding_mask = draw(33, padded=padded, **kind)
        level = given.get("level")
        read = read_all(given["k"], given["v"], padding_mask, level)
        y = ask(given["q"], read, POSITIVE, torch.float64)
        close(y, dense(given, padding_mask, causal=False), 1e-12)
        order = torch.randperm(33)
        k, v = given["k"][:, :, order], given["v"][:, :, order]
        shown = None if padding_mask is None else padding_mask[:, order]
        turned = read_all(k, v, shown, None if level is None else level[:, :, order])
        close(ask(given["q"], turned, POSITIVE, torch.float64), y, 1e-12)


def test_levels_far_apart_neither_overflow_nor_vanish():
    """Each key outweighs all before it, or none of them: averages become single values."""
    given, _ = draw(130, dtype=torch.float32)
    at = torch.arange(130.0).expand(B, H, 130)
    rising, _ = kernel_attention(**given, level=1e3 * at)
    close(rising, given["v"], 1e-6)
    falling, _ = kernel_attention(**given, level=-1e3 * at)
    close(falling, given["v"][:, :, :1].expand_as(falling), 1e-6)
    for y in (rising, falling):
        assert all(torch.isfinite(g).all() for g in with_gradients(y, [*given.values()]))


@pytest.mark.parametrize("kind", [{}, {"levels": True, "gates": True}])
def test_rows_without_tokens_give_zero(kind):
    given, _ = draw(66, **kind)
    padding_mask = torch.ones(B, 66, dtype=torch.bool)
    padding_mask[0] = False
    padding_mask[1, :3] = False
    for guard in (POSITIVE, SIGNED):
        y, state = kernel_attention(**given, padding_mask=padding_mask, guard=guard)
        assert (y[0] == 0).all()
        assert (y[1, :, :3] == 0).all()
        assert state.num_tokens.tolist() == [0, 63]
        assert all(torch.isfinite(g).all() for g in with_gradients(y, [*given.values()]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [{}, {"levels": True, "gates": True}])
def test_sums_are_taken_in_float32(dtype, kind):
    given, _ = draw(500, dtype=dtype, **kind)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = kernel_attention(**given)
    assert (y.dtype, state.sums.dtype) == (dtype, torch.float32)
    exact = dense({name: t.double() for name, t in given.items()})
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("kind", [{}, {"levels": True, "gates": True}])
def test_long_rows_keep_their_digits_and_gradients(kind):
    """A small start before a large rest: states by subtraction from the end would lose it."""
    given, _ = draw(8192, dtype=torch.float32, **kind)
    given = {name: t[:1, :1].detach() for name, t in given.items()}
    given["k"][:, :, :64] *= 1e-4
    found = []
    for dtype in (torch.float32, torch.float64):
        cast = {name: t.to(dtype).requires_grad_() for name, t in given.items()}
        y, _ = kernel_attention(**cast)
        found.append([y, *torch.autograd.grad(y[:, :, :200].square().sum(), list(cast.values()))])
    for single, double in zip(*found, strict=True):
        error = (single - double).abs().max() / double.abs().max()
        assert error < 2e-5


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("levels", [False, True])
def test_the_operator_keeps_its_promises(levels):
    given, padding_mask = draw(70, levels=levels, gates=levels, padded=True)
    state = KernelState.empty((B, H), M, D, levels, device="cpu", dtype=torch.float64)
    logs = [given.get("level"), given.get("gate")]
    arguments = (given["q"], given["k"], given["v"], padding_mask, *logs, state.sums, state.level)
    torch.library.opcheck(
        torch.ops.everyformer.kernel_attention, (*arguments, "positive", 0.0, None, "")
    )


def test_flops_are_the_products_that_are_run():
    """Two segments, of two chunks and of one; the products themselves are counted inside."""
    given, _ = draw(192)
    state = M * (D + 1)
    within, mixed = 192 * 64 * (M + D + 1), (2 * 3 + 1 * 2) * state
    forward = count_flops(lambda: kernel_attention(**given))
    assert forward == 2 * B * H * (within + 192 * 2 * state + mixed)
    both = count_flops(lambda: kernel_attention(**given)[0].sum().backward())
    within = 192 * 64 * (3 * M + 2 * (D + 1))
    assert both - forward == 2 * B * H * (within + 192 * 5 * state + 2 * mixed)


@pytest.mark.parametrize(("length", "chunk"), [(20, 24), (24, 24), (56, 56), (57, 64), (64, 64)])
def test_a_short_text_is_one_chunk_of_its_own_length(length, chunk):
    given, _ = draw(length)
    state = M * (D + 1)
    forward = count_flops(lambda: kernel_attention(**given))
    assert forward == 2 * B * H * (chunk * chunk * (M + D + 1) + chunk * 2 * state + 2 * state)


def test_what_has_no_meaning_is_refused():
    given, _ = draw(5, levels=True)
    _, state = kernel_attention(**given)
    with pytest.raises(ConfigError, match="up to a factor"):
        kernel_attention(**given, guard=Denominator("positive", 1e-6))
    del given["level"]
    with pytest.raises(ShapeError, match="features that it was made with"):
        kernel_attention(**given, state=state)


def test_a_constant_gate_is_decay_attention():
    """Weights c^(t - s): with a constant gate the factor 1 - c cancels."""
    given, _ = draw(70)
    c = torch.tensor(0.9, dtype=torch.float64)
    gate = c.log().expand(B, H, 70)
    at = torch.arange(70)
    weights = (given["q"] @ given["k"].mT * c ** (at[:, None] - at)).tril()
    expected = weights @ given["v"] / weights.sum(-1, keepdim=True)
    for level in (None, torch.log1p(-c).expand(B, H, 70)):
        close(kernel_attention(**given, gate=gate, level=level)[0], expected, 1e-12)
