"""Running (causal prefix) softmax averages, and the plain average over a whole row.

For keys K and values V, per channel, with p = softmax over t' <= t of K:

    lse_t = log sum_{t'<=t} exp(K_t'),        o_t = sum_{t'<=t} p_{t,t'} V_t'

Both are linear recurrences whose gates exp(m_{t-1} - m_t), m the running maximum, lie in [0, 1], so
nothing under- or overflows whatever the keys, and step t never touches what comes after it. An
average is itself a token, with key lse and value o: averages are carried on by putting them in
front, and merged by averaging them. Engines that take the sums which averages are ratios of,
[exp(K) V | exp(K)] relative to one reference key, by matrix products share what is here for them.

Shapes: k (B, S, H, K), v (B, S, H, V); K = V for a key per channel, K = 1 for one per head.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from everyformer.engines.cuda import on_cuda
from everyformer.engines.operators import applied, operator
from everyformer.engines.ranges import (
    bias_limit,
    fake,
    full_precision,
    key_gradient,
    one_reference,
    per_key,
    returned,
    widened,
)


def running_average(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Averages of ``v`` over all positions so far, weighted by softmax of ``k``.

    Args:
        k: (B, S, H, K) keys; -inf hides a token. K is V or 1.
        v: (B, S, H, V) values.

    Returns:
        The log of the summed weights (B, S, H, K), float32 at least, and the averages
        (B, S, H, V) in v's dtype; zero (and -inf) where nothing is seen. To continue earlier
        tokens, give their log-sum and average as the first token.
    """
    lse, o = applied(_running_average, k, v)
    return lse, o


def joined(lse: Tensor, average: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum and average (..., V), float32 at least, with one more token in them, whose ``k`` is
    finite."""
    k, v = widened(k), widened(v)
    total = torch.logaddexp(lse, k)
    return total, torch.lerp(average, v, torch.exp(k - total))


def total_average(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Average over the whole row: log-sum (B, H, K) and value (B, H, V), float32 at least.

    Arguments as in `running_average`; rows without a visible token give -inf and zero.
    """
    k, v = widened(k), widened(v)
    top = k.detach().amax(1, keepdim=True).clamp(min=torch.finfo(k.dtype).min)
    weights = torch.exp(k - top)
    total = weights.sum(1)
    seen = total > 0
    total = torch.where(seen, total, 1)
    lse = torch.where(seen, top.squeeze(1) + total.log(), -math.inf)
    return lse, (weights * v).sum(1) / total


def _averages(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    with full_precision(k):
        lse, o = forward_scan(widened(k), widened(v))
    return lse.contiguous(), returned(o, v)


def _gradients(
    k: Tensor, v: Tensor, lse: Tensor, o: Tensor, grad_lse: Tensor | None, grad_o: Tensor
) -> tuple[Tensor, Tensor]:
    """With g the gradient of o, the other one is c_t = dlse_t - g_t o_t."""
    with full_precision(k):
        g, c = sums_gradient(o, grad_o, k.shape[-1])
        c = c if grad_lse is None else c.add_(grad_lse)
        dk, dv = backward_scan(widened(k), widened(v), lse, g, c)
    return returned(dk, k), returned(dv, v)


def forward_scan(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`running_average` without autograd, in the dtype of its arguments."""
    length, lowest = k.shape[1], torch.finfo(k.dtype).min
    weight, summed = _chunks(k), _chunks(v)
    top = _running_maximum(weight.clamp(min=lowest))
    weight.sub_(top).exp_()
    summed.mul_(weight)
    _scan(top, weight, summed)
    # the largest key so far adds 1 to the sum of weights: only a row without tokens is below
    summed.div_(weight.clamp(min=0.5))
    lse = top.add_(weight.log_())
    return lse.flatten(1, 2)[:, :length], summed.flatten(1, 2)[:, :length]


def backward_scan(k: Tensor, v: Tensor, lse: Tensor, g: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of k and v: the same recurrence, run from the last token to the first.

    With p_{t,t'} = exp(K_t' - lse_t):  dV_t' = sum_t p g_t  and  dK_t' = V_t' dV_t' + sum_t p c_t.
    """
    level, dv, dweight = _chunks(lse), _chunks(g, 0.0), _chunks(c, 0.0)
    level.clamp_(min=torch.finfo(lse.dtype).min)
    _scan(level, dv, dweight, back=True)
    lse, dv, dweight = (t.flatten(1, 2)[:, : k.shape[1]] for t in (level, dv, dweight))
    p = torch.sub(k, lse).exp_()
    dv.mul_(p)
    return key_gradient(v, p, dv, dweight), dv


def _chunks(x: Tensor, fill: float | None = None) -> Tensor:
    """A copy of ``x`` (B, S, ...) as (B, chunks, chunk, ...), both about sqrt(S).

    It is filled up with a number or, so that all before stays as it is, with the last token.
    """
    length = x.shape[1]
    size = math.isqrt(length - 1) + 1
    chunks = -(-length // size)
    copy = x.new_empty(x.shape[0], chunks * size, *x.shape[2:])
    copy[:, :length] = x
    copy[:, length:] = x[:, -1:] if fill is None else fill
    return copy.unflatten(1, (chunks, size))


def _running_maximum(top: Tensor) -> Tensor:
    """Largest value so far, in place, by the two levels of `_scan` (three times torch.cummax)."""
    for past, now in pairwise(top.unbind(2)):
        torch.maximum(now, past, out=now)
    before = top[:, :, -1].clone()
    for past, now in pairwise(before.unbind(1)):
        torch.maximum(now, past, out=now)
    top[:, 1:].clamp_(min=before[:, :-1, None])
    return top


def _scan(level: Tensor, *sums: Tensor, back: bool = False) -> None:
    """y_t += exp(level_{t-1} - level_t) y_{t-1}, in place in chunks; level never falls.

    Two levels: chunks of about sqrt(S) positions advance side by side, then their ends are carried
    from chunk to chunk, then every position takes in what came before its chunk. 2 sqrt(S) small
    steps in all.

    Args:
        back: y_t += exp(level_t - level_{t+1}) y_{t+1}, from the last to the first.
    """
    edge = level[:, :, 0 if back else -1]
    near = torch.sub(level[:, :, :-1], level[:, :, 1:]).exp_().unbind(2)
    far = torch.sub(edge[:, :-1], edge[:, 1:]).exp_().unbind(1)
    if back:
        fade = torch.sub(level[:, :-1], edge[:, 1:, None]).exp_()
    else:
        fade = torch.sub(edge[:, :-1, None], level[:, 1:]).exp_()
    for y in sums:
        _advance(y.unbind(2), near, back)
        carried = y[:, :, 0 if back else -1].clone()
        _advance(carried.unbind(1), far, back)
        if back:
            y[:, :-1].addcmul_(fade, carried[:, 1:, None])
        else:
            y[:, 1:].addcmul_(fade, carried[:, :-1, None])


def _advance(steps: Sequence[Tensor], gates: Sequence[Tensor], back: bool) -> None:
    """Each of the ``steps`` but the first takes in the one before it, times their gate; or, `back`,
    each but the last the one after it."""
    meetings = list(zip(pairwise(steps), gates, strict=True))
    for (past, now), gate in reversed(meetings) if back else meetings:
        if back:
            past.addcmul_(gate, now)
        else:
            now.addcmul_(gate, past)


def reference_of(k: Tensor, bias: Tensor, causal: bool, lead: int = 0) -> Tensor | None:
    """The reference keys, None where keys or biases leave the range in which sums are exact."""
    reference, fits = one_reference(k, causal, lead)
    return reference if fits and bool(bias.abs().amax() <= bias_limit(bias.dtype)) else None


def fill_sums(out: Tensor, k: Tensor, v: Tensor, reference: Tensor) -> None:
    """Sums' terms exp(K) V and exp(K) of each token, side by side in ``out`` (B, S, H, V + K)."""
    # exp of a contiguous tensor is four times as fast as of a slice
    weight, values = torch.sub(k, reference).exp_(), v.shape[-1]
    out[..., values:] = weight
    torch.mul(weight, v, out=out[..., :values])


def sums_gradient(o: Tensor, grad_o: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Gradients of both sums of an average o, times its denominator: g, and c = -g o by key."""
    g = widened(grad_o)
    return g, per_key(g * widened(o), keys).neg_()


def inputs_gradient(v: Tensor, weight: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
    """dK = V dV + exp(K) dexp(K) and dV, from ``weight`` = exp(K) and the gradient of the sums."""
    values = v.shape[-1]
    dv = weight * dx[..., :values]
    return key_gradient(v, weight, dv, dx[..., values:]), dv


_running_average, _running_average_backward = operator(
    "running_average",
    _averages,
    _gradients,
    results=("lse", "o"),
    inputs=("k", "v"),
    shapes=lambda k, v: (fake(widened(k)), fake(v)),
    # one multiplication and one addition for each of the two sums
    flops=(
        lambda k, v: 2 * (math.prod(k) + math.prod(v)),
        lambda k, v: 4 * (math.prod(k) + math.prod(v)),
    ),
)
on_cuda(_running_average, "running.forward", _averages)
on_cuda(_running_average_backward, "running.backward", _gradients)
