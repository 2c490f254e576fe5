"""Autocast of a device that has none casts what torch's own casts on a GPU, and where."""

import pytest
import torch
import torch.nn.functional as F

from everyformer.checks.casting import cast_as_on_gpus
from everyformer.core import devices
from everyformer.engines.ranges import full_precision

A = torch.ones(2, 3, device="meta")
B = torch.ones(3, 2, device="meta", dtype=torch.bfloat16)
HALF, WIDE = torch.bfloat16, torch.float32
CASES = {
    "operator": (lambda: A @ B, HALF),
    "linear": (lambda: F.linear(A, B.mT), HALF),
    "addmm": (lambda: torch.addmm(A[:, :2], A, B), HALF),
    "attention": (lambda: F.scaled_dot_product_attention(*[A[None]] * 3), HALF),
    "softmax": (lambda: B.softmax(0), WIDE),
    "functional softmax": (lambda: F.softmax(B, 0), WIDE),
    "exp": (lambda: B.exp(), WIDE),
    "power": (lambda: 2**B, WIDE),
    "sum": (lambda: torch.sum(B), WIDE),
    "layer norm": (lambda: F.layer_norm(B, (2,)), WIDE),
    "sine": (lambda: B.sin(), HALF),
    "mixed sum": (lambda: A + B.mT, WIDE),
    "doubles": (lambda: A.double() @ A.double().mT, torch.float64),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_has_the_dtype_that_autocast_gives_it(name: str) -> None:
    made, dtype = CASES[name]
    with cast_as_on_gpus("meta"):
        assert made().dtype is dtype


def test_in_place_products_are_not_cast() -> None:
    with cast_as_on_gpus("meta"), pytest.raises(RuntimeError, match="dtype"):
        A[None, :, :2].clone().baddbmm_(A[None], B[None])


def test_blocks_in_full_precision_are_left_alone_and_it_goes_on_after_them() -> None:
    with cast_as_on_gpus("meta"):
        with full_precision(A):
            assert (A @ A.mT).dtype is WIDE
        assert (A @ A.mT).dtype is HALF
    assert (A @ A.mT).dtype is WIDE


def test_what_is_computed_again_later_is_cast_as_it_was() -> None:
    with cast_as_on_gpus("meta"):
        again = devices.as_now("meta")
        with again():
            pass
        assert devices.autocasts("meta")
    assert not devices.autocasts("meta")
    with again():
        assert devices.autocasts("meta")
        assert (A @ A.mT).dtype is HALF
    assert not devices.stand_ins
