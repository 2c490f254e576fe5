"""Positions by their identities, and against public implementations."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError, ShapeError
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions.rope import Rope, rotate, rotate_reference
from everyformer.genes.positions.sinusoidal import Sinusoidal, sinusoid, sinusoid_reference

torch.manual_seed(0)
POS = torch.tensor([[0, 1, 2, 17, 500]])


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("width", [2, 7, 8, 64])
def test_waves_equal_their_definition(layout, width):
    fast = sinusoid(POS, width, layout=layout, dtype=torch.float64)
    torch.testing.assert_close(fast, sinusoid_reference(POS, width, layout=layout))


def test_waves_equal_the_roformer_table():
    roformer = pytest.importorskip("transformers.models.roformer.modeling_roformer")
    table = roformer.RoFormerSinusoidalPositionalEmbedding(32, 8)
    table.weight = torch.nn.Parameter(table.create_weight(), requires_grad=False)
    ours = sinusoid(torch.arange(32), 8, layout="halves")
    torch.testing.assert_close(ours, table.weight, rtol=0, atol=1e-6)


def test_positions_are_exact_in_bfloat16_models():
    module = Sinusoidal(width=8).to(torch.bfloat16)
    torch.testing.assert_close(
        module.embed(torch.tensor([[1001]])), sinusoid(torch.tensor([[1001]]), 8)
    )


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_partial_rotations_equal_gpt_neox(fraction):
    module = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction}
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 600}
    config, q = module.GPTNeoXConfig(**sizes, rope_parameters=rotary), torch.randn(1, 2, 5, 16)
    cos, sin = module.GPTNeoXRotaryEmbedding(config)(q, POS)
    expected, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    ours = Rope(width=32, heads=2, options={"fraction": fraction}).rotate(q, POS)
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


def test_interleaved_partial_rotations_equal_gpt_j():
    module = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q = torch.randn(1, 2, 5, 16)
    sin, cos = module.create_sinusoidal_positions(512, 8)[POS].split(4, dim=-1)
    head = module.apply_rotary_pos_emb(q[..., :8].transpose(1, 2), sin, cos).transpose(1, 2)
    options = {"fraction": 0.5, "layout": "interleaved"}
    ours = Rope(width=32, heads=2, options=options).rotate(q, POS)
    torch.testing.assert_close(ours, torch.cat((head, q[..., 8:]), -1), rtol=0, atol=2e-5)
    torch.testing.assert_close(rotate(head, 0 * POS), head)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_equals_its_definition_keeps_norms_and_sees_distance_alone(layout):
    q, k = torch.randn(2, 3, 5, 8).double(), torch.randn(2, 3, 5, 8).double()
    turned = rotate(q, POS, layout=layout)
    torch.testing.assert_close(turned, rotate_reference(q, POS, layout=layout))
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))

    def scores(shift):
        moved = rotate(k, POS + shift, layout=layout).transpose(-1, -2)
        return rotate(q, POS + shift, layout=layout) @ moved

    torch.testing.assert_close(scores(37), scores(0))
    torch.testing.assert_close(rotate(q, torch.zeros(1, 5).long(), layout=layout), q)


def test_layouts_differ_by_a_permutation_of_channels():
    q = torch.randn(1, 2, 5, 8).double()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    paired = rotate(q, POS, layout="interleaved")[..., order]
    torch.testing.assert_close(rotate(q[..., order], POS, layout="half"), paired)


def test_half_layout_equals_llama_and_interleaved_equals_gptj():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=512)
    q = torch.randn(1, 2, 5, 8)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, POS)
    expected, _ = llama.apply_rotary_pos_emb(q, q, cos, sin)
    torch.testing.assert_close(rotate(q, POS, layout="half"), expected, rtol=0, atol=2e-5)
    table = gptj.create_sinusoidal_positions(512, 8)[POS]
    sin, cos = table.split(4, dim=-1)
    expected = gptj.apply_rotary_pos_emb(q.transpose(1, 2), sin, cos).transpose(1, 2)
    torch.testing.assert_close(rotate(q, POS, layout="interleaved"), expected, rtol=0, atol=2e-5)


def test_learned_equals_sinusoidal_when_it_holds_the_same_waves():
    learned = ef.create_model("learned", width=8, layers=1, heads=2, max_length=10)
    fixed = ef.create_model("sinusoidal", width=8, layers=1, heads=2, max_length=10)
    fixed.load_state_dict(learned.state_dict(), strict=False)
    learned.position.table.data = sinusoid(torch.arange(10), 8)
    x = torch.randn(1, 6, 8)
    tokens = torch.zeros(1, 6).long()
    torch.testing.assert_close(
        learned(tokens, embeddings=x).logits, fixed(tokens, embeddings=x).logits
    )


def test_the_table_ends_with_a_clear_error_also_while_streaming():
    model = ef.create_model("learned", width=8, layers=1, heads=2, max_length=4)
    tokens = torch.randint(0, 256, (1, 4))
    with pytest.raises(ShapeError, match=r"max_length=4.*position 4"):
        model(torch.cat((tokens, tokens), 1)[:, :5])
    state = model(tokens, state=model.init_state(1)).state
    with pytest.raises(ShapeError, match="max_length=4"):
        model(tokens[:, :1], state=state)
    with pytest.raises(GeneError, match="needs max_length"):
        POSITIONS.get("learned")(width=8)


@pytest.mark.parametrize("first", [0, 10**6, 10**7, 2**24 - 7])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotations_are_exact_at_far_positions(first, layout):
    torch.manual_seed(0)
    x = torch.randn(1, 2, 7, 64)
    where = first + torch.arange(7)[None]
    exact = ef.reference.rotate(x.double(), where, layout=layout)
    got = ef.functional.rotate(x, where, layout=layout)
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=1e-6)
