"""Transformer-XL's relative scores: a double loop, and XLNet and Wav2Vec2-BERT of Hugging Face."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError
from everyformer.genes.positions.sinusoidal import sinusoid_reference
from helpers import close

DIRECTIONS = pytest.mark.parametrize("causal", [True, False])


def mixer(causal, width=12, heads=3, **options):
    torch.manual_seed(0)
    made = ef.create_mixer(
        "attention", width=width, heads=heads, causal=causal, position="xl-relative",
        position_options=options, max_length=16,
    )  # fmt: skip
    for part in (made.position.u, made.position.v, made.position.table, made.position.numbers):
        if part is not None:
            torch.nn.init.normal_(part, std=0.5)
    return made.double().eval()


def four_terms(made, x):
    """The four terms, pair by pair: (B, H, L, L)."""
    q, k, _ = made.project(x)
    position, length = made.position, x.shape[1]
    scores = torch.zeros(*q.shape[:3], length, dtype=x.dtype)
    for i in range(length):
        for j in range(length):
            distance = torch.tensor(i - j)
            r = position.encode(sinusoid_reference(distance, made.width, layout="halves"))
            for h, known in enumerate(r.unflatten(-1, (made.heads, -1))):
                query, key = q[:, h, i], k[:, h, j]
                a, b = (query * key).sum(-1), query @ known
                c, d = key @ position.u[h], position.v[h] @ known
                scores[:, h, i, j] = (a + b + c + d) / known.shape[0] ** 0.5
    return scores


@DIRECTIONS
def test_attention_equals_a_double_loop_over_the_four_terms(causal):
    made, x = mixer(causal), torch.randn(2, 7, 12).double()
    scores = four_terms(made, x)
    if causal:
        scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    y = scores.softmax(-1) @ made.project(x)[2]
    torch.testing.assert_close(made(x).y, made.out(y.transpose(1, 2).flatten(2)))


def xlnet_of(made):
    """XLNet's attention with the weights of ours; its relative waves are its own."""
    module = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    from transformers import XLNetConfig

    config = XLNetConfig(d_model=12, n_head=3, n_layer=1, d_inner=8, vocab_size=5)
    theirs = module.XLNetRelativeAttention(config).double().eval()
    weights = made.project.weights[0].detach().split(12)
    for name, weight in zip("qkv", weights, strict=True):
        getattr(theirs, name).data = weight.T.unflatten(-1, (3, 4))
    theirs.r.data = made.position.encode.weight.detach().T.unflatten(-1, (3, 4))
    theirs.r_w_bias.data, theirs.r_r_bias.data = made.position.u.detach(), made.position.v.detach()
    waves = module.XLNetModel(config).relative_positional_encoding
    return theirs, waves


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 2, 9])
def test_scores_equal_those_of_xlnet(causal, length):
    made = mixer(causal)
    theirs, waves = xlnet_of(made)
    x = torch.randn(2, length, 12).double()
    q, k, v = (part.permute(2, 0, 1, 3) for part in made.project(x))
    r = torch.einsum("ibh,hnd->ibnd", waves(length, length, bsz=2).double(), theirs.r)
    later = torch.ones(length, length).triu(1).double()[:, :, None, None].expand(-1, -1, 2, 3)
    expected = theirs.rel_attn_core(q, k, v, r, attn_mask=later if causal else None)
    expected = made.out(expected.permute(1, 0, 2, 3).flatten(2))
    # its waves are float32
    torch.testing.assert_close(made(x).y, expected, rtol=0, atol=1e-6)


def test_scores_equal_those_of_wav2vec2_bert():
    module = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
    from transformers import Wav2Vec2BertConfig

    config = Wav2Vec2BertConfig(
        hidden_size=12, num_attention_heads=3, position_embeddings_type="relative",
        max_source_positions=20, attn_implementation="eager", attention_dropout=0.0,
    )  # fmt: skip
    made, x = mixer(causal=False), torch.randn(2, 9, 12).double()
    theirs = module.Wav2Vec2BertSelfAttention(config).double().eval()
    weights = made.project.weights[0].detach().split(12)
    parts = (theirs.linear_q, theirs.linear_k, theirs.linear_v)
    for part, weight in zip(parts, weights, strict=True):
        part.weight.data = weight
        part.bias.data.zero_()
    theirs.linear_out.load_state_dict(made.out.state_dict() | {"bias": torch.zeros(12)})
    # its waves alternate sines and cosines; ours stand in halves
    order = torch.arange(12).view(6, 2).T.flatten()
    weight = torch.empty_like(made.position.encode.weight)
    weight[:, order] = made.position.encode.weight.detach()
    theirs.linear_pos.weight.data = weight
    theirs.pos_bias_u.data, theirs.pos_bias_v.data = made.position.u.data, made.position.v.data
    waves = module.Wav2Vec2BertRelPositionalEmbedding(config)(x.float()).double()
    expected = theirs(x, relative_position_embeddings=waves)[0]
    torch.testing.assert_close(made(x).y, expected, rtol=0, atol=1e-6)


@DIRECTIONS
def test_distances_beyond_the_clamp_look_like_it(causal):
    made, x = mixer(causal, clamp=3), torch.randn(1, 9, 12).double()
    position = made.position
    far = position._waves(torch.tensor([3, 4, 100, -3, -50]), torch.float64)
    assert torch.equal(far[0], far[1])
    assert torch.equal(far[0], far[2])
    assert torch.equal(far[3], far[4])
    free = mixer(causal)
    assert (made(x).y - free(x).y).abs().max() > 1e-4
    torch.testing.assert_close(made(x[:, :4]).y, free(x[:, :4]).y)


@DIRECTIONS
def test_learned_distances_that_hold_the_waves_are_the_waves(causal):
    waves, learned = mixer(causal), mixer(causal, distances="learned")
    learned.project.load_state_dict(waves.project.state_dict())
    learned.out.load_state_dict(waves.out.state_dict())
    distances = torch.arange(15, -1 if causal else -16, -1)
    r = waves.position.encode(sinusoid_reference(distances, 12, layout="halves"))
    r = r.detach().unflatten(-1, (3, 4)).transpose(0, 1)
    learned.position.table.data = r
    learned.position.numbers.data = (r @ waves.position.v.detach()[..., None])[..., 0]
    learned.position.u.data = waves.position.u.data
    x = torch.randn(2, 16, 12).double()
    torch.testing.assert_close(learned(x).y, waves(x).y)


@pytest.mark.parametrize(("options", "said"), [
    ({"clamp": -1}, "clamp` must be at least 0"),
    ({"reach": 3}, "reach.* is read with distances='learned' alone"),
    ({"distances": "learned", "clamp": 3}, "clamp.* is read with distances='waves' alone"),
    ({"distances": "learned", "reach": -1}, "reach` must be at least 1"),
])  # fmt: skip
def test_options_without_meaning_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        mixer(True, **options)
    with pytest.raises(GeneError, match="give `reach="):
        ef.create_mixer(
            "attention", width=8, position="xl-relative", position_options={"distances": "learned"}
        )


def permuted(weight):
    weight.data = weight.data.flip(1).clone()


def doubled(weight):
    with torch.no_grad():
        weight.mul_(2)


def stepped(weight):
    weight.grad = torch.randn_like(weight)
    torch.optim.AdamW([weight], lr=0.1, fused=True).step()


def swapped_in_place(weight):
    weight.data[[0, 1]] = weight.data[[1, 0]]


@pytest.mark.parametrize("change", [permuted, doubled, stepped, swapped_in_place])
def test_what_is_kept_between_calls_follows_weights_also_if_their_sum_stays(change):
    made, x = mixer(True), torch.randn(1, 9, 12).double()
    with torch.no_grad():
        for length in (3, 9, 5):
            close(made(x[:, :length]).y, made.reference(x[:, :length]))
    change(made.position.encode.weight)
    with torch.no_grad():
        close(made(x).y, made.reference(x))
