"""`ef.MultiheadAttention` inside the unmodified encoder and decoder layers of `torch.nn`."""

import copy

import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.core.errors import UnsupportedError
from helpers import covering

B, L, S = 3, 5, 7
NESTED = "ignore:The PyTorch API of nested tensors:UserWarning"


def encoder(member, *, batch_first=True, late=True, causal=False, heads=4, **options):
    """Two torch layers around the member, and two as they were; ``late``: put in afterwards."""
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(
        16, heads, 32, dropout=0.0, batch_first=batch_first, norm_first=not late
    )
    theirs = nn.TransformerEncoder(plain, 2, enable_nested_tensor=late and batch_first)
    ours = copy.deepcopy(theirs)
    for layer in ours.layers:
        inner = ef.MultiheadAttention(
            16, heads, batch_first=batch_first, member=member, causal=causal, **options
        )
        if member == "attention":
            inner.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = inner
    return theirs, ours


@pytest.mark.filterwarnings(NESTED)
@covering(
    case=[("attention", False), ("attention", True), ("aft-local", False), ("aft-conv", True),
          ("gmlp", True), ("amlp", False)],
    late=[True, False], batch_first=[True, False],
)  # fmt: skip
def test_unmodified_encoder_gives_the_same_in_training_and_in_inference(case, late, batch_first):
    member, causal = case
    theirs, ours = encoder(member, batch_first=batch_first, late=late, causal=causal, max_length=9)
    x = torch.randn(B, L, 16)
    padding = torch.arange(L) >= torch.tensor([L, 3, 1])[:, None]
    real = ~padding
    given = x if batch_first else x.transpose(0, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(L) if causal else None
    calls = [{}, {"src_key_padding_mask": padding}]
    if causal:
        calls += [{"mask": mask, "is_causal": True},
                  {"mask": mask == -torch.inf, "src_key_padding_mask": padding}]  # fmt: skip

    def run(model, call):
        y = model(given, **call)
        return (y if batch_first else y.transpose(0, 1))[real]

    for call in calls:
        expected = run(ours.train(), call)
        assert expected.requires_grad
        with torch.inference_mode():
            torch.testing.assert_close(run(ours.eval(), call), expected, rtol=0, atol=1e-5)
        if member == "attention":
            same = {"mask": mask == -torch.inf, **call} if causal else call
            torch.testing.assert_close(run(theirs.train(), same), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("member", ["attention", "aft-simple"])
def test_the_fused_kernel_never_stands_in(member, monkeypatch):
    calls = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch, "_transformer_encoder_layer_fwd", lambda *a: calls.append(1) or fused(*a)
    )
    theirs, ours = encoder(member)
    with torch.inference_mode():
        ours.eval()(torch.randn(B, L, 16))
        assert not calls
        theirs.eval()(torch.randn(B, L, 16))
    assert len(calls) == 2


@pytest.mark.filterwarnings(NESTED)
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_in_inference_padding_on_the_left_and_rows_of_padding_alone_are_as_in_training(
    causal, late
):
    """A row padded on the left is the row alone; where nothing is seen, 0 is added."""
    _, ours = encoder("attention", late=late)
    x, padding = torch.randn(B, L, 16), torch.zeros(B, L, dtype=torch.bool)
    padding[1, :2], padding[2] = True, True
    future = torch.ones(L, L, dtype=torch.bool).triu(1)
    masks = [future, future[2:, 2:]] if causal else [None, None]
    trained = ours.train()(x, mask=masks[0], src_key_padding_mask=padding)
    with torch.inference_mode():
        found = ours.eval()(x, mask=masks[0], src_key_padding_mask=padding)
        alone = ours(x[1:2, 2:], mask=masks[1])
        empty = ours.layers[0](x, src_key_padding_mask=torch.ones_like(padding))
    assert found.isfinite().all()
    assert empty.isfinite().all()
    torch.testing.assert_close(found[1:2, 2:], alone)
    torch.testing.assert_close(found[~padding], trained[~padding])


@pytest.mark.parametrize("batch_first", [True, False])
def test_unmodified_decoder_layer_takes_both_kinds(batch_first):
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=batch_first)
    ours = copy.deepcopy(theirs)
    for name in ("self_attn", "multihead_attn"):
        inner = ef.MultiheadAttention(16, 4, batch_first=batch_first)
        inner.load_state_dict(getattr(theirs, name).state_dict())
        setattr(ours, name, inner)
    x, memory = torch.randn(B, L, 16), torch.randn(B, S, 16)
    if not batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    hidden = torch.arange(S) >= torch.tensor([S, 4, 2])[:, None]
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    call = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": hidden}
    torch.testing.assert_close(ours(x, memory, **call), theirs(x, memory, **call))
    ours.self_attn = ef.MultiheadAttention(
        16, 4, batch_first=batch_first, member="aft-conv", causal=True
    )
    y = ours(x, memory, **call)
    later = x.clone()
    later.select(1 if batch_first else 0, L - 1).add_(1.0)
    changed = (ours(later, memory, **call) - y).abs().amax(-1)
    changed = changed if batch_first else changed.T
    assert not changed[:, :-1].any()
    assert changed[:, -1].all()
    ours.multihead_attn = ef.MultiheadAttention(16, 4, batch_first=batch_first, member="aft-conv")
    with pytest.raises(UnsupportedError, match="cross form: attention"):
        ours(x, memory, **call)
