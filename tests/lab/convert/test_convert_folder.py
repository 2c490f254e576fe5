"""Files, dtypes, scales and fields of a checkpoint's folder: read, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from everyformer.core.errors import CheckpointError, EveryformerError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.lab.convert import import_checkpoint
from everyformer.lab.convert.architecture import HubArchitecture
from quiet import transformers

SIZES = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40,
    "vocab_size": 23, "max_position_embeddings": 20,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20,
                        "vocab_size": 23, "bos_token_id": 0, "eos_token_id": 0},
    "ViTForImageClassification": {**SIZES, "image_size": 8, "patch_size": 4},
}  # fmt: skip
DOWN = "model.layers.0.mlp.down_proj.weight"


def theirs_of(folder: Path, name: str = "LlamaForCausalLM", seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**{**SMALL.get(name, SIZES), **options})).eval()
    model.save_pretrained(folder)
    return model


def change(folder: Path, **config: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))


def rewrite(folder: Path, change_of: Any, file: str = "model.safetensors") -> dict[str, Tensor]:
    tensors = {k: v for pair in load_file(folder / "model.safetensors").items()
               for k, v in change_of(*pair).items()}  # fmt: skip
    save_file(tensors, folder / file, metadata={"format": "pt"})
    return tensors


# Fields


UNKNOWN = [(name, "output_scale") for name in ("LlamaForCausalLM", "BertForMaskedLM", *SMALL)]
UNKNOWN += [("LlamaForCausalLM", "attn_logit_softcapping"), ("GPT2LMHeadModel", "auto_map")]


@pytest.mark.parametrize(("name", "field"), UNKNOWN)
def test_fields_that_nothing_knows_are_refused_by_name(
    name: str, field: str, tmp_path: Path
) -> None:
    theirs_of(tmp_path, name)
    change(tmp_path, **{field: {"a": "b" * 999}})
    with pytest.raises(UnsupportedError, match=f"says {field}=.*…, which the import does not") as e:
        import_checkpoint(tmp_path)
    assert len(str(e.value)) < 300
    change(tmp_path, **{field: None})
    import_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section="),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, "beta_fast=3"),
    ],
)
def test_rotary_parameters_that_are_not_read_are_refused(
    rotary: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs_of(tmp_path)
    change(tmp_path, rope_parameters={"rope_theta": 1e4, **rotary})
    with pytest.raises(UnsupportedError, match=message):
        import_checkpoint(tmp_path)


def test_a_field_that_is_its_class_s_default_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As newer releases write fields that older ones do not know."""
    theirs_of(tmp_path, "BertForMaskedLM")
    fields = HubArchitecture.fields.fget  # type: ignore[attr-defined]
    without = property(lambda a: {k: v for k, v in fields(a).items() if k != "type_vocab_size"})
    monkeypatch.setattr(HubArchitecture, "fields", without)
    import_checkpoint(tmp_path)
    change(tmp_path, type_vocab_size=3)
    with pytest.raises(UnsupportedError, match="type_vocab_size=3, which the import"):
        import_checkpoint(tmp_path)


RELEASED: dict[str, dict[str, Any]] = {
    # what configs of released checkpoints say beyond the fields that are read
    "GPT2LMHeadModel": {
        "n_ctx": 20, "summary_type": "cls_index", "summary_use_proj": True, "_num_labels": 1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "BertForMaskedLM": {
        "directionality": "bidi", "pooler_type": "first_token_transform", "pooler_fc_size": 768,
        "gradient_checkpointing": False, "position_embedding_type": "absolute",
        "classifier_dropout": 0.1, "torch_dtype": "float32", "dtype": None,
    },
    "LongformerForMaskedLM": {
        "attention_mode": "longformer", "ignore_attention_mask": False,
        "problem_type": "single_label_classification",
    },
    "LlamaForCausalLM": {
        "_name_or_path": "x", "pretraining_tp": 1, "rope_scaling": None, "max_sequence_length": 9,
        "unsloth_version": "2025.1", "transformers_version": "4.28.0", "pad_token_id": -1,
        "rope_interleaved": False, "is_llama_config": True, "attention_dropout": 0.1,
    },
    "MarianMTModel": {
        "normalize_before": False, "static_position_embeddings": True, "num_hidden_layers": 2,
        "add_final_layer_norm": False, "bad_words_ids": [[22]], "num_beams": 4, "max_length": 512,
        "classif_dropout": 0.0, "encoder_layerdrop": 0.0, "extra_pos_embeddings": 2,
    },
}  # fmt: skip
SMALL["MarianMTModel"] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 23,
    "pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 0, "forced_eos_token_id": 0,
}  # fmt: skip
SMALL["LongformerForMaskedLM"] = {**SIZES, "attention_window": [4, 4]}


@pytest.mark.parametrize("name", RELEASED)
def test_configs_as_they_were_released_are_read(name: str, tmp_path: Path) -> None:
    theirs_of(tmp_path, name)
    change(tmp_path, **RELEASED[name])
    model, report = import_checkpoint(tmp_path)
    assert report.difference is not None, report.notes
    if name == "LlamaForCausalLM":
        assert model.config.genes["mixer"].options["attention_dropout"] == 0.1


def test_what_no_field_tells_is_found_by_comparing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs_of(tmp_path)
    read = HubArchitecture.read
    monkeypatch.setattr(
        HubArchitecture, "read", lambda *args: {**read(*args), "feedforward": "geglu"}
    )
    with pytest.raises(UnsupportedError, match=r"off by .* from those of transformers' LlamaFor"):
        import_checkpoint(tmp_path)


def test_the_report_says_why_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs_of(tmp_path)
    report = import_checkpoint(tmp_path).report
    assert report.difference is not None
    assert report.notes[-1].startswith("compared with transformers' LlamaForCausalLM: off by ")
    assert report.notes[-1] in report.summary()
    other = import_checkpoint(tmp_path, window=4).report
    assert other.difference is None
    assert other.notes == ["not compared with transformers, since it is to be another model"]
    monkeypatch.setattr("everyformer.lab.convert.agreement.LARGEST", 1000)
    told = import_checkpoint(tmp_path).report.notes[-1]
    assert told.endswith("parameters are more than 1,000")
    monkeypatch.setattr("everyformer.lab.convert.agreement.LARGEST", 10**6)
    monkeypatch.setattr("everyformer.lab.convert.agreement.extra_module", _missing)
    told = import_checkpoint(tmp_path).report.notes[-1]
    assert told == "not compared with transformers' LlamaForCausalLM: not there"


def _missing(*_: Any) -> None:
    raise ImportError("not there")


@pytest.mark.parametrize("name", ["BertForMaskedLM", "GPT2LMHeadModel", "RobertaForMaskedLM"])
def test_positions_count_real_tokens_wherever_the_padding_is(name: str, tmp_path: Path) -> None:
    """As RoBERTa's do there; the others' do where they are told the positions."""
    theirs, ours = theirs_of(tmp_path, name), import_checkpoint(tmp_path).model
    padding_mask = torch.arange(9)[None] >= 3
    tokens = torch.where(padding_mask, torch.arange(9)[None] + 5, theirs.config.pad_token_id or 0)
    given: dict[str, Tensor] = {"input_ids": tokens, "attention_mask": padding_mask.long()}
    places = {"position_ids": (padding_mask.cumsum(1) - 1).clamp(min=0)}
    places = {} if "Roberta" in name else places
    with torch.no_grad():
        got = ours(tokens, mask=Mask(padding_mask=padding_mask)).logits[padding_mask]
        torch.testing.assert_close(
            got, theirs(**given, **places).logits[padding_mask], rtol=0, atol=1e-5
        )
        if places:
            assert (got - theirs(**given).logits[padding_mask]).abs().max() > 1e-3


# Files


@torch.no_grad()
def logits(model: Any, tokens: Tensor) -> Tensor:
    return model(tokens).logits


@pytest.mark.parametrize(
    ("beside", "shards"),
    [("consolidated", None), ("z-old", None), ("adapter_model", "10KB"), ("model_ema", "10KB"),
     *(("model-00009-of-00009", shards) for shards in (None, "10KB"))],
)  # fmt: skip
def test_files_beside_the_model_are_named_and_left_out(
    beside: str, shards: str | None, tmp_path: Path
) -> None:
    theirs = theirs_of(tmp_path)
    if shards:
        (tmp_path / "model.safetensors").unlink()
        theirs.save_pretrained(tmp_path, max_shard_size=shards)
    other = theirs_of(tmp_path / "other", seed=1).state_dict()
    save_file({k: v.clone() for k, v in other.items()}, tmp_path / f"{beside}.safetensors")
    model, report = import_checkpoint(tmp_path)
    tokens = torch.arange(9)[None]
    torch.testing.assert_close(logits(model, tokens), logits(theirs, tokens), rtol=0, atol=1e-5)
    assert report.left == []
    assert report.notes[0].endswith(f"in other files: {beside}.safetensors")


def test_an_index_of_files_that_are_gone_is_passed_over_as_by_transformers(tmp_path: Path) -> None:
    """What save_pretrained leaves behind of a model that it wrote in parts before."""
    theirs_of(tmp_path, seed=1).save_pretrained(tmp_path, max_shard_size="10KB")
    theirs = theirs_of(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    again = type(theirs).from_pretrained(tmp_path)
    tokens = torch.arange(9)[None]
    got = logits(import_checkpoint(tmp_path).model, tokens)
    for expected in (theirs, again):
        torch.testing.assert_close(got, logits(expected, tokens), rtol=0, atol=1e-5)


def test_a_folder_that_does_not_say_which_files_are_the_model_is_refused(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path)
    whole = tmp_path / "model.safetensors"
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    for path in (tmp_path / "parts").glob("model*"):
        path.rename(tmp_path / path.name)
    with pytest.raises(CheckpointError, match=r"two models, .*safetensors and the files of m"):
        import_checkpoint(tmp_path)
    whole.unlink()
    import_checkpoint(tmp_path)
    first = min(tmp_path.glob("model-0*"))
    held = first.read_bytes()
    first.unlink()
    with pytest.raises(CheckpointError, match=f"lacks {first.name}, so that model-00002"):
        import_checkpoint(tmp_path)
    first.write_bytes(held)
    index = tmp_path / "model.safetensors.index.json"
    for table in ('{"weight_map": [1]}', "{}", "[", '{"weight_map": {"a": "../a.safetensors"}}'):
        index.write_text(table)
        with pytest.raises(EveryformerError, match=r"index|cannot be read|lacks"):
            import_checkpoint(tmp_path)
    index.unlink()
    with pytest.raises(CheckpointError, match=r"lacks model.safetensors and model.safetensors.ind"):
        import_checkpoint(tmp_path)


# Dtypes


@pytest.mark.parametrize("low", ["embed", "layers.1.", "lm_head"])
def test_the_dtype_that_the_config_says_is_that_of_all(low: str, tmp_path: Path) -> None:
    theirs_of(tmp_path)
    tensors = rewrite(tmp_path, lambda k, v: {k: v.bfloat16() if low in k else v})
    for said in ("float32", "bfloat16"):
        change(tmp_path, dtype=said)
        model, report = import_checkpoint(tmp_path)
        theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
        got, expected = model.stack.blocks[1].mixer.out.weight, theirs.model.layers[1]
        assert {weight.dtype for weight in model.parameters()} == {getattr(torch, said)}
        assert torch.equal(got, expected.self_attn.o_proj.weight)
        assert report.notes[0] == f"weights are {said}, of bfloat16 and float32"
    change(tmp_path, dtype=None)
    # where it says none, no value is rounded
    model, _ = import_checkpoint(tmp_path)
    assert torch.equal(model.embedding.weight, tensors["model.embed_tokens.weight"].float())
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    asked, _ = import_checkpoint(tmp_path, dtype=torch.float64)
    assert {weight.dtype for weight in asked.parameters()} == {torch.float64}


@pytest.mark.parametrize("said", ["int8", "float8_e4m3fn", "nn", 7, {"a": "float32"}])
def test_dtypes_that_weights_cannot_have_are_refused(said: Any, tmp_path: Path) -> None:
    theirs_of(tmp_path)
    change(tmp_path, torch_dtype=said)
    with pytest.raises(CheckpointError, match="'torch_dtype' must be"):
        import_checkpoint(tmp_path)


# Quantised weights


@pytest.mark.parametrize(
    ("block", "grid", "said"),
    [
        ([16, 24], (2, 2), "bfloat16"), ([16, 24], (2, 2), None), ([128, 128], (1, 1), None),
        (None, (), "bfloat16"), (None, (1,), None), ([24, 1], (1, 40), "bfloat16"),
    ],
)  # fmt: skip
def test_weights_of_fp8_are_those_of_their_blocks_times_the_scales(
    block: list[int] | None, grid: tuple[int, ...], said: str | None, tmp_path: Path
) -> None:
    theirs_of(tmp_path, dtype="bfloat16")
    draw = torch.Generator().manual_seed(0)
    scale = torch.rand(grid, generator=draw) + 0.5

    def quantised(name: str, value: Tensor) -> dict[str, Tensor]:
        if name != DOWN:
            return {name: value.bfloat16()}
        return {name: (value * 400).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}

    tensors = rewrite(tmp_path, quantised)
    quantisation = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    change(tmp_path, dtype=said, quantization_config=quantisation | {"weight_block_size": block})
    ours, report = import_checkpoint(tmp_path)
    rows, columns = block or (24, 40)
    scales = scale if len(grid) == 2 else scale.reshape(1, 1)
    whole = torch.kron(scales, torch.ones(rows, columns))[:24, :40]
    expected = tensors[DOWN].float() * whole
    got = ours.stack.blocks[0].feedforward.down.weight
    assert torch.equal(got, expected.bfloat16() if said else expected)
    assert report.left == []
    assert report.difference is not None, report.notes


def test_scales_of_powers_of_two_are_read(tmp_path: Path) -> None:
    theirs_of(tmp_path)
    scale = torch.tensor([[0.25]]).to(torch.float8_e8m0fnu)
    tensors = rewrite(tmp_path, lambda k, v: {k: v} if k != DOWN else {
        k: (v * 400).to(torch.float8_e4m3fn), f"{k}_scale_inv": scale
    })  # fmt: skip
    got = import_checkpoint(tmp_path).model.stack.blocks[0].feedforward.down.weight
    assert torch.equal(got, tensors[DOWN].float() / 4)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1, 2), [16, 24], r"\(1, 2\), where .*down_proj.weight \(24, 40\) has \(2, 2\) blocks"),
        ((1, 1), [16, 24], r"has \(2, 2\) blocks of \(16, 24\)"),
        ((2, 2), None, r"has \(1, 1\) blocks of \(128, 128\)"),
        ((1, 1), [0, 24], "weight_block_size of quantization_config"),
        ((1, 1), "16", "weight_block_size of quantization_config"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    grid: tuple[int, ...], block: Any, message: str, tmp_path: Path
) -> None:
    theirs_of(tmp_path)
    rewrite(tmp_path, lambda k, v: {k: v} if k != DOWN else {
        k: v.to(torch.float8_e4m3fn), f"{k}_scale_inv": torch.ones(grid)
    })  # fmt: skip
    change(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": block})
    with pytest.raises(EveryformerError, match=message):
        import_checkpoint(tmp_path)


FORMS: dict[str, tuple[dict[str, Any], str, torch.dtype]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4}, "qweight", torch.int32),
    "awq": ({"quant_method": "awq", "bits": 4}, "qweight", torch.int32),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "weight.absmax", torch.uint8),
    "a method that config.json does not name": ({"load_in_8bit": True}, "SCB", torch.int8),
    "compressed-tensors": ({"quant_method": "compressed-tensors"}, "weight_packed", torch.int32),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8"}, "weight_scale", torch.float8_e4m3fn),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("named", [True, False])
def test_other_quantised_weights_are_refused_by_name(
    form: str, named: bool, tmp_path: Path
) -> None:
    theirs_of(tmp_path)
    said, ending, kind = FORMS[form]
    extra = DOWN.replace("weight", ending)
    rewrite(tmp_path, lambda k, v: {k: v} if k != DOWN else {
        k: v.to(kind), extra: torch.ones(3, dtype=torch.float16)
    })  # fmt: skip
    change(tmp_path, quantization_config=said if named else None)
    with pytest.raises(UnsupportedError) as caught:
        import_checkpoint(tmp_path)
    expected = form if named else "a method that config.json does not name"
    assert f"quantised by {expected} ({extra}), which is not read" in str(caught.value)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int32])
def test_weights_whose_scale_is_not_known_are_refused(kind: torch.dtype, tmp_path: Path) -> None:
    theirs_of(tmp_path)
    rewrite(tmp_path, lambda k, v: {k: v.to(kind) if k == DOWN else v})
    with pytest.raises(UnsupportedError, match=f"{DOWN} is {kind}, a quantised weight whose scale"):
        import_checkpoint(tmp_path)
