"""The forms that operators have outside of this library are the operators: around a chunk's edges,
with padding, and where keys leave the range of one reference."""

import math

import pytest
import torch
from torch._decomp import get_decompositions

from everyformer.engines import exported
from everyformer.engines.averages.banded import _banded_average
from everyformer.engines.averages.dense import _dense_average
from everyformer.engines.averages.factors import _band_product
from everyformer.engines.averages.planar import _planar_average
from everyformer.engines.averages.running import _running_average
from everyformer.engines.kernel.attention import _kernel_attention
from everyformer.engines.operators import FORMS
from everyformer.engines.softmax.spans import _soft_band

LENGTHS = (1, exported.CHUNK, exported.CHUNK + 1, 150)


def normal(*size, scale=1.0):
    return torch.randn(*size, dtype=torch.float64) * scale


def assert_form_is(operation, *given, results=1):
    """The first results of both, which are those that are no gradient's."""
    expected, got = operation(*given), FORMS[operation](*given)
    expected, got = (t if isinstance(t, tuple) else (t,) for t in (expected, got))
    for one, other in zip(expected[:results], got[:results], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-11, atol=1e-11)
        assert one.isfinite().all() or results == 2


def keys_and_values(length, scale, channels=4):
    """Second row: the later half is padding."""
    k, v = normal(2, length, 3, channels, scale=scale), normal(2, length, 3, 4)
    k[1, math.ceil(length / 2) :] = -math.inf
    return k, v


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("channels", [1, 4])
def test_averages(length, scale, channels):
    k, v = keys_and_values(length, scale, channels)
    assert_form_is(_running_average, k, v, results=2)
    for n in (1, 5):
        for rows, causal in ((1, True), (length, True), (1, False)):
            assert_form_is(_banded_average, k, v, normal(3, rows, n), causal, 0)
        if length > n:
            assert_form_is(_banded_average, k, v, normal(3, length - n, n), True, n)
    factors = normal(3, length, 2), normal(3, length, 2)
    for causal in (True, False):
        assert_form_is(_dense_average, k, v, normal(3, length, length), None, None, causal, False)
        assert_form_is(_dense_average, k, v, *factors, None, causal, False)


def test_averages_over_pictures_and_bands_of_products():
    k, v = keys_and_values(24, 1.0)
    assert_form_is(_planar_average, k, v, normal(3, 3, 3), 4)
    assert_form_is(_band_product, normal(3, 41, 4), normal(3, 47, 4), 7)


@pytest.mark.parametrize("length", LENGTHS)
def test_kernel_attention(length):
    rows, features = (2, 3), 6
    q, k = (normal(*rows, length, features).abs() for _ in range(2))
    v, sums = normal(*rows, length, 4), normal(*rows, features, 5).abs()
    padding_mask = torch.rand(2, length) > 0.3
    padding_mask[0, 0] = True
    none, state = torch.full(rows, -math.inf, dtype=torch.float64), torch.zeros_like(sums)
    level = normal(*rows, length, scale=300)
    gate = -normal(*rows, length).abs()
    read = gate.masked_fill(~padding_mask[:, None], 0)
    plain, signed = ("positive", 0.0, None, ""), ("signed", 1e-6, None, "")

    def check(padding_mask, level, gate, sums, top, how):
        given = q, k, v, padding_mask, level, gate, sums, top
        expected = _kernel_attention(*given, *how)
        got = FORMS[_kernel_attention](*given, *how)
        for at in (0, 2, 3):  # averages, sums and level after; the others are for gradients
            torch.testing.assert_close(got[at], expected[at], rtol=1e-11, atol=1e-11)
        assert expected[0].std() > 0.01

    check(padding_mask, None, None, sums, None, plain)
    check(padding_mask, level, None, state, none, plain)
    check(padding_mask, None, read, state, none, plain)
    check(None, level, gate, sums, normal(*rows), signed)


def test_soft_windows():
    q, k, v = normal(2, 3, 20, 4), normal(2, 3, 25, 4), normal(2, 3, 25, 4)
    ends, table = torch.rand(1, 3, 1, dtype=torch.float64) * 9, normal(7, 4)
    first, last = torch.tensor([0, 3]), torch.tensor([25, 21])
    for table, near in ((normal(7, 4), 1), (normal(13, 4), 0)):
        how = None, 4.0, 7 if near else 6, near, 0.7, 0.0
        for bounds in ((None, None), (first, last)):
            assert_form_is(_soft_band, q, k, v, table, ends, *bounds, *how, results=2)


def test_torch_knows_no_decomposition_of_an_operator():
    """With one, torch's compiler refuses the operator where the environment has a variable CI."""
    operations = [operation._opoverload for operation in FORMS]
    assert len(operations) == 7
    assert not get_decompositions(operations)
