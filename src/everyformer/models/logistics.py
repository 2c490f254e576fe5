"""Discretised mixtures of logistics: distributions over the 256 intensities of a pixel.

    p(v | m, s) = sigma((x + h - m) / s) - sigma((x - h - m) / s),    x = v / 127.5 - 1,  h = 1/255
    p(v_0, ..., v_(C-1)) = sum_k pi_k prod_c p(v_c | m_kc, s_kc)
    m_kc = mu_kc + sum_(e<c) tanh(a_kce) x_e

At v = 0 the first term's lower bound is -infinity, at v = 255 its upper bound infinity, so that the
256 probabilities sum to one. s = exp of a parameter, from e^-7 to e^50. Each of K components has
one logit, C means, C scales and C (C - 1) / 2 couplings: 3 numbers for grey, 10 for colours.

A difference of two sigmoids cancels far from the mean; here its logarithm is taken as

    log(sigma(a) - sigma(b)) = log sigma(a) + log sigma(-b) + log(1 - exp(b - a)),   a - b = 2 h / s

which loses nothing anywhere, so the published code's stand-in (the density times the width of a
bin, where a probability is below 1e-5) is not needed.

Source: Salimans et al. 2017, arXiv 1701.05517 (PixelCNN++).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.engines.ranges import full_precision, widened

HALF = 1 / 255
"""half the width of an intensity, in [-1, 1]"""
SHARPEST = -7.0
"""smallest logarithm of a scale"""
WIDEST = 50.0
"""largest one: all is then at 0 and 255, and a larger scale has no reciprocal in float32"""


def parameters_of(channels: int) -> int:
    """Numbers that each component of a mixture over pixels of so many channels has."""
    return 1 + 2 * channels + channels * (channels - 1) // 2


def mixture_losses(parameters: Tensor, values: Tensor) -> Tensor:
    """-log p of each channel given those before it (..., C), in nats; their sum is the pixel's.

    Args:
        parameters: (..., K x `parameters_of` (C)).
        values: (..., C) intensities, 0 to 255.
    """
    with full_precision(parameters):
        logits, means, scales = _components(parameters, values, values.shape[-1])
        x = _centred(values, means.dtype)[..., None, :]
        each = _log_probability(x, values[..., None, :], means, scales)
        joint = torch.cat((logits[..., None], each), -1).cumsum(-1).logsumexp(-2)
        return joint[..., :-1] - joint[..., 1:]


def mixture_logits(parameters: Tensor, before: Tensor, channels: int) -> Tensor:
    """log p (..., 256) of the channel after those ``before`` (..., c) of the same pixel, c < C."""
    with full_precision(parameters):
        known = before.shape[-1]
        logits, means, scales = _components(parameters, before, channels)
        if known:
            x = _centred(before, means.dtype)[..., None, :]
            part = (means[..., :known], scales[..., :known])
            logits = logits + _log_probability(x, before[..., None, :], *part).sum(-1)
        every = torch.arange(256, device=parameters.device)
        channel = (means[..., known, None], scales[..., known, None])
        each = _log_probability(_centred(every, means.dtype), every, *channel)
        return (logits.log_softmax(-1)[..., None] + each).logsumexp(-2)


def _components(parameters: Tensor, values: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """log pi (..., K), means and log scales (..., K, C); means beyond ``values`` + 1 lack parts."""
    parts = widened(parameters).unflatten(-1, (-1, parameters_of(channels)))
    logits, means, scales, couplings = parts.split(
        (1, channels, channels, parts.shape[-1] - 1 - 2 * channels), -1
    )
    x = _centred(values, parts.dtype)[..., None, :]
    shifted = [means[..., 0]]
    for c in range(1, channels):
        first, known = c * (c - 1) // 2, min(c, values.shape[-1])
        weights = couplings[..., first : first + known].tanh()
        shifted.append(means[..., c] + (weights * x[..., :known]).sum(-1))
    return logits[..., 0].log_softmax(-1), torch.stack(shifted, -1), scales.clamp(SHARPEST, WIDEST)


def _centred(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) / 127.5 - 1


def _log_probability(x: Tensor, values: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """log p of each intensity under each logistic, by broadcasting."""
    sharpness = (-scales).exp()
    above = F.logsigmoid((x + HALF - means) * sharpness)
    below = F.logsigmoid((means + HALF - x) * sharpness)
    both = above + below + torch.log(-torch.expm1(-2 * HALF * sharpness))
    return torch.where(values == 0, above, torch.where(values == 255, below, both))
