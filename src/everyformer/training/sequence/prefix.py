"""Sums over the past without waiting: processes exchange theirs, and each adds up what it needs.

    own_r = sum over part r,    past_r = given + own_0 + ... + own_(r-1)
    dL/d own_r = sum over r' > r of dL/d past_r'

Forward that is one gathering of all parts' sums, backward one reduction, in every layer; no process
waits for the outputs of another. A level, a fade or a buffer of last tokens is merged as the state
says (`State.followed_by`). Sun et al. 2025, arXiv 2502.07563 (LASP-2) do so for linear attention.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from everyformer.core.state import S, named_tensors, refilled
from everyformer.training.sequence.chain import Chain


class _Gather(torch.autograd.Function):
    """``own`` (n,) of all parts: (P, n). ``given`` goes through unchanged.

    Every process runs the backward pass too, since all wait for one another in it: the first needs
    the sums of no other, but it goes on from ``given``.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, own: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        ctx.chain = chain
        every = own.new_empty(chain.parts, len(own))
        dist.all_gather([*every], own, group=chain.onward)
        return given.view_as(given), every

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        of_given, of_every = gradients
        of_own = torch.empty_like(of_every[0])
        dist.reduce_scatter(of_own, [*of_every.contiguous()], group=ctx.chain.onward)
        return of_given, of_own, None


@dataclass
class Prefix:
    """The past of this process's part, for every mixer that asks (`everyformer.core.past`)."""

    chain: Chain
    asked: int = 0
    """how often it was asked"""

    def __call__(self, given: S, part: Callable[[], S]) -> S:
        self.asked += 1
        own = part()
        flat, every = _Gather.apply(_flat(given), _flat(own), self.chain)
        state = _like(given, flat, given.seen)
        for line in every[: self.chain.part]:
            state = state.followed_by(_like(own, line, given.seen))
        return state


def _numbers(state: Any) -> dict[str, Tensor]:
    return {name: t for name, t in named_tensors(state).items() if t.is_floating_point()}


def _flat(state: Any) -> Tensor:
    """The floating numbers of a state, one after the other, in the widest of their dtypes."""
    numbers = [t.flatten() for t in _numbers(state).values()]
    wide = torch.float32
    for t in numbers:
        wide = torch.promote_types(wide, t.dtype)
    return torch.cat([t.to(wide) for t in numbers])


def _like(state: S, flat: Tensor, seen: Tensor) -> S:
    """The state whose floating numbers are those of ``flat``, after ``seen`` tokens."""
    numbers = _numbers(state)
    parts = flat.split([t.numel() for t in numbers.values()])
    pairs = zip(numbers.items(), parts, strict=True)
    tensors = {name: part.view_as(t).to(t.dtype) for (name, t), part in pairs}
    return dataclasses.replace(refilled(state, tensors), seen=seen)
