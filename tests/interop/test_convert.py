"""Checkpoints of transformers: the same logits in both directions, every tensor accounted for."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

import everyformer as ef
from everyformer.core.errors import CheckpointError, EveryformerError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.interop.convert import export_checkpoint, import_checkpoint

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 23,
    "max_position_embeddings": 20,
}
LLAMA = {**SIZES, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 23, "n_positions": 20}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
MARIAN = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 23,
    "max_position_embeddings": 20, "pad_token_id": 22, "decoder_start_token_id": 22,
    "eos_token_id": 0, "forced_eos_token_id": 0, "scale_embedding": True,
}  # fmt: skip
CASES = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2, narrow and untied": (
        "GPT2LMHeadModel",
        {**GPT2, "n_inner": 24, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "bert": ("BertForMaskedLM", SIZES),
    "roberta": ("RobertaForMaskedLM", {**SIZES, "max_position_embeddings": 22}),
    "vit": (
        "ViTForImageClassification",
        {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
        | {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 5},
    ),
    "marian": ("MarianMTModel", {**MARIAN, "activation_function": "relu"}),
    "marian as released": ("MarianMTModel", {**MARIAN, "activation_function": "swish"}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama, tied, biased, wide heads": (
        "LlamaForCausalLM",
        {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
        | {"head_dim": 6},
    ),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
}  # fmt: skip


def theirs_of(case, folder):
    name, options = CASES[case]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**options, attn_implementation="eager")).eval()
    with torch.no_grad():
        for weight in [*model.parameters(), *model.buffers()]:
            # norms, biases and zero tables too, so that nothing agrees by vacuity
            if weight.requires_grad or (weight.is_floating_point() and weight.shape[:1] == (1,)):
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


def inputs_of(model):
    generator = torch.Generator().manual_seed(1)
    if model.config.model_type == "vit":
        return {"pixel_values": torch.rand(2, 3, 8, 8, generator=generator)}
    tokens = torch.randint(2, 22, (2, 9), generator=generator)
    keep = torch.ones_like(tokens)
    keep[1, 6:] = 0
    inputs = {"input_ids": tokens, "attention_mask": keep}
    if model.config.model_type in ("bert", "roberta"):
        types = torch.zeros_like(tokens)
        types[:, 4:] = 1
        inputs["token_type_ids"] = types
    if model.config.model_type == "marian":
        inputs["decoder_input_ids"] = torch.randint(1, 22, (2, 7), generator=generator)
    return inputs


def our_logits(model, inputs):
    if "pixel_values" in inputs:
        return model(inputs["pixel_values"]).logits
    mask = Mask(keep=inputs["attention_mask"].bool())
    more = {"types": inputs["token_type_ids"]} if "token_type_ids" in inputs else {}
    if "decoder_input_ids" in inputs:
        more["prefix"] = inputs["decoder_input_ids"]
    return model(inputs["input_ids"], mask=mask, **more).logits


def real(logits, inputs):
    """Rows of logits that a caller reads: those of real tokens."""
    if "attention_mask" not in inputs or "decoder_input_ids" in inputs:
        return logits
    return logits[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("case", CASES)
def test_an_imported_checkpoint_gives_the_same_logits(case, tmp_path):
    theirs = theirs_of(case, tmp_path)
    ours, report = import_checkpoint(tmp_path)
    assert (report.made, report.left) == ([], [])
    inputs = inputs_of(theirs)
    with torch.no_grad():
        expected, got = theirs(**inputs).logits, our_logits(ours, inputs)
    torch.testing.assert_close(real(got, inputs), real(expected, inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_an_exported_model_loads_there_and_gives_the_same_logits(case, tmp_path):
    theirs = theirs_of(case, tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs").model
    kind = theirs.config.model_type
    report = export_checkpoint(ours, tmp_path / "ours", kind)
    assert report.left == []
    again, info = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    inputs = inputs_of(theirs)
    with torch.no_grad():
        expected, got = our_logits(ours, inputs), again.eval()(**inputs).logits
    torch.testing.assert_close(real(got, inputs), real(expected, inputs), rtol=0, atol=1e-5)


def test_another_mixer_takes_the_place_of_attention_and_the_report_says_what_is_fresh(tmp_path):
    theirs_of("gpt2", tmp_path)
    ours, report = import_checkpoint(tmp_path, mixer="aft-conv")
    assert ours.config.genes["mixer"].name == "aft-conv"
    assert {name.split(".")[3] for name in report.made} == {"mixer"}
    assert any(name.startswith("stack.blocks.0.mixer.kernel") for name in report.made)
    assert {name.split(".")[3] for name in report.left} == {"attn"}
    assert "fresh" in report.summary()
    tensors = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(ours.embedding.weight, tensors["transformer.wte.weight"])
    assert ours(torch.randint(0, 23, (2, 7))).logits.shape == (2, 7, 23)


def test_a_checkpoint_of_the_body_alone_says_which_head_is_missing(tmp_path):
    theirs = theirs_of("gpt2", tmp_path / "whole")
    theirs.transformer.save_pretrained(tmp_path / "body")
    body = import_checkpoint(tmp_path / "body").model
    whole = import_checkpoint(tmp_path / "whole").model
    tokens = torch.randint(0, 23, (1, 5))
    torch.testing.assert_close(body(tokens).logits, whole(tokens).logits)
    bert = theirs_of("bert", tmp_path / "bert").bert
    bert.save_pretrained(tmp_path / "encoder")
    with pytest.raises(CheckpointError, match=r"lacks cls\.predictions"):
        import_checkpoint(tmp_path / "encoder")


def change(folder, change_tensors=lambda t: t, **config):
    path = folder / "model.safetensors"
    save_file(change_tensors(load_file(path)), path, metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))


def test_extra_tensors_are_left_and_named(tmp_path):
    theirs_of("gpt2", tmp_path)
    change(tmp_path, lambda t: t | {"transformer.adapter.weight": torch.zeros(2)})
    assert import_checkpoint(tmp_path).report.left == ["transformer.adapter.weight"]


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: change(f, without("transformer.h.1.mlp.c_fc.bias")), "lacks transformer.h.1"),
        (lambda f: change(f, n_embd=24), "config.json says other sizes"),
        (lambda f: change(f, model_type="gptt2"), "did you mean 'gpt2'"),
        (lambda f: change(f, architectures=["GPT2ForTokenClassification"]), "no counterpart"),
        (lambda f: change(f, scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse"),
        (lambda f: change(f, activation_function="geglu"), "activation 'geglu'"),
        (lambda f: (f / "model.safetensors").write_bytes(b"cut"), "cannot be read"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "is a pickle, which could run anything",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(make, message, tmp_path):
    theirs_of("gpt2", tmp_path)
    make(tmp_path)
    with pytest.raises(EveryformerError, match=message):
        import_checkpoint(tmp_path)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder"):
        import_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("member", "task", "options", "message"),
    [
        ("aft-conv", "lm", {}, "mixer='aft-conv'"),
        ("gpt", "lm", {"wiring": "post"}, "wiring='post'"),
        ("attention", "lm", {}, "position='sinusoidal'"),
        ("rope", "lm", {"fraction": 0.5}, "position.fraction"),
        ("gmlp", "pixels", {"image": (1, 4, 4)}, "no known system has the task 'pixels'"),
    ],
)
def test_a_model_that_no_checkpoint_can_say_is_refused(member, task, options, message, tmp_path):
    model = ef.create_model(member, task, width=8, heads=2, layers=1, max_length=8, **options)
    with pytest.raises(UnsupportedError, match=message):
        export_checkpoint(model, tmp_path / "out")


def test_our_own_presets_go_out_and_come_back(tmp_path):
    sizes = {"width": 16, "heads": 4, "layers": 2, "max_length": 12, "vocabulary": 23}
    for member, task in (("gpt", "lm"), ("bert", "mlm")):
        model = ef.create_model(member, task, **sizes).eval()
        export_checkpoint(model, tmp_path / member)
        again = import_checkpoint(tmp_path / member).model
        tokens = torch.randint(0, 23, (2, 9))
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, rtol=0, atol=1e-6)
