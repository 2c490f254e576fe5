"""Checkpoints of transformers: the same logits in both directions, every tensor accounted for."""

import json

import pytest
import torch
from safetensors.torch import load_file

import everyformer as ef
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.lab.convert import export_checkpoint, import_checkpoint
from everyformer.lab.convert.architecture import ALL_BIASES
from everyformer.lab.convert.bert import OF_BERT
from everyformer.models.build import build_model
from everyformer.training.warmstart import read_start, warm_start
from quiet import transformers

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": 23, "max_position_embeddings": 20,
}  # fmt: skip
LLAMA = {**SIZES, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 23, "n_positions": 20}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
MARIAN = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 23,
    "max_position_embeddings": 20, "pad_token_id": 22, "decoder_start_token_id": 22,
    "eos_token_id": 0, "forced_eos_token_id": 0, "scale_embedding": True,
}  # fmt: skip
LONGFORMER = {**SIZES, "max_position_embeddings": 50, "attention_window": [4, 8]}
BIGBIRD = {
    **SIZES, "max_position_embeddings": 48, "block_size": 4, "num_random_blocks": 1,
    "sep_token_id": 2,
}  # fmt: skip
CASES = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2, narrow and untied": (
        "GPT2LMHeadModel",
        {**GPT2, "n_inner": 24, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    "bert": ("BertForMaskedLM", {**SIZES, "hidden_act": "relu"}),
    "bert, quick_gelu": ("BertForMaskedLM", {**SIZES, "hidden_act": "quick_gelu"}),
    "roberta": (
        "RobertaForMaskedLM",
        {**SIZES, "max_position_embeddings": 22, "hidden_act": "relu"},
    ),
    "vit": (
        "ViTForImageClassification",
        {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
        | {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 5},
    ),
    "marian": ("MarianMTModel", {**MARIAN, "activation_function": "relu"}),
    "marian as released": ("MarianMTModel", {**MARIAN, "activation_function": "swish"}),
    "llama, tied, biased, wide heads": (
        "LlamaForCausalLM",
        {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
        | {"head_dim": 6},
    ),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2, windows from layer 1 on": (
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen2, windows by name": (
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 3}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen2, windows in all layers": (
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    ),
    "qwen2, a window that is not used": (
        "Qwen2ForCausalLM", {**LLAMA, "use_sliding_window": False, "sliding_window": 4}
    ),
    "longformer": ("LongformerForMaskedLM", LONGFORMER),
    "longformer, one window, untied": (
        "LongformerForMaskedLM",
        {**LONGFORMER, "attention_window": 6, "tie_word_embeddings": False},
    ),
    "longformer that classifies": (
        "LongformerForSequenceClassification",
        {**LONGFORMER, "num_labels": 3},
    ),
    "bigbird": ("BigBirdForMaskedLM", BIGBIRD),
    "bigbird without biases": (
        "BigBirdForMaskedLM",
        {**BIGBIRD, "use_bias": False, "rescale_embeddings": True, "num_random_blocks": 2},
    ),
    "bigbird, all read all": ("BigBirdForMaskedLM", {**BIGBIRD, "attention_type": "original_full"}),
    "bigbird that classifies": ("BigBirdForSequenceClassification", {**BIGBIRD, "num_labels": 3}),
}  # fmt: skip
SHORT, LONG = [1.0, 1.1, 1.5, 2.0], [1.0, 2.0, 4.0, 9.0]
ORIGINAL = {"original_max_position_embeddings": 16}
SCALINGS = {
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
for n, (kind, scaling) in enumerate(SCALINGS.items()):
    rotary = {"rope_type": kind.split(",")[0].split(" ")[0], "rope_theta": 900.0, **scaling}
    system = ("Llama", "Mistral", "Qwen2")[n % 3]
    options = {**LLAMA, "head_dim": 8, "rope_parameters": rotary}
    CASES[f"rotations {kind}"] = (f"{system}ForCausalLM", options)
pytestmark = pytest.mark.filterwarnings("ignore:.*original_max_position_embeddings")


def theirs_of(case, folder):
    name, options = CASES[case]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    # sparse attention has one form there
    eager = {} if "Longformer" in name or "BigBird" in name else {"attn_implementation": "eager"}
    model = cls(cls.config_class(**options, **eager)).eval()
    with torch.no_grad():
        for weight in [*model.parameters(), *model.buffers()]:
            # norms, biases and zero tables too, so that nothing agrees by vacuity
            if weight.requires_grad or (weight.is_floating_point() and weight.shape[:1] == (1,)):
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("case", "theirs", "inside"),
    [
        ("gpt2", {"resid_pdrop": 0.2}, 0.0),
        ("bert", {"hidden_dropout_prob": 0.2}, 0.0),
        ("marian", {"dropout": 0.2, "activation_dropout": 0.3}, 0.3),
    ],
)
def test_hidden_units_are_dropped_where_theirs_are(tmp_path, case, theirs, inside):
    name, options = CASES[case]
    cls = getattr(transformers, name)
    cls(cls.config_class(**options, **theirs)).save_pretrained(tmp_path)
    ours, _ = import_checkpoint(tmp_path)
    dropped = {n: m.dropout for n, m in ours.named_modules() if hasattr(m, "dropout")}
    assert {rate for n, rate in dropped.items() if n.endswith("feedforward")} == {inside}
    assert {rate for n, rate in dropped.items() if ".blocks." in n and n[-1].isdigit()} == {0.2}
    export_checkpoint(ours, tmp_path / "again")
    told = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {name: told[name] for name in theirs} == theirs


def inputs_of(model, length=9):
    """Two rows, the second of which ends before the first."""
    generator = torch.Generator().manual_seed(length)
    kind = model.config.model_type
    if kind == "vit":
        return {"pixel_values": torch.rand(2, 3, 8, 8, generator=generator)}
    tokens = torch.randint(3, 22, (2, length), generator=generator)
    padding_mask = torch.ones_like(tokens)
    scaled = getattr(model.config, "rope_parameters", {}).get("rope_type", "default") != "default"
    if kind != "big_bird" and not scaled:
        # theirs have the last block, and what rotations are scaled by, of the padded batch
        padding_mask[1, 6:] = 0
    tokens[padding_mask == 0] = model.config.pad_token_id or 0
    inputs = {"input_ids": tokens, "attention_mask": padding_mask}
    if kind in ("bert", "roberta", "longformer", "big_bird"):
        inputs["token_type_ids"] = (torch.arange(length) > 3).long().expand(2, -1)
    if kind == "marian":
        inputs["decoder_input_ids"] = torch.randint(1, 22, (2, 7), generator=generator)
    return inputs


def our_logits(model, inputs, marked=None):
    if "pixel_values" in inputs:
        return model(inputs["pixel_values"]).logits
    mask = Mask(padding_mask=inputs["attention_mask"].bool(), global_tokens=marked)
    more = {"types": inputs["token_type_ids"]} if "token_type_ids" in inputs else {}
    if "decoder_input_ids" in inputs:
        more["prefix"] = inputs["decoder_input_ids"]
    return model(inputs["input_ids"], mask=mask, **more).logits


def agree(ours, theirs, *inputs, marked=None, **more):
    """The same logits at all places that a caller reads: those of real tokens."""
    for given in inputs or [inputs_of(theirs)]:
        with torch.no_grad():
            expected, got = theirs(**given, **more).logits, our_logits(ours, given, marked)
        if got.dim() == 3 and "decoder_input_ids" not in given:
            got, expected = (rows[given["attention_mask"].bool()] for rows in (got, expected))
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_both_directions_give_the_same_logits(case, tmp_path):
    theirs = theirs_of(case, tmp_path / "theirs")
    ours, report = import_checkpoint(tmp_path / "theirs")
    # random blocks are drawn, not learned, and none are saved
    made = [name for name in report.made if not name.endswith(".order")]
    assert (made, report.left) == ([], [])
    assert report.difference is not None, report.notes
    assert report.difference < 1e-6
    kind = theirs.config.model_type
    lengths = (41,) if kind in ("longformer", "big_bird") else (9,)
    lengths = (9, 16, 17, 30) if "rotations" in case else lengths
    inputs = [inputs_of(theirs, length) for length in lengths]
    agree(ours, theirs, *inputs)
    assert export_checkpoint(ours, tmp_path / "ours", kind).left == []
    again, info = type(theirs).from_pretrained(
        tmp_path / "ours", output_loading_info=True,
        attn_implementation=theirs.config._attn_implementation,
    )  # fmt: skip
    # their BigBird always has one, which guesses nothing
    assert [name for name in info["missing_keys"] if ".pooler." not in name] == []
    assert not info["unexpected_keys"]
    agree(ours, again.eval(), *inputs)
    if "rotations" in case:
        back = import_checkpoint(tmp_path / "ours").model
        kept = [model.stack.blocks[0].mixer.position.options for model in (ours, back)]
        assert kept[0] == kept[1]


def test_global_tokens_of_every_row(tmp_path):
    theirs = theirs_of("longformer", tmp_path)
    marked = torch.zeros(2, 41, dtype=torch.bool)
    marked[0, [0, 20]] = marked[1, 3] = True
    ours, inputs = import_checkpoint(tmp_path).model, inputs_of(theirs, 41)
    agree(ours, theirs, inputs, marked=marked, global_attention_mask=marked.long())


@pytest.mark.parametrize("length", [7, 28, 29])
def test_short_texts_are_read_whole_by_a_bigbird_as_there(length, tmp_path):
    theirs = theirs_of("bigbird", tmp_path)
    inputs = {name: value[:1, :length] for name, value in inputs_of(theirs, 41).items()}
    agree(import_checkpoint(tmp_path).model, theirs, inputs)


def test_another_mixer_takes_the_place_of_attention_and_the_report_says_what_is_fresh(tmp_path):
    theirs_of("gpt2", tmp_path)
    ours, report = import_checkpoint(tmp_path, mixer="aft-conv")
    assert ours.config.genes["mixer"].name == "aft-conv"
    assert {name.split(".")[3] for name in report.made} == {"mixer"}
    assert any(name.startswith("stack.blocks.0.mixer.kernel") for name in report.made)
    assert {name.split(".")[3] for name in report.left} == {"attn"}
    tensors = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(ours.embedding.weight, tensors["transformer.wte.weight"])
    assert ours(torch.randint(0, 23, (2, 7))).logits.shape == (2, 7, 23)


def test_a_checkpoint_of_the_body_alone_says_which_head_is_missing(tmp_path):
    theirs = theirs_of("gpt2", tmp_path / "whole")
    theirs.transformer.save_pretrained(tmp_path / "body")
    agree(import_checkpoint(tmp_path / "body").model, theirs)
    bert = theirs_of("bert", tmp_path / "bert").bert
    bert.save_pretrained(tmp_path / "encoder")
    with pytest.raises(CheckpointError, match=r"lacks cls\.predictions"):
        import_checkpoint(tmp_path / "encoder")


def change(folder, **config):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))


@pytest.mark.parametrize(
    ("case", "config", "message"),
    [
        ("gpt2", {"architectures": ["GPT2ForTokenClassification"]}, "no counterpart"),
        ("gpt2", {"n_embd": 24}, "config.json says other sizes"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse"),
        ("gpt2", {"activation_function": "geglu"}, "activation 'geglu'"),
        ("roberta", {"pad_token_id": 0}, "pad_token_id=0"),
        ("longformer", {"pad_token_id": 3}, "pad_token_id=3"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4,
                   "layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4,
                   "layer_types": ["full_attention"]}, "2 layers and layer_types"),
        ("qwen2", {"rope_parameters": {"rope_type": "proportional"}}, "'proportional', which has"),
        (
            "qwen2",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                 "partial_rotary_factor": 0.5}},
            "partial_rotary",
        ),
    ],
)  # fmt: skip
def test_options_without_a_counterpart_are_refused(case, config, message, tmp_path):
    theirs_of(case, tmp_path)
    change(tmp_path, **config)
    with pytest.raises((UnsupportedError, CheckpointError), match=message):
        import_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("used", "first", "windows"),
    [(True, 1, (None, 4)), (True, 0, (4, 4)), (True, None, (None, None)), (False, 0, (None, None))],
)
def test_windows_that_an_older_config_counts_from_a_layer_on(used, first, windows, tmp_path):
    theirs = theirs_of("qwen2, windows from layer 1 on", tmp_path)
    change(tmp_path, layer_types=None, max_window_layers=first, use_sliding_window=used)
    ours = import_checkpoint(tmp_path).model
    assert tuple(block.mixer.options.window for block in ours.stack.blocks) == windows
    if first is not None:
        theirs = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
        agree(ours, theirs)


@pytest.mark.parametrize("case", ["gpt2", "llama, tied, biased, wide heads"])
def test_an_export_without_a_tokenizer_ends_at_no_token(case, tmp_path):
    theirs_of(case, tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs").model
    export_checkpoint(ours, tmp_path / "ours")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert (config.bos_token_id, config.eos_token_id) == (None, None)


@pytest.mark.parametrize(
    "case",
    [
        "llama, tied, biased, wide heads",
        *(f"rotations {kind}" for kind in ("linear", "yarn", "llama3", "longrope")),
        "qwen2, windows by name",
    ],
)
def test_what_was_imported_is_begun_from(case, tmp_path):
    """Options of options (scalings, widths) are filled in on both sides before a comparison."""
    theirs_of(case, tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs").model
    ef.save(ours, tmp_path / "ours")
    same = build_model(read_start(tmp_path / "ours").config)
    assert warm_start(same, tmp_path / "ours").fresh == ()
    # as the command line describes it: every option written out
    written = build_model(
        from_dict(type(ours.config), type(ours.config).settled(to_dict(ours.config)))
    )
    assert warm_start(written, tmp_path / "ours").fresh == ()


def test_the_older_names_of_scaled_rotations_are_read(tmp_path):
    theirs = theirs_of("rotations linear", tmp_path)
    old = {"type": "linear", "factor": 2.0}
    change(tmp_path, rope_parameters=None, rope_scaling=old, rope_theta=900.0)
    agree(import_checkpoint(tmp_path).model, theirs)


def test_the_original_length_is_the_longest_where_none_is_said(tmp_path):
    theirs = theirs_of("rotations linear", tmp_path)
    change(tmp_path, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 900.0})
    theirs = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
    agree(import_checkpoint(tmp_path).model, theirs)


@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "ntk", "factor": 2.0},
        # theirs begins at the longest text that the model is for
        {"kind": "dynamic", "factor": 2.0, "original_length": 12},
    ],
)
def test_scalings_that_their_config_cannot_say_are_not_exported(scaling, tmp_path):
    theirs_of("rotations linear", tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs", scaling=scaling).model
    with pytest.raises(UnsupportedError, match=r"position\.scaling"):
        export_checkpoint(ours, tmp_path / "ours", "llama")


def test_a_model_of_ours_with_the_defaults_of_llama3_is_exported(tmp_path):
    theirs = theirs_of("rotations linear", tmp_path / "theirs")
    ours = import_checkpoint(tmp_path / "theirs", scaling={"kind": "llama3"}).model
    export_checkpoint(ours, tmp_path / "ours", "llama")
    agree(ours, type(theirs).from_pretrained(tmp_path / "ours").eval())


LIKE_BERT = {**OF_BERT, "token_types": 2, "bias": ALL_BIASES, "norm_eps": 1e-12}


@pytest.mark.parametrize(
    ("member", "task", "kind", "options", "message"),
    [
        ("aft-conv", "lm", None, {}, "mixer='aft-conv'"),
        ("gpt", "lm", None, {"residual": "post"}, "residual='post'"),
        ("attention", "lm", None, {}, "position='sinusoidal'"),
        ("rope", "lm", None, {"fraction": 0.5}, "position.fraction"),
        ("gmlp", "pixels", None, {"image": (1, 4, 4)}, "no known system has the task 'pixels'"),
        ("longformer", "mlm", "longformer", {**LIKE_BERT, "dilation": 2}, "dilation"),
        ("longformer", "mlm", "longformer", {**LIKE_BERT, "global_tokens": 1}, "global_tokens"),
        ("bigbird", "mlm", "big_bird", {**LIKE_BERT, "random": "uniform"}, "random"),
        (
            "bigbird", "mlm", "big_bird",
            {**LIKE_BERT, "global_blocks": (0,), "random": "zeros"}, "global_blocks",
        ),
    ],
)  # fmt: skip
def test_a_model_that_no_checkpoint_can_say_is_refused(
    member, task, kind, options, message, tmp_path
):
    model = ef.create_model(member, task, width=8, heads=2, layers=1, max_length=48, **options)
    with pytest.raises(UnsupportedError, match=message):
        export_checkpoint(model, tmp_path / "out", kind)


@pytest.mark.parametrize(
    ("member", "task", "options", "told"),
    [
        # a run's config says that there is no window
        (
            "bert", "classify-text", {"window": None, "classes": 2},
            (
                "this bert cannot be written as big_bird or longformer: ",
                "big_bird cannot say `head_bias=True` (only False)",
                "; longformer cannot say ", "; train one with what stands in brackets",
            ),
        ),
        # all four, the nearest first
        (
            "sparse-transformer", "mlm", {},
            (
                "cannot be written as longformer, big_bird, roberta or bert: ",
                "longformer cannot say `block.final", "`head_transform=False` (only True)",
            ),
        ),
    ],
)  # fmt: skip
def test_where_no_system_fits_each_is_named_with_its_reason(member, task, options, told, tmp_path):
    sizes = {"width": 8, "heads": 2, "layers": 1, "max_length": 48, "vocabulary": 9}
    model = ef.create_model(member, task, **sizes, **options)
    with pytest.raises(UnsupportedError) as error:
        export_checkpoint(model, tmp_path / "out")
    for part in told:
        assert part in str(error.value)


def test_our_own_presets_go_out_and_come_back(tmp_path):
    sizes = {"width": 16, "heads": 4, "layers": 2, "max_length": 12, "vocabulary": 23}
    for member, task in (("gpt", "lm"), ("bert", "mlm")):
        model = ef.create_model(member, task, **sizes).eval()
        export_checkpoint(model, tmp_path / member)
        again = import_checkpoint(tmp_path / member).model
        tokens = torch.randint(0, 23, (2, 9))
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, rtol=0, atol=1e-6)
