"""Mixers of ours in the place of attention in models of transformers."""

import functools
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, UnsupportedError

transformers = pytest.importorskip("transformers")

from everyformer.interop.hf_mixers import replace_attention  # noqa: E402

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 39, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
BUILD: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=40, n_positions=64, n_embd=24, n_layer=2, n_head=4, initializer_range=0.3,
        bos_token_id=1, eos_token_id=39, pad_token_id=0, resid_pdrop=0.0,
        attn_pdrop=0.0, embd_pdrop=0.0,
    )),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**GROUPED, sliding_window=5)
    ),
}  # fmt: skip
ROTATED: dict[str, Any] = {"position": "rope", "kv_heads": 2, "bias": ()}
BIASED = {"bias": ("query", "key", "value", "output")}
OPTIONS = {"gpt2": BIASED, "bert": BIASED, "llama": ROTATED, "mistral": ROTATED}


def built(name: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    return BUILD[name]().to(dtype).eval()


def batch(side: str) -> tuple[Tensor, Tensor]:
    """Two rows, the second padded on a side."""
    torch.manual_seed(1)
    tokens, mask = torch.randint(2, 39, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    if side != "none":
        mask[1, slice(0, 4) if side == "left" else slice(7, None)] = 0
    return tokens * mask, mask


def projections(module: Any) -> list[tuple[Tensor, Tensor | None]]:
    """Weights and biases of query, key, value and output of an attention module."""
    if hasattr(module, "c_attn"):
        three = zip(module.c_attn.weight.T.chunk(3), module.c_attn.bias.chunk(3), strict=True)
        return [*three, (module.c_proj.weight.T, module.c_proj.bias)]
    if hasattr(module, "query"):  # what follows multiplies by the output
        one = torch.eye(24, dtype=module.query.weight.dtype)
        found = [(m.weight, m.bias) for m in (module.query, module.key, module.value)]
        return [*found, (one, torch.zeros(24, dtype=one.dtype))]
    return [(getattr(module, f"{x}_proj").weight, None) for x in "qkvo"]


def copied(model: Any, name: str) -> None:
    """Attention of ours with the weights of theirs."""
    theirs = dict(model.named_modules())
    for place in replace_attention(model, "attention", **OPTIONS[name]):
        mixer = model.get_submodule(place).mixer
        *three, (out, out_bias) = projections(theirs[place])
        mixer.project.weights[0].data = torch.cat([weight for weight, _ in three]).detach()
        mixer.out.weight.data = out.detach().clone()
        for part, (_, bias) in zip(("query", "key", "value"), three, strict=True):
            if bias is not None:
                mixer.project.biases[part].data = bias.detach().clone()
        if out_bias is not None:
            mixer.out.bias.data = out_bias.detach().clone()


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", BUILD)
def test_plain_attention_equals_sdpa(name: str, side: str) -> None:
    model, (tokens, mask) = built(name), batch(side)
    model.set_attn_implementation("sdpa")
    expected = model(tokens, attention_mask=mask, labels=tokens)
    copied(model, name)
    found = model(tokens, attention_mask=mask, labels=tokens)
    real = mask.bool()
    # rotations and softmax of theirs are in float32 here and there
    torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=0, atol=1e-5)


def test_a_training_step_equals_that_of_sdpa() -> None:
    results = []
    for ours in (False, True):
        model, (tokens, mask) = built("gpt2").train(), batch("right")
        if ours:
            copied(model, "gpt2")
        labels = tokens.masked_fill(mask == 0, -100)
        model(tokens, attention_mask=mask, labels=labels).loss.backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        results.append(model(tokens, attention_mask=mask, labels=labels).loss)
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "member", "options"),
    [("gpt2", "aft-local", {"window": 4}), ("llama", "linear", {"position": None}),
     ("llama", "longformer", {"window": 6}), ("bert", "gmlp", {"max_length": 11})],
)  # fmt: skip
def test_padding_changes_nothing(
    name: str, member: str, options: dict[str, Any], side: str
) -> None:
    model, (tokens, mask) = built(name), batch(side)
    replace_attention(model, member, **options)
    real = mask[1].bool()
    # positions of the model itself begin at its first column
    places = {} if name == "llama" else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    found = model(tokens, attention_mask=mask, **places).logits[1, real]
    torch.testing.assert_close(found, model(tokens[1:, real]).logits[0], rtol=0, atol=1e-5)


def test_a_mask_that_is_given_by_its_place_is_read() -> None:
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(
        hidden_size=24, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        image_size=4, patch_size=2, num_channels=1,
    )).eval()  # fmt: skip
    replace_attention(model, "linear")
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    black, other = torch.zeros(2, 1, 1, 4, 4)
    other[..., 2:, 2:] = 1.0
    seen = [model(x, attention_mask=mask).last_hidden_state[:, :4] for x in (black, other)]
    assert torch.equal(*seen)
    assert not torch.equal(model(other).last_hidden_state[:, :4], seen[1])


def test_generation_without_a_cache_is_the_argmax_of_every_step() -> None:
    model, (tokens, _) = built("gpt2"), batch("none")
    replace_attention(model, "aft-conv", kernel=3)
    found = model.generate(tokens, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    for end in range(11, 15):
        logits = model(found[:, :end]).logits[:, -1]
        logits[:, 39] = -torch.inf
        assert torch.equal(found[:, end], logits.argmax(-1))


def test_layers_of_choice_are_replaced_and_take_the_place_of_theirs() -> None:
    model = built("gpt2", torch.bfloat16)
    assert replace_attention(model, "aft-simple", layers=[1]) == ["transformer.h.1.attn"]
    mixed = model.transformer.h[1].attn
    assert mixed.mixer.causal
    assert not any(module.training for module in mixed.modules())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert type(model.transformer.h[0].attn).__name__ == "GPT2Attention"
    tokens, mask = batch("left")
    model.train()(tokens, attention_mask=mask, labels=tokens).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixed.parameters())


def with_cross() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, add_cross_attention=True)
    )


def named(name: str, **sizes: Any) -> Callable[[], Any]:
    """Makes a model of a class of transformers; the sizes that it does not know are not read."""
    kind = getattr(transformers, name)
    return lambda: kind(kind.config_class(**{**SIZES, **sizes})).eval()


PEGASUS = {"d_model": 24, "decoder_layers": 1, "decoder_ffn_dim": 8, "decoder_attention_heads": 4}
T5 = {"d_model": 24, "d_kv": 6, "d_ff": 8, "num_layers": 2, "num_heads": 4}
ROUTED = {"num_local_experts": 2, "num_experts_per_tok": 2, "kv_channels": 6}
NEO = {"num_layers": 2, "attention_types": [[["global"], 2]]}


@pytest.mark.parametrize(
    ("build", "member", "options", "kind", "said"),
    [
        (BUILD["gpt2"], "aft-local", {"windw": 3}, ConfigError, "window"),
        (BUILD["gpt2"], "rope", {}, UnsupportedError, "not a mixer"),
        (BUILD["gpt2"], "linear", {"layers": []}, ConfigError, "has the layers 0 to 1"),
        (BUILD["gpt2"], "linear", {"layers": [True]}, ConfigError, "has the layers 0 to 1"),
        (BUILD["gpt2"], "linear", {"layers": [0.0]}, ConfigError, "has the layers 0 to 1"),
        (named("AlbertModel"), "linear", {}, UnsupportedError, "its LayerNorm would be lost"),
        (named("T5EncoderModel", **T5), "linear", {"layers": [1]}, UnsupportedError,
         "does more than attention: its relative_attention_bias would be lost"),
        (named("JetMoeForCausalLM", **ROUTED), "linear", {}, UnsupportedError,
         "JetMoeAttention in JetMoeForCausalLM does more than attention: its experts"),
        (named("BigBirdPegasusForCausalLM", **PEGASUS), "linear", {}, UnsupportedError,
         "would see the future"),
        (named("GPTNeoForCausalLM", **NEO), "linear", {}, UnsupportedError,
         "GPTNeoForCausalLM keeps an attention implementation of its own"),
        (with_cross, "linear", {}, UnsupportedError, "from one sequence to another"),
        (lambda: torch.nn.Linear(2, 2), "linear", {}, UnsupportedError, "no self-attention"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_leaves_the_model(
    build: Callable[[], Any], member: str, options: Any, kind: type[Exception], said: str
) -> None:
    model = build()
    before = [type(m) for m in model.modules()]
    with pytest.raises(kind, match=said):
        replace_attention(model, member, **options)
    assert [type(m) for m in model.modules()] == before


@pytest.mark.parametrize(
    "build", [named("Qwen3ForCausalLM", head_dim=6), named("Olmo2ForCausalLM")]
)
def test_norms_of_queries_and_keys_go_with_attention(build: Callable[[], Any]) -> None:
    """Of each head, or of all at once, whose weights are as wide as the model."""
    model, (tokens, _) = build(), batch("none")
    assert hasattr(model.model.layers[0].self_attn, "q_norm")
    assert len(replace_attention(model, "linear")) == 2
    assert model(tokens).logits.isfinite().all()


def test_attention_to_an_encoder_stays_and_reads_it() -> None:
    bart = {"d_model": 24, "decoder_layers": 2, "decoder_ffn_dim": 8, "decoder_attention_heads": 4}
    model, (tokens, _) = named("BartForCausalLM", **bart)(), batch("none")
    replaced = replace_attention(model, "linear")
    assert replaced == [f"model.decoder.layers.{layer}.self_attn" for layer in range(2)]
    read, other = torch.randn(2, 2, 5, 24)
    alone, *seen = (model(tokens, encoder_hidden_states=x).logits for x in (None, read, other))
    assert not torch.allclose(seen[0], alone)
    assert not torch.allclose(*seen)


def test_what_a_call_asks_for_and_a_mixer_does_not_do_is_refused() -> None:
    clip, (tokens, _) = named("CLIPTextModel")(), batch("none")
    replace_attention(clip, "linear")
    with pytest.raises(UnsupportedError, match="the model asks for is_causal=True"):
        clip(tokens)
    gpt2 = built("gpt2")
    [place] = replace_attention(gpt2, "linear", layers=[0])
    x = torch.zeros(1, 3, 24, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="from one sequence to another"):
        gpt2.get_submodule(place)(x, key_value_states=x)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cache_is_refused_by_whatever_name_it_comes(name: str) -> None:
    model, (tokens, _) = built(name), batch("none")
    replace_attention(model, "linear")
    for call in (model, functools.partial(model.generate, max_new_tokens=4)):
        with pytest.raises(UnsupportedError, match=r"not know (cache|past_key_values).*use_cache"):
            call(tokens, use_cache=True)


def test_what_a_mixer_does_not_know_is_refused_by_name_unless_it_says_nothing() -> None:
    gpt2 = built("gpt2")
    [place] = replace_attention(gpt2, "linear", layers=[0])
    mixed, x = gpt2.get_submodule(place), torch.randn(1, 3, 24, dtype=torch.float64)
    expected = mixed(x)[0]
    nothing = {
        "kv": None,
        "states": {},
        "shared": UserDict(),
        "position_ids": torch.arange(3)[None],
    }
    assert torch.equal(mixed(x, x, None, **nothing)[0], expected)
    for places, names, words in (
        ((), {"states": UserDict({0: x})}, "states"),
        ((), {"kv": x}, "kv"),
        ((), {"alibi": False}, "alibi"),
        ((x, x + 1), {}, "argument 3"),
        ((torch.ones(1, 1, 3, 3).tril() > 0,) * 2, {}, "argument 3"),
    ):
        with pytest.raises(UnsupportedError, match=f"^linear .* does not know {words}: "):
            mixed(x, *places, **names)


def test_a_model_around_a_decoder_asks_for_no_cache_either() -> None:
    """Its text's configuration says whether there is one."""
    model, (tokens, _) = named("FuyuForCausalLM", text_config=GROUPED)(), batch("none")
    replace_attention(model, "linear")
    assert list(model(tokens)) == ["logits"]


def test_another_implementation_of_masks_is_refused() -> None:
    model, (tokens, mask) = built("gpt2"), batch("left")
    replace_attention(model, "linear")
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedError, match="set_attn_implementation"):
        model(tokens, attention_mask=mask)


def test_mixers_are_put_in_once() -> None:
    model = built("gpt2")
    replace_attention(model, "linear", layers=[0])
    with pytest.raises(UnsupportedError, match="already"):
        replace_attention(model, "aft-conv")
