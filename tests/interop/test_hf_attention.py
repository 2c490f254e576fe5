"""Hugging Face models give the same with our attention as with their own."""

import pytest
import torch

from everyformer.core.errors import UnsupportedError

transformers = pytest.importorskip("transformers")

from everyformer.interop.hf_attention import NAME, WITH_WEIGHTS, register  # noqa: E402

register()
SMALL = {"vocab_size": 40, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 64}  # fmt: skip
LLAMA = {**SMALL, "num_key_value_heads": 2, "head_dim": 6, "bos_token_id": 1, "eos_token_id": 39,
         "pad_token_id": 0}  # fmt: skip
DECODERS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_positions=64, n_embd=24, n_layer=2, n_head=4, initializer_range=0.3,
        bos_token_id=1, eos_token_id=39, pad_token_id=0,
    )),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, initializer_range=0.3)
    ),
    "mistral, window 5": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**LLAMA, sliding_window=5, initializer_range=0.3)
    ),
    "gemma2, softcap and window": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **LLAMA, sliding_window=5, attn_logit_softcapping=2.0, initializer_range=0.3
    )),
    "gpt-oss, sinks": lambda: transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **LLAMA, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
        initializer_range=0.3, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )),
}  # fmt: skip


# softmax in float32 is written into eager attention, and it alone has sinks and soft caps
ORACLES = dict.fromkeys(DECODERS, ("sdpa", torch.float64, 1e-10))
for name in ("gemma2, softcap and window", "gpt-oss, sinks"):
    ORACLES[name] = ("eager", torch.float32, 1e-4)


def made(build, dtype=torch.float64):
    torch.manual_seed(0)
    model = build().to(dtype).eval()
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    return model


def batch():
    """Two rows, the second padded on the left."""
    torch.manual_seed(1)
    tokens = torch.randint(2, 39, (2, 11))
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, :4] = 0
    return tokens * mask, mask


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_equals_its_own_attention(name):
    oracle, dtype, tolerance = ORACLES[name]
    model, (tokens, mask) = made(DECODERS[name], dtype), batch()
    for given in (None, mask):
        model.set_attn_implementation(oracle)
        expected = model(tokens, attention_mask=given).logits
        for ours in (NAME, WITH_WEIGHTS):
            model.set_attn_implementation(ours)
            got = model(tokens, attention_mask=given).logits
            real = mask.bool() if given is not None else slice(None)
            torch.testing.assert_close(got[real], expected[real], rtol=0, atol=tolerance)

    call = {"attention_mask": mask, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False,
            "disable_compile": True}  # fmt: skip
    for search in ({}, {"num_beams": 3}, {"cache_implementation": "static"}):
        model.set_attn_implementation(oracle)
        expected = model.generate(tokens, **call, **search)
        model.set_attn_implementation(NAME)
        assert torch.equal(model.generate(tokens, **call, **search), expected)


@pytest.mark.parametrize("build", [
    lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, initializer_range=0.3)),
    lambda: transformers.BertLMHeadModel(
        transformers.BertConfig(**SMALL, is_decoder=True, initializer_range=0.3)
    ),
], ids=["encoder", "decoder"])  # fmt: skip
def test_bert_equals_its_own_attention(build):
    model, (tokens, mask) = made(build), batch()
    for given in (mask, mask.flip(1), None):
        model.set_attn_implementation("sdpa")
        expected = model(tokens, attention_mask=given).logits
        model.set_attn_implementation(NAME)
        got = model(tokens, attention_mask=given).logits
        real = slice(None) if given is None else given.bool()
        torch.testing.assert_close(got[real], expected[real], rtol=0, atol=1e-10)


def test_t5_position_bias_is_added():
    config = transformers.T5Config(
        vocab_size=40, d_model=24, d_kv=6, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, initializer_factor=3.0,
    )  # fmt: skip
    model, (tokens, mask) = made(lambda: transformers.T5ForConditionalGeneration(config)), batch()
    call = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": tokens[:, :6]}
    model.set_attn_implementation("eager")
    expected = model(**call).logits
    model.set_attn_implementation(NAME)
    torch.testing.assert_close(model(**call).logits, expected, rtol=0, atol=1e-5)
    got = model.generate(tokens, attention_mask=mask, max_new_tokens=5)
    expected = _eager(model).generate(tokens, attention_mask=mask, max_new_tokens=5)
    assert torch.equal(got, expected)


def _eager(model):
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss, sinks"])
def test_weights_are_those_of_eager(name):
    model, (tokens, _) = made(DECODERS[name], torch.float32), batch()
    expected = _eager(model)(tokens, output_attentions=True).attentions
    model.set_attn_implementation(WITH_WEIGHTS)
    got = model(tokens, output_attentions=True).attentions
    assert len(got) == 2
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_gradients_equal_sdpa_and_weights_are_dropped():
    """The dropout of weights is off at first, since ours draws other numbers; the others' is on."""
    model, (tokens, mask) = made(DECODERS["gpt2"]).train(), batch()
    dropouts = [layer.attn.attn_dropout for layer in model.transformer.h]

    def loss_of(name, rate):
        model.set_attn_implementation(name)
        for one in dropouts:
            one.p = rate
        torch.manual_seed(4)
        return model(tokens, attention_mask=mask, labels=tokens).loss

    assert all(one.p > 0 for one in dropouts)
    results = []
    for name in ("sdpa", NAME):
        loss = loss_of(name, 0.0)
        results.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(results[1], results[0])
    changed = abs(float((loss_of(NAME, 0.5) - results[1][0]).detach()))
    assert 1e-4 < changed < 1


def test_rows_of_padding_alone_give_zeros_and_finite_gradients():
    layer = torch.nn.Module()
    q, k, v = torch.randn(3, 2, 4, 5, 6, requires_grad=True)
    hidden = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    hidden[1] = False
    from everyformer.interop.hf_attention import attention_forward

    for weights in (False, True):
        y, _ = attention_forward(layer, q, k, v, hidden, output_attentions=weights)
        assert not y[1].any()
        (gradient,) = torch.autograd.grad(y.sum(), q, retain_graph=True)
        assert gradient.isfinite().all()


def test_what_would_be_lost_is_refused():
    from everyformer.interop.hf_attention import attention_forward

    q = torch.randn(1, 2, 3, 4)
    for name in ("block_indices", "cache", "sinks", "tomorrow"):
        with pytest.raises(UnsupportedError, match=f"in Module does not know {name}: use"):
            attention_forward(torch.nn.Module(), q, q, q, None, **{name: torch.zeros(1)})
    nothing = {"sliding_window": 2, "position_ids": q, "use_cache": True, "indices": None}
    got, _ = attention_forward(torch.nn.Module(), q, q, q, None, **nothing)
    assert torch.equal(got, attention_forward(torch.nn.Module(), q, q, q, None)[0])
