"""Llama, Mistral and Qwen2 with scaled rotations: the same logits in both directions."""

import json
import logging

import pytest
import torch

from everyformer.core.errors import UnsupportedError
from everyformer.interop.convert import export_checkpoint, import_checkpoint

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 23, "max_position_embeddings": 20, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
SYSTEMS = {
    "Llama": {},
    "Mistral": {"sliding_window": 7},
    "Qwen2": {},
}
SHORT, LONG = [1.0, 1.1, 1.5, 2.0], [1.0, 2.0, 4.0, 9.0]
ORIGINAL = {"original_max_position_embeddings": 16}
KINDS = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, **ORIGINAL},
    "yarn, own ramp": {
        "factor": 4.0, **ORIGINAL, "beta_fast": 3, "beta_slow": 1.5, "truncate": False,
        "attention_factor": 1.2,
    },
    "yarn as in DeepSeek": {"factor": 4.0, **ORIGINAL, "mscale": 0.7, "mscale_all_dim": 1.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "longrope": {"factor": 4.0, "short_factor": SHORT, "long_factor": LONG, **ORIGINAL},
}  # fmt: skip
CASES = [(system, kind) for system in SYSTEMS for kind in KINDS]
LENGTHS = (9, 16, 17, 30)
pytestmark = pytest.mark.filterwarnings("ignore")


def theirs_of(system, kind, folder):
    cls = getattr(transformers, f"{system}ForCausalLM")
    rotary = {"rope_type": kind.split(",")[0].split(" ")[0], "rope_theta": 900.0, **KINDS[kind]}
    config = cls.config_class(
        **SIZES, **SYSTEMS[system], rope_parameters=rotary, attn_implementation="eager"
    )
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


def agree(ours, theirs):
    for length in LENGTHS:
        tokens = torch.randint(2, 22, (2, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            got, expected = ours(tokens).logits, theirs(tokens, use_cache=False).logits
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("system", "kind"), CASES)
def test_scaled_checkpoints_give_the_same_logits_in_both_directions(system, kind, tmp_path):
    theirs = theirs_of(system, kind, tmp_path / "theirs")
    ours, report = import_checkpoint(tmp_path / "theirs")
    assert (report.made, report.left) == ([], [])
    agree(ours, theirs)
    report = export_checkpoint(ours, tmp_path / "ours", system.lower())
    assert report.left == []
    again, info = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    agree(ours, again.eval())
    back = import_checkpoint(tmp_path / "ours").model
    kept = [model.stack.blocks[0].mixer.position.options for model in (ours, back)]
    assert kept[0] == kept[1]


def change(folder, **config):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))


def test_the_older_names_of_the_options_are_read(tmp_path):
    theirs = theirs_of("Llama", "linear", tmp_path)
    old = {"type": "linear", "factor": 2.0}
    change(tmp_path, rope_parameters=None, rope_scaling=old, rope_theta=900.0)
    agree(import_checkpoint(tmp_path).model, theirs)


def test_the_original_length_is_the_longest_where_none_is_said(tmp_path):
    theirs_of("Llama", "yarn", tmp_path)
    change(tmp_path, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 900.0})
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    agree(import_checkpoint(tmp_path).model, theirs.eval())


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        ({"rope_type": "proportional"}, "'proportional', which has no counterpart"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "partial_rotary"),
    ],
)
def test_rotations_without_a_counterpart_are_refused(rotary, message, tmp_path):
    theirs_of("Llama", "linear", tmp_path)
    change(tmp_path, rope_parameters=rotary)
    with pytest.raises(UnsupportedError, match=message):
        import_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "ntk", "factor": 2.0},
        # theirs begins at the longest text that the model is for
        {"kind": "dynamic", "factor": 2.0, "original_length": 12},
    ],
)
def test_scalings_that_their_config_cannot_say_are_not_exported(scaling, tmp_path):
    theirs_of("Llama", "linear", tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs", scaling=scaling).model
    with pytest.raises(UnsupportedError, match=r"position\.scaling"):
        export_checkpoint(ours, tmp_path / "ours", "llama")


def test_a_model_of_ours_with_the_defaults_of_llama3_is_exported(tmp_path):
    theirs_of("Llama", "linear", tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs", scaling={"kind": "llama3"}).model
    export_checkpoint(ours, tmp_path / "ours", "llama")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours").eval()
    agree(ours, theirs)
