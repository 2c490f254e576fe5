"""Partial rotations as GPT-NeoX has them."""

import pytest
import torch

from everyformer.genes.positions.rope import Rope, rotate


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_partial_rotations_equal_gpt_neox(fraction):
    module = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    from transformers import GPTNeoXConfig

    rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
    config = GPTNeoXConfig(
        hidden_size=32, num_attention_heads=2, max_position_embeddings=600, rope_parameters=rotary
    )
    positions, q = torch.tensor([[0, 1, 2, 17, 500]]), torch.randn(1, 2, 5, 16)
    cos, sin = module.GPTNeoXRotaryEmbedding(config)(q, positions)
    expected, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    ours = Rope(width=32, heads=2, options={"fraction": fraction}).rotate(q, positions)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_interleaved_partial_rotations_equal_gpt_j(fraction):
    module = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    positions, q = torch.tensor([[0, 1, 2, 17, 500]]), torch.randn(1, 2, 5, 16)
    turned = int(16 * fraction)
    table = module.create_sinusoidal_positions(512, turned)[positions]
    sin, cos = table.split(turned // 2, dim=-1)
    head = module.apply_rotary_pos_emb(q[..., :turned].transpose(1, 2), sin, cos).transpose(1, 2)
    expected = torch.cat((head, q[..., turned:]), -1)
    options = {"fraction": fraction, "layout": "interleaved"}
    ours = Rope(width=32, heads=2, options=options).rotate(q, positions)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(rotate(head, 0 * positions), head)
