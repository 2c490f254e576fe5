"""The kernels of kernel attention; `test_fused` runs this file."""

import math

import pytest
import torch
import torch.nn.functional as F
from agreed import agree

from everyformer.engines.fused.kernel.call import backward, forward
from everyformer.engines.kernel import attention, chunks

B, H = 1, 2
GIVEN = (None, False)
"""no map: features are given"""
POSITIVE, SIGNED = ("positive", 0.0), ("signed", 0.5)
CASES = {
    "plain": ({}, POSITIVE),
    "with epsilon": ({}, ("positive", 0.3)),
    "signed features": ({"signed": True}, SIGNED),
    "padded": ({"padded": True}, POSITIVE),
    "levels": ({"levels": True}, POSITIVE),
    "gates": ({"gates": True}, POSITIVE),
    "all": ({"levels": True, "gates": True, "padded": True}, POSITIVE),
    "all, guarded": ({"levels": True, "gates": True, "padded": True}, ("signed", 1e-9)),
}
HALF = {torch.bfloat16: 2**-5, torch.float16: 2**-8}


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Segments of one chunk or two."""
    monkeypatch.setattr(chunks, "BUDGET", 2 * 5 * 5)


def draw(
    length=130, features=5, values=4, *, levels=False, gates=False, padded=False, signed=False,
    read=True, dtypes=(torch.float32,) * 3,
):  # fmt: skip
    """The operator's arguments up to the state before, which has ``read`` something or not."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    q, k = (normal(B, H, length, features) for _ in range(2))
    q, k = (q, k) if signed else (q.abs(), k.abs())
    v, sums = normal(B, H, length, values), normal(B, H, features, values + 1).abs()
    q, k, v = (t.to(dtype) for t, dtype in zip((q, k, v), dtypes, strict=True))
    padding_mask = torch.rand(B, length, generator=generator) > 0.3 if padded else None
    level = 3 * normal(B, H, length) if levels else None
    gate = F.logsigmoid(2 * normal(B, H, length)) if gates else None
    if gate is not None and padding_mask is not None:
        gate = gate.masked_fill(~padding_mask[:, None], 0)
    top = normal(B, H) if levels or gates else None
    if not read:
        sums = torch.zeros_like(sums)
        top = None if top is None else torch.full_like(top, -math.inf)
    return q, k, v, padding_mask, level, gate, sums, top


def recurrence(q, k, v, padding_mask, level, gate, sums, top, kind, eps):
    """Token after token: S <- g S + e^c k v', y = q S; the state at the end is e^0 times S."""
    state = sums if top is None else sums * top.exp()[..., None, None]
    ones = torch.ones_like(v[..., :1])
    weight = torch.ones_like(k[..., 0]) if level is None else level.exp()
    if padding_mask is not None:
        weight = weight * padding_mask[:, None]
    y = []
    for t in range(q.shape[2]):
        if gate is not None:
            state = state * gate[:, :, t, None, None].exp()
        valued = torch.cat([v[:, :, t], ones[:, :, t]], -1)
        state = state + weight[:, :, t, None, None] * k[:, :, t, :, None] * valued[:, :, None]
        read = (q[:, :, t, :, None] * state).sum(2)
        y.append(guarded(read[..., :-1], read[..., -1:], level_of(weight, gate, top, t), kind, eps))
    return torch.stack(y, 1), state


def level_of(weight, gate, top, t):
    """The largest weight up to token t: what sums are relative to."""
    if top is None:
        return 1.0
    faded = torch.zeros_like(weight) if gate is None else gate.cumsum(2)
    own = weight[:, :, : t + 1].log() + faded[:, :, t, None] - faded[:, :, : t + 1]
    return torch.maximum(own.amax(2), top + faded[:, :, t]).detach().exp()[..., None]


def guarded(summed, total, scale, kind, eps):
    if kind == "positive":
        total = total + eps
        return torch.where(total > 0, summed / total.where(total > 0, 1), 0)
    return summed / torch.where(total.abs() > eps * scale, total, eps * scale * total.sign())


def check(given, guard, tolerance, ended=True):
    """Results and gradients (also of the state at the end) are the recurrence's in float64, and
    those of torch's operator."""
    found, beside = forward(*given, *guard), attention._attend(*given, *guard, *GIVEN)
    assert [t.dtype for t in found] == [t.dtype for t in beside]
    agree(found, beside, tolerance)
    exact = [t if t is None or t.dtype == torch.bool else t.double() for t in given]
    by = [n for n in (0, 1, 2, 4, 5, 6) if exact[n] is not None]
    for n in by:
        exact[n].requires_grad_()
    y, state = recurrence(*exact, *guard)
    scale = 1.0 if given[7] is None else found[3].double().exp()[..., None, None]
    agree((found[0], found[2]), (y, state / scale), tolerance)
    generator = torch.Generator().manual_seed(3)
    grad_y = torch.randn(y.shape, generator=generator).to(given[2].dtype)
    loss, grad_after = (y * grad_y.double()).sum(), None
    if ended:
        grad_after = torch.randn(state.shape, generator=generator)
        loss = loss + (state / scale * grad_after.double()).sum()
    expected = torch.autograd.grad(loss, [exact[n] for n in by])
    results = found[0], found[1], found[2], found[4], found[5]
    got = backward(*given[:6], *results, grad_y, grad_after, *guard)
    beside = attention._gradients(*given[:6], *results, grad_y, grad_after, *guard, *GIVEN)
    assert [t.dtype for t in got] == [t.dtype for t in beside]
    agree(got, beside, tolerance)
    agree([t for t in got if t.numel()], expected, tolerance)


@pytest.mark.parametrize("case", CASES)
def test_chunks_are_the_recurrence(case):
    kind, guard = CASES[case]
    check(draw(**kind), guard, 3e-5)


@pytest.mark.parametrize("length", [2, 64, 65])
def test_any_length(length):
    check(draw(length, levels=True, gates=True), POSITIVE, 1e-5, ended=False)


@pytest.mark.parametrize(("features", "values"), [(1, 1), (70, 3), (3, 70)])
def test_any_number_of_features_and_values(features, values):
    check(draw(67, features, values, gates=True), POSITIVE, 2e-5)


@pytest.mark.parametrize("kind", [{}, {"levels": True, "gates": True}])
def test_a_state_that_has_read_nothing(kind):
    given = draw(70, read=False, padded=True, **kind)
    given[3][:, :5] = False
    found = forward(*given, *POSITIVE)
    assert (found[0][:, :5] == 0).all()
    check(given, POSITIVE, 1e-5)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("wide", [False, True])
def test_half_values_with_features_half_and_in_float32(dtype, wide):
    features = torch.float32 if wide else dtype
    given = draw(100, dtypes=(features, features, dtype), levels=True, gates=True, padded=True)
    check(given, POSITIVE, HALF[dtype])


def test_hidden_tokens_are_not_read():
    given = draw(70, padded=True)
    other = [t if t is None else t.clone() for t in given]
    for n in (1, 2):
        other[n].masked_fill_(~given[3][:, None, :, None], math.nan)
    found, again = (forward(*t, *POSITIVE) for t in (given, other))
    agree(found, again, 0)
    results = found[0], found[1], found[2], found[4], found[5]
    grads = [backward(*t[:6], *results, found[0], None, *POSITIVE) for t in (given, other)]
    agree(*grads, 0)
    assert (grads[0][1].mT * ~given[3][:, None, None] == 0).all()


def test_levels_of_any_size():
    q, k, v, padding_mask, level, gate, sums, top = draw(80, levels=True, gates=True)
    given = q, k, v, padding_mask, level + 500, gate, sums, top + 500
    before = forward(*draw(80, levels=True, gates=True), *POSITIVE)
    found = forward(*given, *POSITIVE)
    agree(found[:3], before[:3], 1e-3)
    agree((found[3] - 500,), (before[3],), 1e-3)


def test_tokens_with_gaps_between_them():
    given = draw(70, gates=True)
    across = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in given[:3]]
    found, again = forward(*given, *POSITIVE), forward(*across, *given[3:], *POSITIVE)
    agree(found, again, 0)
    results = found[0], found[1], found[2], found[4], found[5]
    spread = torch.ones(1).expand(found[0].shape)
    plain = backward(*given[:6], *results, spread.contiguous(), None, *POSITIVE)
    agree(backward(*across, *given[3:6], *results, spread, None, *POSITIVE), plain, 0)
