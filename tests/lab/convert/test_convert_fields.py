"""Every field of a foreign config, left out, mistyped and impossible: our own refusal."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everyformer.core.errors import EveryformerError
from everyformer.data.tokenizers.load import load_tokenizer
from everyformer.lab.convert import import_checkpoint
from everyformer.lab.convert.checkpoint import ARCHITECTURES
from everyformer.lab.convert.tokenizer import import_tokenizer

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "vocab_size": 30,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "vocab_size": 30},
    "vit": {**SIZES, "image_size": 8, "patch_size": 4, "num_labels": 3},
    "marian": {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
        "max_position_embeddings": 40, "vocab_size": 30, "decoder_vocab_size": 30,
        "pad_token_id": 29, "decoder_start_token_id": 29, "forced_eos_token_id": 0,
        "eos_token_id": 0,
    },
    "llama": {**SIZES, "num_key_value_heads": 2},
    "mistral": {**SIZES, "num_key_value_heads": 2, "head_dim": 8},
    "qwen2": {**SIZES, "num_key_value_heads": 2},
    "longformer": {**SIZES, "attention_window": [4]},
    "big_bird": {**SIZES, "block_size": 4},
    "decision_transformer": {
        "state_dim": 3, "act_dim": 2, "hidden_size": 16, "n_layer": 1, "n_head": 2,
        "n_positions": 40, "max_ep_len": 20,
    },
}  # fmt: skip
CHANGES: list[Any] = ["two", [[1]], {"a": {"b": []}}, -1, 10**12, 1e308, True, None]


def config(model_type: str) -> dict[str, Any]:
    known = ARCHITECTURES[model_type]
    made = transformers.AutoConfig.for_model(model_type, **SMALL.get(model_type, SIZES)).to_dict()
    made = {name: value for name, value in made.items() if value is not None}
    return {**made, "architectures": [next(iter(known.classes.values()))]}


def changed(model_type: str, held: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    names = (*ARCHITECTURES[model_type].fields, "architectures", "id2label", "num_labels")
    for name in names:
        yield f"without {name}", {key: value for key, value in held.items() if key != name}
        for value in CHANGES:
            yield f"{name}={value!r}", {**held, name: value}


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_field_of_a_config_is_checked(model_type: str, tmp_path: Path) -> None:
    held = config(model_type)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(held))
    with pytest.raises(EveryformerError, match="holds no safetensors file"):
        import_checkpoint(tmp_path)
    for what, values in changed(model_type, held):
        file.write_text(json.dumps(values))
        begun = time.process_time()
        try:
            import_checkpoint(tmp_path)
        except EveryformerError:
            pass
        except Exception as error:
            pytest.fail(f"{model_type}, {what}: {type(error).__name__}: {error}")
        assert time.process_time() - begun < 5, f"{model_type}, {what}"


FORGED = {
    "no JSON": "{",
    "not of UTF-8": "\udcff",
    "a list": "[]",
    "empty": "{}",
    "nested": "[" * 100_000,
    "wrapped": '{"tokenizer": {"model": {"type": "BPE", "vocab": {}, "merges": []}}}',
    "unknown kind": '{"model": {"type": "ABC", "vocab": {"a": 0}}}',
    "no vocabulary": '{"model": {"type": "WordLevel", "unk_token": "a"}}',
    "negative numbers": '{"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}}',
    "numbers beyond 32 bits": (
        '{"model": {"type": "WordLevel", "vocab": {"a": 99999999999}, "unk_token": "a"}}'
    ),
    "the largest number": (
        '{"model": {"type": "WordLevel", "vocab": {"a": 4294967295}, "unk_token": "a"}}'
    ),
    "merges of nothing": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}}',
    "no pieces": '{"model": {"type": "Unigram", "vocab": [], "unk_id": 3}}',
    "unknown beyond all": '{"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 9}}',
}


@pytest.mark.parametrize("model_type", ["gpt2", "marian"])
@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_tokenizer_is_refused(forged: str, model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config(model_type)))
    text = FORGED[forged].encode("utf-8", "surrogateescape")
    (tmp_path / "tokenizer.json").write_bytes(text)
    begun = time.process_time()
    with pytest.raises(EveryformerError) as caught:
        import_tokenizer(tmp_path, 30)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_tokenizer_of_a_saved_model_is_refused(forged: str, tmp_path: Path) -> None:
    text = FORGED[forged].encode("utf-8", "surrogateescape")
    (tmp_path / "tokenizer.json").write_bytes(text)
    with pytest.raises(EveryformerError):
        load_tokenizer(tmp_path)
    values = (
        b'{"kind": "hub", "size": 30, "end": null, "mask": null, "names": {}, "model": '
        + text
        + b"}"
    )
    (tmp_path / "tokenizer.json").write_bytes(values)
    with pytest.raises(EveryformerError) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


TABLES = ("tokenizer_config.json", "special_tokens_map.json")


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "values", [{"eos_token": 7}, {"eos_token": {"content": []}}, {"eos_token": "zz"}, [], "a", None]
)
def test_forged_tables_of_marks_mark_nothing(name: str, values: Any, tmp_path: Path) -> None:
    held = {key: value for key, value in config("gpt2").items() if key != "eos_token_id"}
    (tmp_path / "config.json").write_text(json.dumps(held))
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": words}))
    (tmp_path / name).write_text(json.dumps(values))
    found = import_tokenizer(tmp_path, 30).tokenizer
    assert found is not None
    assert found.separator is None


@pytest.mark.parametrize("marks", [{"end": 30}, {"mask": -1}, {"end": 10**12}, {"size": -1}])
def test_marks_of_a_saved_tokenizer_are_tokens_of_its_model(marks: dict[str, int]) -> None:
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    held = {"kind": "hub", "size": 30, "end": 0, "mask": 29, "names": {}, "model": {"model": words}}
    assert load_tokenizer(held).separator == 0
    with pytest.raises(EveryformerError, match="the tokenizer cannot be read"):
        load_tokenizer({**held, **marks})
