"""Reformer against code that no one here wrote: transformers' and lucidrains' reformer-pytorch."""

import pytest
import torch
from transformers import ReformerConfig, ReformerForMaskedLM, ReformerModelWithLMHead
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

import everyformer as ef
from everyformer.core.choices import repeat_choices
from everyformer.core.mask import Mask
from everyformer.engines.content.chunk_lists import ChunkPattern
from everyformer.models.build import create_mixer
from helpers import covering

WIDTH, HEADS, SIZE, CHUNK, BUCKETS = 16, 2, 8, 4, 8


def their_config(causal, rounds, **more):
    return ReformerConfig(
        attention_head_size=SIZE, num_attention_heads=HEADS, hidden_size=WIDTH,
        attn_layers=["lsh"] * 3, lsh_attn_chunk_length=CHUNK, num_hashes=rounds,
        num_buckets=BUCKETS, is_decoder=causal, hash_seed=3, feed_forward_size=24,
        lsh_attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0, vocab_size=20,
        max_position_embeddings=24, axial_pos_shape=[4, 6], axial_pos_embds_dim=[6, 10],
        pad_token_id=0, eos_token_id=2, lsh_num_chunks_after=int(not causal), **more,
    )  # fmt: skip


def ours(rounds):
    return {"chunk": CHUNK, "rounds": rounds, "buckets": BUCKETS, "wrap": "circular"}


def copied(theirs, causal, rounds):
    mixer = create_mixer("reformer", width=WIDTH, heads=HEADS, causal=causal, **ours(rounds))
    weights = {"query_key.weight": theirs.query_key.weight, "value.weight": theirs.value.weight}
    mixer.load_state_dict({**weights, "out.weight": torch.eye(WIDTH)})
    return mixer.double().eval()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rounds", [1, 3])
def test_hugging_faces_layer(causal, rounds):
    torch.manual_seed(0)
    theirs = LSHSelfAttention(their_config(causal, rounds), layer_idx=0).double().eval()
    mixer = copied(theirs, causal, rounds)
    padding_mask = torch.ones(2, 24, dtype=torch.bool)
    padding_mask[0, 22:] = False
    for real in (None, padding_mask):
        x = torch.randn(2, 24, WIDTH, dtype=torch.float64).requires_grad_()
        seen = torch.ones(2, 24, 1).double() if real is None else real[..., None].double()
        expected = theirs(x, attention_mask=real)
        with repeat_choices([expected.buckets]):
            got = mixer(x, mask=None if real is None else Mask(padding_mask=real)).y
        torch.testing.assert_close(got * seen, expected.hidden_states * seen, rtol=0, atol=1e-11)
        weight = torch.randn_like(got) * seen
        inputs = (x, *theirs.parameters())
        mine = (x, mixer.query_key.weight, mixer.value.weight)
        first = torch.autograd.grad((expected.hidden_states * weight).sum(), inputs)
        second = torch.autograd.grad((got * weight).sum(), mine)
        torch.testing.assert_close(second, first, rtol=0, atol=1e-10)


def test_our_hash_is_theirs_given_their_rotations():
    torch.manual_seed(0)
    config = their_config(True, 3)
    config.num_buckets = [4, 6]
    theirs = LSHSelfAttention(config, layer_idx=0).double().eval()
    x = torch.randn(2, 24, WIDTH, dtype=torch.float64)
    buckets = theirs(x).buckets
    torch.manual_seed(config.hash_seed)
    rotations = torch.randn(HEADS, SIZE, 3, 5, dtype=torch.float64).transpose(1, 2)
    qk = theirs.query_key(x).view(2, 24, HEADS, SIZE).transpose(1, 2)
    ours = ef.functional.lsh_buckets(qk, rotations, (4, 6))
    offset = 24 * torch.arange(3)[:, None]
    assert torch.equal(ours + offset, buckets)


def whole(theirs, task):
    """Our model with their weights."""
    model = ef.create_model(
        "reformer", task, width=WIDTH, heads=HEADS, layers=3, vocabulary=20, max_length=24,
        shape=(4, 6), dims=(6, 10), expansion=24 / WIDTH, norm_eps=1e-12,
        scale_embedding=False, **ours(3),
    ).double()  # fmt: skip
    inner = theirs.reformer
    axes = inner.embeddings.position_embeddings.weights
    found = {
        "embedding.weight": inner.embeddings.word_embeddings.weight,
        "position.tables.0": axes[0][:, 0],
        "position.tables.1": axes[1][0],
        "stack.norm.weight": inner.encoder.layer_norm.weight,
        "stack.norm.bias": inner.encoder.layer_norm.bias,
        "head.weight": theirs.lm_head.decoder.weight,
    }
    for n, layer in enumerate(inner.encoder.layers):
        names = {
            "mixer_norm": layer.attention.layer_norm,
            "mixer.query_key": layer.attention.self_attention.query_key,
            "mixer.value": layer.attention.self_attention.value,
            "mixer.out": layer.attention.output.dense,
            "feedforward_norm": layer.feed_forward.layer_norm,
            "feedforward.up": layer.feed_forward.dense.dense,
            "feedforward.down": layer.feed_forward.output.dense,
        }
        for name, module in names.items():
            for part, weight in module.named_parameters():
                found[f"stack.blocks.{n}.{name}.{part}"] = weight
    model.load_state_dict(found)
    return model


@pytest.mark.parametrize("causal", [True, False])
def test_hugging_faces_model_and_the_gradients_of_its_reversible_layers(causal):
    torch.manual_seed(0)
    cls = ReformerModelWithLMHead if causal else ReformerForMaskedLM
    theirs = cls(their_config(causal, 3, tie_word_embeddings=False)).double()
    for name, weight in theirs.named_parameters():
        # the bias of the head, which ours lacks, is used since transformers 5.24
        torch.nn.init.normal_(weight, std=0.4 * ("lm_head" not in name or weight.dim() > 1))
    model = whole(theirs, "lm" if causal else "mlm")
    buckets = []
    for layer in theirs.reformer.encoder.layers:
        attention = layer.attention.self_attention
        attention.register_forward_hook(
            lambda module, given, out: buckets.append(out.buckets) if len(buckets) < 3 else None
        )
    tokens = torch.randint(0, 20, (2, 24))
    expected = theirs(tokens).logits
    with repeat_choices(list(buckets)):
        got = model(tokens).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    weight = torch.randn_like(got)
    (expected * weight).sum().backward()
    (got * weight).sum().backward()
    theirs_by_layer = theirs.reformer.encoder.layers
    for n, block in enumerate(model.stack.blocks):
        pairs = (
            (block.mixer.query_key, theirs_by_layer[n].attention.self_attention.query_key),
            (block.mixer.out, theirs_by_layer[n].attention.output.dense),
            (block.feedforward.up, theirs_by_layer[n].feed_forward.dense.dense),
        )
        for mine, other in pairs:
            torch.testing.assert_close(mine.weight.grad, other.weight.grad, rtol=0, atol=1e-9)
    table = theirs.reformer.embeddings.position_embeddings.weights[0].grad[:, 0]
    torch.testing.assert_close(model.position.tables[0].grad, table, rtol=0, atol=1e-9)


@covering(causal=[True, False], once=[True, False], rounds=[1, 3])
def test_lucidrains_counts_duplicates_as_we_do(causal, once, rounds):
    lucid = pytest.importorskip("reformer_pytorch")
    torch.manual_seed(0)
    length, rows = 24, 3
    qk, v = (torch.randn(rows, length, SIZE, dtype=torch.float64) for _ in range(2))
    theirs = lucid.LSHAttention(
        bucket_size=CHUNK, n_hashes=rounds, causal=causal, attend_across_buckets=True,
        allow_duplicate_attention=not once,
    ).eval()  # fmt: skip
    expected, _, buckets = theirs(qk, v)
    buckets = buckets.view(1, rows, rounds, length)
    pattern = ChunkPattern(CHUNK, 1, 0, causal, circular=True, once=once)
    got = ef.functional.lsh_attention(
        qk[None], v[None], buckets, pattern, scale=SIZE**-0.5, key_eps=0.0
    )[0]
    if not (once and rounds > 1):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-7)
        return
    # across two rounds they count no pair, and lower such scores by log(1e-9): leave those out
    place = torch.argsort(torch.argsort(buckets[0] * length + torch.arange(length), -1), -1)
    inside = (place >= CHUNK).all(1)
    assert inside.sum() > 10
    torch.testing.assert_close(got[inside], expected[inside], rtol=0, atol=1e-7)
