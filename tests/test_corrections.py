"""Mistakes of public packages that docs/trust.md names, each seen there and not here.

A package that has been mended makes its test fail: then the page is to be changed.
"""

import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.engines.kernel.features import stable_exponentials
from helpers import build_mixer, close, draw

WIDTH, HEADS, LENGTH = 8, 2, 12


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_the_bias_of_aft_local_learns() -> None:
    theirs = pytest.importorskip("aft_pytorch").AFTLocal(LENGTH, WIDTH, WIDTH, s=3)
    before = theirs.wbias
    theirs(torch.randn(1, LENGTH, WIDTH)).sum().backward()
    assert theirs.wbias is not before
    assert before.grad is None
    ours = build_mixer(
        "aft-local", width=WIDTH, heads=HEADS, max_length=LENGTH, window=3, rank=None
    )
    held = dict(ours.named_parameters())
    ours(draw(1, LENGTH, WIDTH)).y.sum().backward()
    tables = [p for name, p in held.items() if "position" in name]
    assert tables
    assert all(p.grad is not None and p.grad.any() for p in tables)


@pytest.mark.filterwarnings("ignore")
def test_features_of_a_key_do_not_depend_on_later_keys() -> None:
    package = pytest.importorskip("performer_pytorch.performer_pytorch")
    keys, rows = draw(1, 1, LENGTH, 4), draw(7, 4, seed=2)
    other = keys.clone()
    other[..., -1, :] = 3 * rows[0]
    theirs = [
        package.softmax_kernel(k, projection_matrix=rows, is_query=False) for k in (keys, other)
    ]
    assert (theirs[0] - theirs[1])[..., :-1, :].abs().max() > 1e-3
    for mine, changed in zip(*(stable_exponentials(k, rows) for k in (keys, other)), strict=True):
        close(mine[:, :, :-1], changed[:, :, :-1])


def test_sorted_values_are_values() -> None:
    """Values of zero come out as zero, unless keys stand in for them."""
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    theirs = package.SinkhornAttention(4, WIDTH, WIDTH // HEADS, HEADS, LENGTH).double()
    q, k = draw(1, HEADS, LENGTH, 4), draw(1, HEADS, LENGTH, 4, seed=2)
    assert theirs(q, k, torch.zeros_like(k)).abs().max() > 0.1
    ours = build_mixer(
        "sinkhorn", width=WIDTH, heads=HEADS, causal=False, max_length=LENGTH, block_size=4
    )
    with torch.no_grad():
        ours.project.weights[0][2 * WIDTH :] = 0
    assert ours(draw(1, LENGTH, WIDTH)).y.abs().max() == 0


def test_reversible_layers_learn_beside_frozen_embeddings() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ReformerConfig(
        attn_layers=["local"], hidden_size=WIDTH, num_attention_heads=HEADS, feed_forward_size=8,
        attention_head_size=4, axial_pos_embds=False, max_position_embeddings=LENGTH,
        local_attn_chunk_length=4, is_decoder=False, vocab_size=11,
    )  # fmt: skip
    theirs = transformers.ReformerForMaskedLM(config).train()
    ours = ef.create_model(
        "attention", width=WIDTH, heads=HEADS, layers=1, vocabulary=11, max_length=LENGTH,
        residual="reversible", reversible_output="mean",
    ).train()  # fmt: skip
    tokens = torch.randint(0, 11, (2, LENGTH))
    for made, layers, learn in ((theirs, theirs.reformer.encoder.layers, False),
                                (ours, ours.stack.blocks, True)):  # fmt: skip
        for part in made.modules():
            if isinstance(part, nn.Embedding):
                part.weight.requires_grad_(False)
        made(tokens).logits.square().sum().backward()
        assert all((p.grad is not None) == learn for p in layers.parameters())
