"""Softmax attention against torch's own, with every mask, and its options by their identities."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.genes.mixers.attention import Attention
from helpers import covering, draw

torch.manual_seed(0)
SHAPES = [
    # heads, kv heads, queries, keys, key dim, value dim
    (4, 4, 7, 7, 5, 5),
    (4, 2, 7, 9, 5, 3),
    (6, 1, 1, 11, 4, 7),
    (2, 2, 9, 1, 3, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_function_reference_and_torch_agree(shape, causal):
    heads, kv, queries, keys, size, value = shape
    q, k, v = draw(2, heads, queries, size), draw(2, kv, keys, size), draw(2, kv, keys, value)
    mask = torch.rand(2, 1, queries, keys) > 0.3
    bias = draw(heads, queries, keys)
    every = torch.ones(queries, keys, dtype=torch.bool)
    corner = every.tril(keys - queries) if causal else every
    added = bias.masked_fill(~(mask & corner), -math.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=added, enable_gqa=True)
    fast = ef.functional.attention(q, k, v, mask=mask, bias=bias, causal=causal)
    slow = ef.reference.attention(q, k, v, mask=mask, bias=bias, causal=causal)
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(slow, expected, rtol=0, atol=1e-12)


def test_rows_that_see_nothing_are_zero_and_disturb_no_gradient():
    q, k, v = (draw(2, 2, 4, 3).requires_grad_() for _ in range(3))
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[0] = False
    y = ef.functional.attention(q, k, v, mask=mask)
    assert (y[0] == 0).all()
    alone = ef.functional.attention(q[1:], k[1:], v[1:])
    found = (torch.autograd.grad(t.square().sum(), (q, k, v)) for t in (y, alone))
    torch.testing.assert_close(*found)


def copied_from(theirs, causal=False):
    options = {
        "bias": ("query", "key", "value", "output"),
        "widths": {"key": theirs.kdim, "value": theirs.vdim},
    }
    sizes = {"width": theirs.embed_dim, "heads": theirs.num_heads}
    ours = Attention(**sizes, causal=causal, options=options).double()
    parts = theirs.in_proj_bias.chunk(3)
    if theirs._qkv_same_embed_dim:
        weights = {"project.weights.0": theirs.in_proj_weight}
    else:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        weights = {f"project.weights.{i}": getattr(theirs, n) for i, n in enumerate(names)}
    biases = {
        f"project.biases.{n}": b for n, b in zip(("query", "key", "value"), parts, strict=True)
    }
    out = {"out.weight": theirs.out_proj.weight, "out.bias": theirs.out_proj.bias}
    ours.load_state_dict({**weights, **biases, **out})
    return ours


@pytest.mark.parametrize(("kdim", "vdim"), [(None, None), (6, 10)])
def test_cross_attention_equals_torch_multihead(kdim, vdim):
    theirs = nn.MultiheadAttention(12, 3, kdim=kdim, vdim=vdim, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    ours = copied_from(theirs)
    x, keys, values = draw(2, 5, 12), draw(2, 7, kdim or 12), draw(2, 7, vdim or 12)
    padding_mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    expected, _ = theirs(x, keys, values, key_padding_mask=~padding_mask, need_weights=False)
    got = ours(x, context=(keys, values), mask=Mask(padding_mask=padding_mask)).y
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    held = ours.read_context((keys, values), Mask(padding_mask=padding_mask))
    torch.testing.assert_close(ours(x[:, 2:3], state=held).y, expected[:, 2:3], rtol=0, atol=1e-12)


def test_causal_self_attention_equals_torch_multihead():
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    ours = copied_from(theirs, causal=True)
    x = draw(2, 6, 12)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected, weights = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    torch.testing.assert_close(ours(x).y, expected, rtol=0, atol=1e-12)
    with ef.trace(ours) as seen:
        ours(x)
    torch.testing.assert_close(seen.find("weights")[""], weights, rtol=0, atol=1e-12)


def test_every_dimension_is_free():
    widths = {"query": 11, "key": 13, "value": 17, "output": 19, "key_dim": 3, "value_dim": 5}
    mixer = Attention(width=11, heads=4, options={"widths": widths, "kv_heads": 2}).double()
    keys, values = draw(2, 7, 13), draw(2, 7, 17)
    x = draw(2, 3, 11)
    y = mixer(x, context=(keys, values)).y
    assert y.shape == (2, 3, 19)
    assert (
        sum(p.numel() for p in mixer.parameters())
        == 4 * 3 * 11 + 2 * 3 * 13 + 2 * 5 * 17 + 19 * 4 * 5
    )
    torch.testing.assert_close(mixer.reference(x, context=(keys, values)), y)


def test_the_state_of_a_window_stays_bounded():
    mixer = Attention(width=8, heads=2, causal=True, options={"window": (3, 5)})
    state = mixer.init_state(2)
    for _ in range(12):
        state = mixer(torch.randn(2, 1, 8), state=state).state
    assert state.keys.shape[2] == 4


def test_the_definition_computes_where_its_tensors_are():
    """On ``meta`` whatever is made on the host does not fit."""
    q, k, v = (torch.zeros(2, 2, 5, 3, device="meta", requires_grad=True) for _ in range(3))
    for mask in (None, torch.ones(5, 5, dtype=torch.bool, device="meta")):
        y = ef.reference.attention(q, k, v, causal=True, mask=mask)
        assert y.is_meta
        y.sum().backward()


@covering(sizes=[(3, 0), (0, 3), (5, 3), (5, 5)], dtype=[torch.float16, torch.float64])
def test_the_definition_takes_every_size_and_dtype_of_the_function(sizes, dtype):
    queries, keys = sizes
    q, k, v = (draw(2, 2, n, 4).to(dtype) for n in (queries, keys, keys))
    given = {"mask": torch.rand(2, 1, queries, keys) > 0.3, "causal": True}
    given["bias"] = draw(2, queries, keys).to(dtype)
    fast, slow = (part.attention(q, k, v, **given) for part in (ef.functional, ef.reference))
    torch.testing.assert_close(slow, fast, rtol=0, atol=8 * torch.finfo(dtype).eps)
