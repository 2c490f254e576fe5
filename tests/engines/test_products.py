"""Engines given bfloat16 multiply in it, sum in float32, and stay near float64."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from everyformer.engines.averages import banded, dense
from everyformer.engines.content import sorted_chunks
from everyformer.engines.content.chunk_lists import ChunkPattern
from everyformer.engines.kernel import attention as kernel
from everyformer.engines.kernel import chunks
from everyformer.engines.products import add_product, halves, plus_product, product
from helpers import draw, with_gradients
from sequence_laws.operations import Operations

LENGTH, HEADS, SIZE = 150, 2, 8
BOUND = 2**-5
"""of the largest entry: roundings of 2^-9 of factors, weights and results, and of their sums"""


def rounded(*shape: int, seed: int) -> Tensor:
    """Numbers that bfloat16 holds exactly."""
    return draw(*shape, seed=seed).bfloat16().double()


def by_tokens(seed: int) -> Tensor:
    return rounded(2, LENGTH, HEADS, SIZE, seed=seed)


def by_heads(seed: int) -> Tensor:
    return rounded(2, HEADS, LENGTH, SIZE, seed=seed)


def kernel_attention(logs: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Sums over the past, of keys with levels or gates too."""
    more = [rounded(2, HEADS, LENGTH, seed=4)] if logs else []

    def attend(q: Tensor, k: Tensor, v: Tensor, *given: Tensor) -> Tensor:
        logged = -given[0].abs() if logs == "gate" else given[0] if logs else None
        return kernel.kernel_attention(q, k, v, **({logs: logged} if logs else {}))[0]

    return attend, [by_heads(1).abs(), by_heads(2).abs(), by_heads(3), *more]


def dense_average(causal: bool) -> tuple[Callable[..., Tensor], list[Tensor]]:
    factors = [rounded(HEADS, LENGTH, 3, seed=n) for n in (4, 5)]
    attend = lambda k, v, rows, columns: dense.dense_average(  # noqa: E731
        k, v, rows.to(k.dtype), columns.to(k.dtype), causal=causal
    )
    return attend, [by_tokens(1), by_tokens(2), *factors]


def banded_average(causal: bool) -> tuple[Callable[..., Tensor], list[Tensor]]:
    attend = lambda k, v, bias: banded.banded_average(k, v, bias, causal=causal)  # noqa: E731
    return attend, [by_tokens(1), by_tokens(2), rounded(HEADS, LENGTH, 5, seed=4)]


def chunked_attention(causal: bool) -> tuple[Callable[..., Tensor], list[Tensor]]:
    pattern = ChunkPattern(chunk=8, before=1, after=0, causal=causal)
    order = torch.stack([torch.randperm(LENGTH + 2) for _ in range(4)]).view(4, 1, -1)
    attend = lambda q, k, v: sorted_chunks.chunked_attention(q, k, v, order, pattern)  # noqa: E731
    return attend, [rounded(4, LENGTH + 2, SIZE, seed=n) for n in (1, 2, 3)]


ENGINES: dict[str, Any] = {
    "kernel attention": (kernel_attention, ""),
    "kernel attention of keys with levels": (kernel_attention, "level"),
    "kernel attention with gates": (kernel_attention, "gate"),
    "dense average": (dense_average, False),
    "causal dense average": (dense_average, True),
    "banded average": (banded_average, False),
    "causal banded average": (banded_average, True),
    "chunked attention": (chunked_attention, False),
    "causal chunked attention": (chunked_attention, True),
}


def run(attend: Any, inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Outputs and gradients, in ``dtype``."""
    given = [t.to(dtype).requires_grad_() for t in inputs]
    return with_gradients(attend(*given), given)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are halved on this device, too."""
    for module in (banded, dense, chunks, sorted_chunks):
        monkeypatch.setattr(module, "halves", lambda v, large=False: v.dtype is torch.bfloat16)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", ENGINES)
def test_outputs_and_gradients_are_near_those_of_float64(name):
    build, option = ENGINES[name]
    torch.manual_seed(0)
    attend, inputs = build(option)
    half, exact = (run(attend, inputs, dtype) for dtype in (torch.bfloat16, torch.float64))
    for ours, theirs in zip(half, exact, strict=True):
        assert ours.dtype is torch.bfloat16
        off = (ours.double() - theirs).abs().amax() / theirs.abs().amax()
        assert off < BOUND


class Multiplied(Operations):
    """Notes the dtypes of products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[torch.dtype] = set()

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        if func.overloadpacket.__name__ in ("bmm", "baddbmm", "baddbmm_"):
            self.kinds |= {t.dtype for t in given[-2:]}


def of_kernels(dtype: torch.dtype, gated: bool) -> None:
    gate, top = -by_heads(4)[..., 0].abs().to(dtype), torch.zeros(2, HEADS)
    gate, top = (gate, top) if gated else (None, None)
    q, k, v = (by_heads(n).abs().to(dtype) for n in (1, 2, 3))
    sums = torch.zeros(2, HEADS, SIZE, SIZE + 1)
    kernel._attend(q, k, v, None, None, gate, sums, top, "positive", 0.0, None, False)


FUNCTIONS: dict[str, Any] = {
    "kernel": lambda dtype: of_kernels(dtype, gated=False),
    "gated kernel": lambda dtype: of_kernels(dtype, gated=True),
    "dense": lambda dtype: dense._averages(
        by_tokens(1).to(dtype), by_tokens(2).to(dtype),
        draw(HEADS, LENGTH, LENGTH).to(dtype), None, None, True, False,
    ),
    "banded": lambda dtype: banded._averages(
        by_tokens(1).to(dtype), by_tokens(2).to(dtype), draw(HEADS, 1, 5).to(dtype), True, 0
    ),
    "chunked": lambda dtype: sorted_chunks._attend(
        *(draw(4, 16, SIZE).to(dtype) for _ in range(3)), torch.arange(16).expand(4, 1, 16),
        None, None, ChunkPattern(chunk=8, before=1, after=0, causal=True).code(), 0.0,
    ),
}  # fmt: skip


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_of_bfloat16_where_it_was_given_and_of_float32_elsewhere(name, dtype):
    with Multiplied() as multiplied:
        FUNCTIONS[name](dtype)
    half = dtype is torch.bfloat16 and name != "gated kernel"
    # states fade in float32
    whole = {torch.float32} if not half or name == "kernel" else set()
    assert multiplied.kinds == ({torch.bfloat16} if half else set()) | whole


@pytest.mark.parametrize("half", [False, True])
def test_products_are_added_in_float32(half):
    """1,000 and what bfloat16 could not add to it."""
    a = torch.tensor([[[1.0, 2.0]]])
    b = torch.tensor([[[0.25], [0.5]]])
    added = torch.full((1, 1, 1), 1000.0)
    exact = torch.tensor([[[1001.25]]])
    assert torch.equal(product(a, b, half), torch.tensor([[[1.25]]]))
    assert torch.equal(plus_product(added, a, b, half), exact)
    assert torch.equal(add_product(added, a, b, half), exact)
    assert torch.equal(added, exact)


def test_factors_are_rounded_where_they_are_half():
    one = torch.ones(1, 1, 1)
    fine = torch.full((1, 1, 1), 1 + 2**-9)
    assert product(fine, one, True).item() == 1
    assert product(fine, one, False).item() == 1 + 2**-9


@pytest.mark.parametrize(
    ("device", "dtype", "large", "expected"),
    [
        ("cuda", torch.bfloat16, False, True),
        ("cuda", torch.float16, True, False),
        ("cpu", torch.bfloat16, False, False),
        ("cpu", torch.bfloat16, True, True),
        ("cpu", torch.float32, True, False),
    ],
)
def test_small_products_are_halved_on_a_gpu_alone(device, dtype, large, expected):
    with FakeTensorMode():
        assert halves(torch.empty(2, device=device, dtype=dtype), large=large) is expected
