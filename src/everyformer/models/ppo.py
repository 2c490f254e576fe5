"""Proximal policy optimisation: what actions were worth, and the loss that follows from it.

    delta_t = r_t + gamma v'_t - v_t
    A_t     = delta_t + gamma lambda (1 - o_t) A_{t+1}          R_t = A_t + v_t
    rho_t   = pi(a_t | s_1 .. s_t) / pi_old(a_t | s_1 .. s_t)
    L       = - mean min(rho_t A^_t, clip(rho_t, 1 - eps, 1 + eps) A^_t)
              + c_v mean (v(s_1 .. s_t) - R_t)^2 / 2  -  c_e mean H(pi(. | s_1 .. s_t))

r_t is what action a_t brought, v_t the value of what was seen before it, v'_t of what was seen
after it: 0 where the episode ended there, the value of its last observation where a limit of time
cut it (the task would have gone on). o_t is 1 where the episode was over with this step, in one way
or the other. A^ is A less its mean over all that was played, in standard deviations. pi_old is the
policy that acted: in the first minibatch rho is 1. With a clip of values, the larger of the squared
errors of v and of v_old + clip(v - v_old, -c, c) counts.

Source: Schulman et al. 2017, arXiv 1707.06347; advantages: Schulman et al. 2016, arXiv 1506.02438;
limits of time: Pardo et al. 2018, arXiv 1712.00378.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-8


def advantages(
    rewards: Tensor, values: Tensor, following: Tensor, over: Tensor, gamma: float, trace: float
) -> Tensor:
    """A_t (T, ...) from rewards, v and v' (T, ...) and flags ``over``; ``trace`` is lambda."""
    delta = rewards + gamma * following - values
    carried = gamma * trace * (~over).to(delta.dtype)
    result = torch.empty_like(delta)
    after = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        after = delta[t] + carried[t] * after
        result[t] = after
    return result


def normalised(advantages: Tensor) -> Tensor:
    """A^: less the mean, in standard deviations."""
    return (advantages - advantages.mean()) / (advantages.std() + TINY)


def surrogate(now: Tensor, before: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The first term of L, from log-probabilities under the policy of now and the one before."""
    ratio = (now - before).exp()
    near = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, near * advantages).mean()


def value_error(
    values: Tensor, before: Tensor, returns: Tensor, clip: float | None = None
) -> Tensor:
    """The second term of L, without its weight."""
    error = (values - returns).square()
    if clip is not None:
        near = before + (values - before).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns).square())
    return error.mean() / 2


def log_probability(outputs: Tensor, actions: Tensor, log_std: Tensor | None) -> Tensor:
    """log pi(a) (...) of actions (...) chosen by logits ``outputs`` (..., C); or of numbers
    (..., N), each normal around ``outputs`` (..., N) with a deviation exp(``log_std``)."""
    if log_std is None:
        return -F.cross_entropy(
            outputs.flatten(0, -2), actions.flatten(), reduction="none"
        ).view_as(actions)
    wide = (actions - outputs) * (-log_std).exp()
    return -(wide.square() / 2 + log_std + math.log(2 * math.pi) / 2).sum(-1)


def entropy(outputs: Tensor, log_std: Tensor | None) -> Tensor:
    """H(pi), the mean over all steps."""
    if log_std is None:
        logs = F.log_softmax(outputs, -1)
        return -(logs.exp() * logs).sum(-1).mean()
    return (log_std + (1 + math.log(2 * math.pi)) / 2).sum()
