"""gMLP and aMLP: gates, Toeplitz forms, padding, and the package g-mlp-pytorch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import everyformer as ef
from everyformer import create_mixer
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.engines.averages import toeplitz
from everyformer.genes.mixers.gmlp import AMLP, GMLP
from helpers import draw, with_gradients

torch.manual_seed(0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_gate_equals_its_reference_with_gradients(causal, heads):
    z, weight, bias = draw(2, 7, 12), draw(heads, 9, 9), draw(heads, 9)
    inputs = [t.requires_grad_() for t in (z, weight, bias)]
    fast = ef.functional.spatial_gate(*inputs, causal=causal)
    slow = ef.reference.spatial_gate(*inputs, causal=causal)
    torch.testing.assert_close(*(with_gradients(y, inputs) for y in (fast, slow)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_toeplitz_by_matrix_by_fft_and_by_convolution_agree(causal, length, monkeypatch):
    taps = 8
    filters, v = draw(2, taps if causal else 2 * taps - 1), draw(3, length, 6)
    dense = toeplitz.toeplitz_mix(v, filters, causal=causal)
    monkeypatch.setattr(toeplitz, "FFT_FROM", 1)
    torch.testing.assert_close(toeplitz.toeplitz_mix(v, filters, causal=causal), dense)
    # conv1d correlates: the tap of offset i - j = n stands at the mirrored place
    kernel = filters.flip(1).repeat_interleave(3, dim=0)[:, None]
    pad = (taps - 1, 0) if causal else (taps - 1, taps - 1)
    padded = torch.nn.functional.pad(v.transpose(1, 2), pad)
    convolved = torch.nn.functional.conv1d(padded, kernel, groups=6).transpose(1, 2)
    torch.testing.assert_close(convolved, dense)


def test_parameters_are_what_the_paper_counts():
    d, f, n = 8, 32, 6
    mixer = GMLP(width=d, max_length=n)
    count = sum(p.numel() for p in mixer.parameters())
    assert count == (d * f + f) + 2 * (f // 2) + n * n + n + (f // 2 * d + d)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("cls", "tiny"), [(GMLP, None), (AMLP, 4)])
def test_equals_g_mlp_pytorch(cls, tiny, causal):
    package = pytest.importorskip("g_mlp_pytorch")
    n, d, f = 7, 12, 24
    theirs = package.gMLPBlock(
        dim=d, dim_ff=f, seq_len=n, heads=2, causal=causal, attn_dim=tiny
    ).double()
    options = {"mlp_ratio": f / d, "sgu_heads": 2}
    if tiny:
        options["attention_dim"] = tiny
    ours = cls(width=d, causal=causal, max_length=n, options=options).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    weights = {
        "up.weight": theirs.proj_in[0].weight,
        "up.bias": theirs.proj_in[0].bias,
        "norm.weight": theirs.sgu.norm.weight,
        "norm.bias": theirs.sgu.norm.bias,
        "spatial": theirs.sgu.weight,
        "bias": theirs.sgu.bias,
        "out.weight": theirs.proj_out.weight,
        "out.bias": theirs.proj_out.bias,
    }
    if tiny:
        weights |= {
            "attention.project.weights.0": theirs.attn.to_qkv.weight,
            "attention.out.weight": theirs.attn.to_out.weight,
            "attention.out.bias": theirs.attn.to_out.bias,
        }
    ours.load_state_dict(weights)
    x = draw(2, n, d)
    torch.testing.assert_close(ours(x).y, theirs(x), rtol=0, atol=1e-12)


def test_contradictions_and_places_beyond_the_table_are_refused():
    for options, message in (({"mlp_ratio": 1.1}, "do not split"), ({"sgu_heads": 3}, "_heads=3")):
        with pytest.raises(GeneError, match=message):
            GMLP(width=10, max_length=8, options=options)
    with pytest.raises(GeneError, match="needs max_length"):
        GMLP(width=8)
    mixer = GMLP(width=8, causal=True, max_length=4)
    with pytest.raises(ShapeError, match=r"max_length=4.*position 4"):
        mixer(torch.randn(1, 5, 8))
    state = mixer(torch.randn(1, 4, 8), state=mixer.init_state(1)).state
    with pytest.raises(ShapeError, match="max_length=4"):
        mixer(torch.randn(1, 1, 8), state=state)


class Bytes(TorchDispatchMode):
    """Counts the numbers that operations make, views and what they are of left out."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in known:
            self.made += out.numel()
        return out


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("spatial", ["dense", "toeplitz"])
def test_a_token_reads_one_line_of_the_table(spatial, even):
    made = []
    for seen in (64, 512):
        mixer = create_mixer("gmlp", width=4, causal=True, max_length=600, spatial=spatial)
        padding_mask = torch.ones(2, seen, dtype=torch.bool)
        padding_mask[0, 0] = even
        state = mixer(
            torch.randn(2, seen, 4), mask=Mask(padding_mask=padding_mask), state=mixer.init_state(2)
        ).state
        with Bytes() as counted:
            mixer(torch.randn(2, 1, 4), state=state)
        made.append(counted.made)
    assert made[1] <= 8.5 * made[0], made
    # a few lines of the table and copies of the rows of 8 channels of two texts, little else
    assert made[1] < 2 * 512 * 8 * 8, made
