"""Attention of few queries in bfloat16: its gradients are those of softmax, by either way."""

import math

import pytest
import torch
from torch import Tensor

from everyformer.engines.softmax import kernels
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.visibility import Visibility
from helpers import covering

WAYS = pytest.mark.parametrize("tiles", [True, False], ids=["products", "float32"])
NEAR = 0.02
"""of a gradient's largest entry: the roundings of four factors, 2^-9 each, add up"""


def by_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    scores = (scale * q @ k.mT).masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0) @ v


def drawn(*shapes: tuple[int, ...], size: float = 1.0) -> list[Tensor]:
    torch.manual_seed(0)
    return [(size * torch.randn(shape)).bfloat16().requires_grad_() for shape in shapes]


def choose_way(monkeypatch: pytest.MonkeyPatch, tiles: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": tiles}, raising=False)


def agree(y: Tensor, given: list[Tensor], mask: Tensor, scale: float) -> None:
    """Outputs and gradients of ``given`` are those of softmax in float64."""
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted = by_softmax(*exact, mask, scale)
    above = torch.randn(y.shape).bfloat16()
    found = torch.autograd.grad(y, given, above)
    true = torch.autograd.grad(wanted, exact, above.double())
    for ours, theirs in zip((y, *found), (wanted, *true), strict=True):
        torch.testing.assert_close(
            ours.double(), theirs, rtol=0, atol=NEAR * float(theirs.detach().abs().max())
        )


@WAYS
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "read", "sizes", "causal"),
    [
        (7, 13, 2, 2, (8, 8), False),
        (13, 13, 2, 2, (8, 8), True),
        (5, 9, 4, 2, (6, 10), False),
        (11, 11, 4, 1, (12, 4), True),
        (2, 1, 1, 1, (5, 5), False),
    ],
)
def test_outputs_and_gradients_are_those_of_softmax(
    queries, keys, heads, read, sizes, causal, tiles, monkeypatch
) -> None:
    choose_way(monkeypatch, tiles)
    shapes = (3, heads, queries, sizes[0]), (3, read, keys, sizes[0]), (3, read, keys, sizes[1])
    given = drawn(*shapes)
    y = softmax_attention(*given, Visibility(causal=causal), scale=0.3)
    mask = torch.ones(queries, keys, dtype=torch.bool)
    agree(y, given, mask.tril() if causal else mask, 0.3)
    assert takes_few(y)


def takes_few(y: Tensor) -> bool:
    """Whether ``y`` was made by the operator whose gradients these are."""
    nodes = [y.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            if "few_softmax" in node.name():
                return True
            nodes += [n for n, _ in node.next_functions]
    return False


@covering(
    shape=[(9, 9), (2, 1, 9, 9), (1, 3, 1, 9), (2, 3, 9, 9), (2, 1, 9, 1)], added=[False, True],
    tiles=[True, False],
)  # fmt: skip
def test_masks_of_any_shape_hide(shape, added, tiles, monkeypatch) -> None:
    choose_way(monkeypatch, tiles)
    monkeypatch.setattr(kernels, "ROOM", 3 * 9 * 9)
    given = drawn(*[(2, 3, 9, 8)] * 3)
    flags = torch.rand(shape) < 0.7
    if shape[-2] > 1:
        flags[..., 4, :] = False
    mask = torch.zeros(shape).masked_fill(~flags, -math.inf) if added else flags
    y = softmax_attention(*given, Visibility(mask=mask), scale=0.5)
    agree(y, given, flags.expand(2, 3, 9, 9), 0.5)


@WAYS
def test_sharp_weights_keep_their_digits(tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log-sum of 50 would be off by 0.1 as one number of bfloat16."""
    choose_way(monkeypatch, tiles)
    given = drawn(*[(2, 2, 33, 16)] * 3, size=3.5)
    y = softmax_attention(*given, Visibility(), scale=0.3)
    scores = (0.3 * given[0].detach() @ given[1].detach().mT).float().logsumexp(-1)
    assert float(scores.max()) > 40
    agree(y, given, torch.ones(33, 33, dtype=torch.bool), 0.3)


@WAYS
def test_gradients_are_the_same_where_autocast_is_on(tiles, monkeypatch) -> None:
    choose_way(monkeypatch, tiles)
    given = drawn(*[(2, 3, 11, 16)] * 3)
    y = softmax_attention(*given, Visibility(causal=True), scale=0.3)
    above = torch.randn(y.shape).bfloat16()
    outside = torch.autograd.grad(y, given, above, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(y, given, above)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


def test_many_queries_and_other_dtypes_go_to_torch() -> None:
    for length, dtype, trained in (
        (kernels.FEW + 1, torch.bfloat16, True), (8, torch.float32, True),
        (8, torch.bfloat16, False), (1, torch.bfloat16, True),
    ):  # fmt: skip
        q, k, v = (torch.randn(1, 1, length, 4, dtype=dtype, requires_grad=trained) for _ in "qkv")
        assert not kernels.able(q, k, v, None)
    q, k, v = drawn(*[(1, 1, 8, 4)] * 3)
    assert kernels.able(q, k, v, None)
    assert not kernels.able(q, k, v, torch.zeros(8, 8, requires_grad=True))
    with torch.no_grad():
        assert not kernels.able(q, k, v, None)


def test_autocast_rounds_wider_heads() -> None:
    given = [t.detach().float().requires_grad_() for t in drawn(*[(2, 2, 9, 8)] * 3)]
    with torch.autocast("cpu", torch.bfloat16):
        y = softmax_attention(*given, Visibility(causal=True), scale=0.3)
    assert y.dtype is torch.bfloat16
    agree(y, given, torch.ones(9, 9, dtype=torch.bool).tril(), 0.3)
    with torch.autocast("cpu", torch.float16):
        assert not kernels.able(*given, None)
