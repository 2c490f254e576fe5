"""Kernel attention against the plain torch files of flash-linear-attention.

The package itself wants Triton, its files of definitions do not: they are loaded one by one.
"""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import logsigmoid, pad

from everyformer import functional
from everyformer.engines.kernel.denominators import Denominator
from everyformer.lab.bench.peers import Projected, averaged_features
from helpers import build_mixer


def theirs(family):
    """The module ``fla/ops/FAMILY/naive.py``."""
    found = importlib.util.find_spec("fla")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("fla-core is not installed")
    path = Path(next(iter(found.submodule_search_locations))) / "ops" / family / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{family}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(length, size=8, values=5):
    """Positive features of queries and keys, values, logs of gates: (2, 3, L, ...), float32."""
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(2, 3, length, size, generator=generator).exp() for _ in range(2))
    v = torch.randn(2, 3, length, values, generator=generator)
    return q, k, v, logsigmoid(torch.randn(2, 3, length, generator=generator) + 2)


def turned(*tensors):
    """Between (B, H, L, ...) and their (B, L, H, ...)."""
    return tuple(t.transpose(1, 2) for t in tensors)


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_linear_attention(form):
    compute = getattr(theirs("linear_attn"), f"naive_{form}_linear_attn")
    q, k, v, _ = draw(128)
    expected = compute(*turned(q, k, v), scale=1.0, normalize=True)
    expected = expected if isinstance(expected, torch.Tensor) else expected[0]
    guard = Denominator("positive", 1e-10)
    y, _ = functional.linear_attention(q, k, v, causal=True, guard=guard)
    torch.testing.assert_close(*turned(y), expected, rtol=1e-4, atol=1e-4)


def test_a_state_taken_in_and_given_back():
    compute = theirs("linear_attn").naive_recurrent_linear_attn
    q, k, v, _ = draw(90)
    _, first = functional.linear_attention(*(t[:, :, :37] for t in (q, k, v)), causal=True)
    rest = [t[:, :, 37:] for t in (q, k, v)]
    y, after = functional.linear_attention(*rest, causal=True, state=first)
    begun = first.sums[..., :-1], first.sums[..., -1][:, None]
    how = {"scale": 1.0, "normalize": True, "output_final_state": True}
    expected, (sums, total) = compute(*turned(*rest), initial_state=begun, **how)
    torch.testing.assert_close(*turned(y), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.sums[..., :-1], sums, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.sums[..., -1], total[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["recurrent", "chunk", "parallel"])
def test_gates_are_a_decay_of_keys_that_are_written_in_part(form):
    compute = getattr(theirs("simple_gla"), f"naive_{form}_simple_gla")
    q, k, v, gate = draw(150)
    written, counted = k * (1 - gate.exp())[..., None], pad(v, (0, 1), value=1.0)
    sums = compute(*turned(q, written, counted, gate), scale=1.0)[0]
    y, _ = functional.linear_attention(q, k, v, causal=True, gate=gate)
    torch.testing.assert_close(*turned(y), sums[..., :-1] / sums[..., -1:], rtol=1e-4, atol=1e-4)


def test_the_peer_of_benchmarks_does_the_work_of_linear():
    compute = theirs("linear_attn").naive_recurrent_linear_attn
    mixer = build_mixer("linear", width=12, heads=3, causal=True, dtype=torch.float32)
    peer = Projected(12, 3, partial(averaged_features, compute))
    peer.qkv.weight, peer.out.weight = mixer.project.weights[0], mixer.out.weight
    x = draw(90, 12, 12)[2][:, 0]
    torch.testing.assert_close(peer(x), mixer(x).y, rtol=1e-5, atol=1e-5)
