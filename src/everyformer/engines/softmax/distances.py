"""Softmax attention whose scores and values depend on distances, by CUDA kernels.

    s_ij = q_i k_j + p_i vectors_c + numbers_c    or    s_ij = max(q_i k_j, 0) numbers_c,
    o_i = sum_j softmax(s)_ij (v_j + values_c),    c the column of the distance i - j

A position that is one of these says so by its `Distances`; on CUDA devices the kernels of
`engines.fused.distances` make nothing of the size of the pairs, forwards or backwards. What no
kernel takes goes through blocks of queries (`everyformer.engines.softmax.blocks`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from everyformer.engines.cuda import fused
from everyformer.engines.once import once_differentiable


class Distances(NamedTuple):
    """Queries of a call and its position's tables of keys, biases and values by distance.

    The C columns of the tables are the first of `Pairs.span`, those that a pair can meet.
    """

    queries: Tensor
    """(B, H, L, D), scaled, compared with keys"""
    asking: Tensor | None = None
    """(B, H, L, D), scaled, compared with vectors (default: the queries)"""
    vectors: Tensor | None = None
    """(H or 1, C, D)"""
    numbers: Tensor | None = None
    """(H, C)"""
    values: Tensor | None = None
    """(H or 1, C, Dv)"""
    factors: bool = False
    """whether numbers multiply positive scores instead of being added"""


def able(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether kernels take heads' queries, keys and values: on CUDA, of equal dtypes, while no
    compiler follows and nobody looks at operations one by one, to count them."""
    alike = q.dtype == k.dtype == v.dtype and max(q.shape[3], v.shape[3]) <= 128
    watched = torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
    return alike and not watched and fused(q)


def attention_by_distance(of: Distances, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Heads' outputs (B, H, L, Dv) of queries ``of`` a call, keys and values (B, H, S, ...)."""
    q, heads = of.queries.to(k.dtype), k.shape[1]
    p = None if of.asking is None else of.asking.to(k.dtype)
    vectors, values = (
        None if t is None else t.to(k.dtype).expand(heads, -1, -1) for t in (of.vectors, of.values)
    )
    numbers = None if of.numbers is None else of.numbers.float()
    o: Tensor = _Attention.apply(causal, of.factors, q, p, k, v, vectors, numbers, values)
    return o


def _kernels() -> Any:
    """The kernels; Triton takes a while to load: it waits for the first call."""
    return import_module("everyformer.engines.fused.distances.call")


class _Attention(torch.autograd.Function):
    """The kernels' results and gradients."""

    @staticmethod
    def forward(ctx: Any, causal: bool, factors: bool, *given: Any) -> Tensor:
        call = _kernels()
        side_by_side: list[Any] = [t if t is None else t.contiguous() for t in given]
        q, p, k, v, *tables = side_by_side
        with torch.cuda.device_of(q):
            o, lse = call.forward(q, p, k, v, tables, causal, factors)
        ctx.save_for_backward(q, p, k, v, *tables, o, lse)
        ctx.how = causal, factors
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call = _kernels()
        q, p, k, v, *tables, o, lse = ctx.saved_tensors
        with torch.cuda.device_of(q):
            gradients = call.backward(q, p, k, v, tables, o, lse, grad, *ctx.how)
        return None, None, *gradients
