"""The product with a lower triangle by blocks is that with the whole matrix, zeros above."""

import math

import pytest
import torch

from everyformer.engines.averages import lower
from everyformer.engines.averages.lower import lower_product
from helpers import build_mixer, close, draw, with_gradients
from sequence_laws.flops import count_flops

SIZES = [(1, 1, 9, 3), (2, 3, 23, 2), (3, 2, 8, 1), (2, 1, 33, 5)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(lower, "ROWS", 4)
    monkeypatch.setattr(lower, "SHORT", 0)


@pytest.mark.parametrize(("batch", "heads", "length", "channels"), SIZES)
def test_outputs_and_gradients_are_those_of_the_definition(batch, heads, length, channels):
    w = draw(heads, length + 2, length + 2).requires_grad_()
    x = draw(batch, heads, length, channels, seed=2).requires_grad_()
    cut = w[:, :length, :length]
    close(*(with_gradients(y, [w, x]) for y in (lower_product(cut, x), cut.tril() @ x)))


def test_nothing_above_the_diagonal_is_read():
    w, x = draw(1, 11, 11), draw(1, 1, 11, 2)
    above = torch.ones(11, 11, dtype=torch.bool).triu(1)
    y = lower_product(w.masked_fill(above, math.nan), x)
    close(y, w.tril() @ x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_in_half_precision(dtype):
    w, x = draw(2, 21, 21, dtype=torch.float32), draw(3, 2, 21, 4, dtype=dtype)
    w.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = lower_product(w, x), w.tril() @ x
    assert y.dtype == expected.dtype == torch.bfloat16
    # sums of the same rounded factors
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=2**-6)
    ones = torch.ones_like(y)
    found, right = (torch.autograd.grad(of, w, ones)[0] for of in (y, expected))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, rtol=2**-6, atol=2**-5)
    assert not found.triu(1).any()


def test_half_of_the_operations_are_made(monkeypatch):
    monkeypatch.setattr(lower, "ROWS", 256)
    w, x = torch.zeros(1, 2048, 2048), torch.zeros(1, 1, 2048, 3)
    whole = count_flops(lambda: w @ x)
    assert count_flops(lambda: lower_product(w, x)) == whole * 9 / 16


@pytest.mark.parametrize("name", ["gmlp", "amlp"])
def test_long_texts_of_mixers_go_through_blocks(name):
    mixer = build_mixer(name, width=12, heads=2, causal=True, max_length=23)
    for parameter in mixer.parameters():
        parameter.data += 0.3 * draw(*parameter.shape, seed=5)
    x = draw(2, 21, 12)
    close(mixer(x).y, torch.cat([mixer.reference(row[None]) for row in x]))


def test_compiled_and_as_meta_it_is_the_same():
    w, x = draw(2, 21, 21, dtype=torch.float32), draw(3, 2, 21, 4, dtype=torch.float32)
    compiled = torch.compile(lower_product, backend="aot_eager", fullgraph=True)
    close(compiled(w, x), w.tril() @ x, 1e-5)
    assert lower_product(w.to("meta"), x.to("meta")).shape == x.shape
