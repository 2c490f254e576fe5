"""Learned rotary angles, partial rotations as GPT-NeoX has them."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError
from everyformer.genes.positions.rope import Rope, rotate
from helpers import build_mixer


def mixer(position, causal, **options):
    return build_mixer(
        "attention", width=12, heads=3, causal=causal, position=position, position_options=options
    )


def test_learned_angles_start_as_the_fixed_ones_and_get_their_gradient():
    fixed, learned = mixer("rope", True), mixer("rope", True, learned=True)
    x = torch.randn(1, 7, 12).double()
    torch.testing.assert_close(learned(x).y, fixed(x).y, rtol=0, atol=1e-6)

    def run(theta):
        return torch.func.functional_call(learned, {"position.theta": theta}, (x,)).y

    assert torch.autograd.gradcheck(
        run, (learned.position.theta.detach().requires_grad_(),), fast_mode=True
    )


def test_layers_learn_angles_of_their_own_and_save_them(tmp_path):
    model = ef.create_model("rope", width=8, heads=2, layers=2, learned=True).eval()
    assert len({id(p) for name, p in model.named_parameters() if "theta" in name}) == 2
    with torch.no_grad():
        model.stack.blocks[1].mixer.position.theta.add_(0.1)
    ef.save(model, tmp_path / "model")
    tokens = torch.randint(0, 256, (1, 9))
    loaded = ef.load(tmp_path / "model").eval()
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)


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


@pytest.mark.parametrize(("position", "options", "said"), [
    ("rope", {"learned": True, "scaling": {"kind": "linear", "factor": 2.0}}, "use one of the two"),
])  # fmt: skip
def test_options_without_meaning_are_refused(position, options, said):
    with pytest.raises(ConfigError, match=said):
        mixer(position, True, **options)
