"""The exact path of ``banded``: one offset of the band after the other, for keys of any range.

Three parts are merged by their log-sums: the running average of all that is older than the band,
the same from the other end where the future is seen, and every offset of the band as an average of
one token. Slower than ``banded`` by about n passes over the values, and taken by it only where one
reference would not do. Arguments are those of `everyformer.engines.averages.banded.banded_average`.
"""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from everyformer.engines.averages.running import backward_scan, forward_scan
from everyformer.engines.ranges import per_key


def exact_forward(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int
) -> tuple[Tensor, Tensor]:
    """Averages (B, L, H, V) and log-sums (B, L, H, K)."""
    length, before = k.shape[1] - lead, _before(bias, causal)
    far = [_far(k, v, before + 1 - lead, length)]
    if not causal:
        lse, o = _far(k.flip(1), v.flip(1), before + 1, length)
        far.append((lse.flip(1), o.flip(1)))
    top = torch.stack([lse for lse, _ in far]).amax(0)
    for score, _, _ in _near(k, v, bias, causal, lead):
        torch.maximum(top, score, out=top)
    top.clamp_(min=torch.finfo(k.dtype).min)
    total, summed = torch.zeros_like(top), torch.zeros_like(far[0][1])
    near = ((score, value) for score, value, _ in _near(k, v, bias, causal, lead))
    for score, value in itertools.chain(far, near):
        weight = torch.exp(score - top)
        total += weight
        summed += weight * value
    # the largest score adds 1 to the total: only a row without tokens is below
    return summed / total.clamp(min=0.5), top + total.log()


def exact_backward(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int, lse: Tensor, g: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of k, v and bias from those of o (g) and of the log-sum (c), pair by pair:

    dV_t' += p g_t,  dK_t' += p (g_t V_t' + c_t) = dbias, with p = exp(K_t' + bias - lse_t).
    """
    keys, before = k.shape[-1], _before(bias, causal)
    lse = lse.clamp(min=torch.finfo(lse.dtype).min)
    dk, dv = _far_backward(k, v, lse, g, c, before + 1 - lead)
    if not causal:
        k_late, v_late, lse_late, g_late, c_late = (t.flip(1) for t in (k, v, lse, g, c))
        late = _far_backward(k_late, v_late, lse_late, g_late, c_late, before + 1)
        dk, dv = dk + late[0].flip(1), dv + late[1].flip(1)
    db = torch.zeros_like(bias)
    around = _around(before, causal, lead)
    dk_near, dv_near = pad(torch.zeros_like(k), around), pad(torch.zeros_like(v), around)
    for j, (score, value, rows) in enumerate(_near(k, v, bias, causal, lead)):
        p = torch.exp(score - lse)
        dv_near[:, rows] += p * g
        pairs = p * (per_key(g * value, keys) + c)
        dk_near[:, rows] += pairs
        each = pairs.sum((0, 3)).t()
        db[..., j] = each if bias.shape[1] > 1 else each.sum(1, keepdim=True)
    inside = slice(around[-2], around[-2] + k.shape[1])
    return dk + dk_near[:, inside], dv + dv_near[:, inside], db


def _before(bias: Tensor, causal: bool) -> int:
    return bias.shape[-1] - 1 if causal else bias.shape[-1] // 2


def _around(before: int, causal: bool, lead: int) -> tuple[int, ...]:
    """Padding of a row so that the first query's band begins in it."""
    return 0, 0, 0, 0, 0 if lead else before, 0 if causal else before


def _near(
    k: Tensor, v: Tensor, bias: Tensor, causal: bool, lead: int
) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """For each offset of the band: scores, values, and the rows of the padded k and v read."""
    around = _around(_before(bias, causal), causal, lead)
    k, v = pad(k, around, value=-math.inf), pad(v, around)
    first = min(lead, 1)
    length = k.shape[1] - bias.shape[-1] + 1 - first
    for j in range(bias.shape[-1]):
        rows = slice(first + j, first + j + length)
        yield k[:, rows] + bias[:, :, j].t()[None, :, :, None], v[:, rows], rows


def _far(k: Tensor, v: Tensor, shift: int, length: int) -> tuple[Tensor, Tensor]:
    """For query t, the running average up to token t - ``shift``."""
    lse, o = forward_scan(k, v)
    late = (0, 0, 0, 0, shift, 0)
    return pad(lse, late, value=-math.inf)[:, :length], pad(o, late)[:, :length]


def _far_backward(
    k: Tensor, v: Tensor, lse: Tensor, g: Tensor, c: Tensor, shift: int
) -> tuple[Tensor, Tensor]:
    """Gradients of k and v from the part of each average that `_far` is."""
    running, _ = forward_scan(k, v)
    seen = pad(running, (0, 0, 0, 0, shift, 0), value=-math.inf)[:, : lse.shape[1]]
    p = torch.exp(seen - lse)

    def early(t: Tensor) -> Tensor:
        t = t[:, shift:]
        return pad(t, (0, 0, 0, 0, 0, k.shape[1] - t.shape[1]))

    return backward_scan(k, v, running, early(p * g), early(p * c))
