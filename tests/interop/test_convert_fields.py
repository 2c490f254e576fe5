"""Every field of a foreign config, left out, mistyped and impossible: our own refusal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everyformer.core.errors import EveryformerError
from everyformer.interop.convert import import_checkpoint
from everyformer.interop.convert.checkpoint import ARCHITECTURES

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
