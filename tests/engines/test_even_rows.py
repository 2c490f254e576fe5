"""Masks in graphs for CUDA, whose kernels read rows of a multiple of 16, tried without one."""

import math

import pytest
import torch
import torch.nn.functional as F

from everyformer.checks.cases import Case
from everyformer.core.mask import Mask
from everyformer.core.trials import WIDTH
from everyformer.engines.content.clustered import attended
from everyformer.engines.softmax import visibility
from everyformer.engines.softmax.attention import attention
from everyformer.family import info
from helpers import with_gradients

true_attention = F.scaled_dot_product_attention


def asking(q, k, v, attn_mask=None, **how):
    """Torch's attention as CUDA has it: whether rows lie a multiple of 16 apart is asked."""
    if attn_mask is not None:
        added = attn_mask
        if added.dtype == torch.bool:
            added = torch.zeros_like(added, dtype=q.dtype).masked_fill(~added, -math.inf)
        if any(stride % 16 for stride in added.stride()[:-1]):
            size = added.shape[-1]
            added = F.pad(added, (0, 16 - size % 16))[..., :size]
        attn_mask = added
    return true_attention(q, k, v, attn_mask=attn_mask, **how)


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.filterwarnings("ignore::everyformer.core.dispatch.AllPairsWarning")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["t5-relative", "blockwise", "sparse-transformer", "routing"])
def test_one_graph_elsewhere_serves_all_lengths(name, causal, monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", asking)
    mixer = Case(info(name), {}, causal).mixer(torch.float32, "cpu").to("meta")
    torch._dynamo.reset()
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(mixer, backend=count, fullgraph=True)
    for length in (9, 16, 23, 31):
        x = torch.empty(2, length, WIDTH, device="meta")
        torch._dynamo.mark_dynamic(x, 1)
        assert compiled(x).y.shape == x.shape
        mixer(x)
    assert len(graphs) == 1
    # of a routed text that is no longer than a cluster all is chosen: its graphs begin there
    length = torch.export.Dim("length", min=2, max=32)
    x = torch.empty(2, 9, WIDTH, device="meta")
    torch.export.export(mixer, (x,), dynamic_shapes={"x": {1: length}})


def given(keys):
    torch.manual_seed(3)
    sizes = ((7, 8), (keys, 8), (keys, 8), (7, keys))
    *heads, bias = (torch.randn(2, 3, *s).double().requires_grad_() for s in sizes)
    return heads, bias


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 32])
@pytest.mark.parametrize("kind", ["bool", "of keys", "one for all keys", "bias"])
def test_even_rows_change_no_output_and_no_gradient(keys, kind, monkeypatch):
    (q, k, v), bias = given(keys)
    flags = torch.rand(2, 1, 7, keys) < 0.6
    flags[0, :, 2] = False
    mask = {
        "bool": Mask(attention_mask=flags),
        "of keys": Mask(attention_mask=flags[:, :, :1]),
        "one for all keys": Mask(attention_mask=flags[..., :1]),
        "bias": Mask(attention_mask=flags, bias=bias),
    }[kind]
    inputs = (q, k, v, bias) if kind == "bias" else (q, k, v)

    expected, seen = with_gradients(attention(q, k, v, mask=mask), inputs), []

    def look(q, k, v, attn_mask=None, **how):
        seen.append((k.shape[2], v.shape[2], attn_mask.stride(-2), attn_mask.dtype))
        return true_attention(q, k, v, attn_mask=attn_mask, **how)

    monkeypatch.setattr(F, "scaled_dot_product_attention", look)
    monkeypatch.setattr(visibility, "_multiple", lambda q, keys: 16)
    got = with_gradients(attention(q, k, v, mask=mask), inputs)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    whole = -(-keys // 16) * 16
    assert set(seen) == {(whole, whole, whole, torch.float64)}


def test_even_rows_of_clusters_change_nothing(monkeypatch):
    (q, k, v), _ = given(7)
    flags = torch.rand(2, 1, 7, 7) < 0.6
    flags[..., 0] = True
    expected = attended(q, k, v, flags)
    monkeypatch.setattr(visibility, "_multiple", lambda q, keys: 16)
    torch.testing.assert_close(attended(q, k, v, flags), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("keys", "dtype", "trained", "whole"),
    [
        (192, torch.bfloat16, True, 256),
        (64, torch.float16, True, 128),
        (192, torch.bfloat16, False, 192),
        (192, torch.float32, True, 192),
        (128, torch.bfloat16, True, 128),
        (191, torch.bfloat16, True, 191),
    ],
)
def test_no_half_tile_of_keys_is_left_to_gradients_of_cudnn(keys, dtype, trained, whole):
    q, k, v = (torch.empty(2, 3, n, 8, dtype=dtype, device="meta") for n in (7, keys, keys))
    mask = torch.empty(2, 1, 7, keys, dtype=torch.bool, device="meta")
    with torch.set_grad_enabled(trained):
        more, values, numbers = visibility.in_even_rows(q, k, v, mask)
        assert (more.shape[2], values.shape[2], numbers.shape[3]) == (whole, whole, whole)
        assert visibility.in_even_rows(q, k, v, None) == (k, v, None)
