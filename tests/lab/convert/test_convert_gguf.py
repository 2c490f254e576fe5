"""Files of llama.cpp: tensors, numbers and tokens as it reads them; it writes the same texts."""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import fit_tokenizer
from everyformer.data.tokenizers.package import HubTokenizer
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate
from everyformer.genes.positions.rope_scaling import RopeScaling, rates_reference
from everyformer.lab.convert import export_gguf
from everyformer.lab.convert.gguf import fits
from everyformer.models.base import Model

gguf = pytest.importorskip("gguf")
LLAMA: dict[str, Any] = {
    "norm": "rmsnorm", "feedforward": "swiglu", "feedforward_bias": False, "bias": (),
    "scale_embedding": False,
}  # fmt: skip
QWEN = {**LLAMA, "bias": ("query", "key", "value"), "kv_heads": 2}
ALL = ("query", "key", "value", "output")
TEXT = (
    "  Grüße,  it's 12 345 foxes' dens .\n\n\tfor x in y:\r\n    return x  # żółw № ½ e\u0301 .\n"
)
TEXTS = (
    *(
        TEXT,
        "a",
        " b",
        "c ",
        "   \n  d",
        "\n\n",
        "x .y ,z ? !",
        "don't WE'LL 'S",
        "1234567 3.14 ٣²",
    ),
    *("東京 мир ǅ", "a\u00a0b\u2003c\u3000d\u0085e\u2028f", "Ā Ġ \u2581 [UNK] <0x20> unused 300"),
)


def made(member: str, width: int = 16, heads: int = 4, layers: int = 2, **options: Any) -> Model:
    """A model whose outputs differ by token: louder weights, and norms and biases that tell."""
    torch.manual_seed(0)
    sizes = {"vocabulary": 256, "max_length": 300, **options}
    model = ef.create_model(member, "lm", width=width, heads=heads, layers=layers, **sizes).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
            elif "embedding" not in name:
                weight.mul_(20 if "position" in name else 2.5)
    return model


def written(folder: Path, model: Model, tokenizer: Tokenizer | None = None) -> tuple[Any, Any, Any]:
    """A reader finds tensors, their types, numbers and texts."""
    report = export_gguf(model, folder / "model.gguf", tokenizer)
    assert [path.name for path in folder.iterdir()] == ["model.gguf"]
    reader = gguf.GGUFReader(folder / "model.gguf")
    tensors = {t.name: np.array(t.data) for t in reader.tensors}
    assert sorted(report.taken) == sorted(tensors)
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    return tensors, kinds, {f.name: f.contents() for f in reader.fields.values()}


def test_a_gpt_lies_outputs_by_inputs(tmp_path: Path) -> None:
    """Outputs by inputs, one tensor of queries, keys and values, and none that is not asked for."""
    model = made("gpt", norm_eps=1e-3, expansion=1.5)
    found, kinds, told = written(tmp_path, model)
    # of llama.cpp's table for GPT-2
    block = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down")
    layers = {f"blk.{n}.{part}.{end}" for n in (0, 1) for part in block for end in WB}
    ends = {"output_norm.weight", "output_norm.bias", "token_embd.weight", "position_embd.weight"}
    assert found.keys() == layers | ends
    assert {*kinds.values()} == {"F32"}
    ours = {name: weight.numpy() for name, weight in model.state_dict().items()}
    mixer = "stack.blocks.1.mixer"
    pairs = {
        "token_embd.weight": "embedding.weight",
        "position_embd.weight": "position.table",
        "blk.1.attn_qkv.weight": f"{mixer}.project.weights.0",
        "blk.1.attn_output.weight": f"{mixer}.out.weight",
        "blk.0.ffn_up.weight": "stack.blocks.0.feedforward.up.weight",
        "blk.0.ffn_down.weight": "stack.blocks.0.feedforward.down.weight",
        "blk.0.ffn_norm.bias": "stack.blocks.0.feedforward_norm.bias",
    }
    for name, own in pairs.items():
        assert np.array_equal(found[name], ours[own]), name
    biases = [ours[f"{mixer}.project.biases.{part}"] for part in ALL[:3]]
    assert np.array_equal(found["blk.1.attn_qkv.bias"], np.concatenate(biases))
    assert told["general.architecture"] == "gpt2"
    sizes = {"context_length": 300, "embedding_length": 16, "feed_forward_length": 24}
    sizes |= {"block_count": 2, "attention.head_count": 4, "vocab_size": 256}
    assert {name: told[f"gpt2.{name}"] for name in sizes} == sizes
    assert told["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-3)
    assert told["tokenizer.ggml.model"] == "none"


WB = ("weight", "bias")


def test_rows_of_rotated_heads_change_places(tmp_path: Path) -> None:
    """Of a head of 6 channels, m and m + 3 turn together here, 2m and 2m + 1 there."""
    options = {**LLAMA, "bias": ALL, "feedforward_bias": True, "kv_heads": 2, "base": 500.0}
    model = made("rope", widths={"key_dim": 6}, tie=False, norm_eps=1e-3, **options)
    project = model.stack.blocks[1].mixer.project  # type: ignore[index, union-attr]
    rows = torch.arange(48.0)
    with torch.no_grad():
        project.weights[0].copy_(rows[:, None].expand(48, 16))  # type: ignore[index, union-attr]
        for part, of in zip(ALL, rows.split((24, 12, 12)), strict=False):
            project.biases[part].copy_(of)  # type: ignore[index, union-attr]
    found, _, told = written(tmp_path, model)
    head = [0, 3, 1, 4, 2, 5]
    expected = {
        "q": [start + row for start in (0, 6, 12, 18) for row in head],
        "k": [start + row for start in (24, 30) for row in head],
        "v": [*range(36, 48)],
    }
    for part, order in expected.items():
        assert found[f"blk.1.attn_{part}.weight"][:, 0].tolist() == order
        assert found[f"blk.1.attn_{part}.bias"].tolist() == order
    block = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = {f"blk.{n}.{part}.{end}" for n in (0, 1) for part in block for end in WB}
    names |= {f"blk.{n}.{part}_norm.weight" for n in (0, 1) for part in ("attn", "ffn")}
    assert found.keys() == names | {f"{n}.weight" for n in ("token_embd", "output_norm", "output")}
    assert np.array_equal(found["output.weight"], model.state_dict()["head.weight"].numpy())
    gate = model.state_dict()["stack.blocks.0.feedforward.gate.weight"]
    assert np.array_equal(found["blk.0.ffn_gate.weight"], gate.numpy())
    assert told["general.architecture"] == "llama"
    sizes = {"attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 6}
    sizes |= {"attention.key_length": 6, "attention.value_length": 6, "rope.freq_base": 500.0}
    sizes |= {"feed_forward_length": 64}
    assert {name: told[f"llama.{name}"] for name in sizes} == sizes
    assert told["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-3)
    assert not any("scaling" in name for name in told)


YARN = {"kind": "yarn", "factor": 4.0, "original_length": 64}
SCALINGS: dict[str, tuple[dict[str, Any], float]] = {
    "linear": ({"kind": "linear", "factor": 4.0}, 1.0),
    "ntk": ({"kind": "ntk", "factor": 8.0}, 1.0),
    "yarn": (YARN, 1.1386294),
    "yarn, own ramp": (
        {**YARN, "attention_factor": 1.4, "beta_fast": 3.0, "beta_slow": 1.5, "truncate": False},
        1.4,
    ),
    "llama3": ({"kind": "llama3", "factor": 8.0, "original_length": 64}, 1.0),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings_are_divisors_of_the_rates(name: str, tmp_path: Path) -> None:
    scaling, factor = SCALINGS[name]
    model = made("rope", heads=2, base=100.0, scaling=scaling, **LLAMA)
    found, kinds, told = written(tmp_path, model)
    expected, on_both = rates_reference(4, 100.0, RopeScaling(**scaling), 1)
    unscaled = [100.0 ** (-m / 4) for m in range(4)]
    divisors = [theta / scaled for theta, scaled in zip(unscaled, expected, strict=True)]
    assert found["rope_freqs.weight"] == pytest.approx(divisors, rel=1e-6)
    literal = {"linear": [4, 4, 4, 4], "ntk": [1, 2, 4, 8]}
    if name in literal:
        assert found["rope_freqs.weight"] == pytest.approx(literal[name], rel=1e-6)
    assert kinds["rope_freqs.weight"] == "F32"
    assert told["llama.rope.scaling.attn_factor"] == pytest.approx(factor)
    assert factor == pytest.approx(on_both)


@pytest.mark.parametrize("member", ["gpt", "rope"])
@pytest.mark.parametrize("tie", [True, False])
def test_scaled_embeddings_are_there_twice(member: str, tie: bool, tmp_path: Path) -> None:
    options = {} if member == "gpt" else LLAMA
    model = made(member, **{**options, "scale_embedding": True, "tie": tie})
    found, *_ = written(tmp_path, model)
    ours = model.state_dict()
    assert np.array_equal(found["token_embd.weight"], 4 * ours["embedding.weight"].numpy())
    assert np.array_equal(found["output.weight"], ours["head.weight"].numpy())


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float16", "F16"), ("bfloat16", "BF16"), ("float32", "F32"), ("float64", "F32")],
)
@pytest.mark.parametrize("member", ["gpt", "rope"])
def test_matrices_keep_their_numbers(member: str, dtype: str, kind: str, tmp_path: Path) -> None:
    model = made(member, **({} if member == "gpt" else QWEN)).to(getattr(torch, dtype))
    found, kinds, _ = written(tmp_path, model)
    for name, tensor in found.items():
        assert kinds[name] == (kind if tensor.ndim == 2 else "F32")
    up, down = (f"feedforward.{part}.weight" for part in ("up", "down"))
    for name, own in {"blk.0.ffn_up.weight": up, "blk.1.ffn_down.weight": down}.items():
        weight = model.state_dict()[f"stack.blocks.{name[4]}.{own}"].float().numpy()
        held = gguf.quants.dequantize(found[name], gguf.GGMLQuantizationType[kind])
        assert np.array_equal(held, weight)
    report = export_gguf(model, tmp_path / "again.gguf")
    assert any("from float64" in note for note in report.notes) == (dtype == "float64")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a member": ("aft-conv", {}, "cannot be written as .* `mixer='aft-conv'`"),
    "another stack": ("rope", {}, r"`block.norm='layernorm'` \(only 'rmsnorm'\)"),
    "an activation": ("gpt", {"feedforward": "relu"}, r"`feedforward='relu'` \(only 'gelu-tanh'\)"),
    "the other gelu": ("gpt", {"feedforward": "gelu"}, r"`feedforward='gelu'` \(only 'gelu-tanh'"),
    "a window": ("rope", {**LLAMA, "window": 4}, r"`mixer.window=4` \(only None\)"),
    "a window of qwen2": ("rope", {**QWEN, "window": 4}, r"`mixer.window=4` \(only None\)"),
    "partly rotated": ("rope", {**LLAMA, "fraction": 0.5}, "`position.fraction=0.5`"),
    "normed queries": ("rope", {**LLAMA, "qk_norm": True}, "`mixer.qk_norm=True`"),
    "dynamic": (
        "rope",
        {**LLAMA, "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}},
        "`position.scaling.kind=dynamic`.*: train by linear, ntk, yarn or llama3",
    ),
    "longrope": (
        "rope",
        {
            **LLAMA,
            "scaling": {"kind": "longrope", "factor": 2.0, "original_length": 8}
            | {"short": (1.0, 1.0), "long": (1.0, 2.0)},
        },
        "`position.scaling.kind=longrope`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_does_not_know_is_refused_by_its_option(case: str, tmp_path: Path) -> None:
    member, options, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message) as told:
        export_gguf(made(member, **options), tmp_path / "model.gguf")
    assert "\n" not in str(told.value)
    assert not [*tmp_path.iterdir()]


def test_what_is_no_language_model_or_no_such_file_is_refused(tmp_path: Path) -> None:
    bert = ef.create_model("bert", "mlm", width=8, heads=2, layers=1, max_length=8)
    with pytest.raises(UnsupportedError, match="no class for the task 'mlm', only for lm"):
        export_gguf(bert, tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=r"model.bin must end in '.gguf'"):
        export_gguf(made("gpt"), tmp_path / "model.bin")
    small = made("gpt", vocabulary=200)
    with pytest.raises(ConfigError, match=r"bytes \(256 tokens\) has more tokens than the model"):
        export_gguf(small, tmp_path / "model.gguf", fit_tokenizer("bytes", []))
    assert not [*tmp_path.iterdir()]


def test_a_file_that_cannot_be_finished_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(self: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    with pytest.raises(ef.EveryformerError, match="the disk is full"):
        export_gguf(made("gpt"), tmp_path / "model.gguf")
    assert not [*tmp_path.iterdir()]


MARKS = ["<|end|>", "<|start|>"]


def hub(end: int | None = 0, beyond: int = 0, **changes: Any) -> HubTokenizer:
    """A byte-level BPE as GPT-2's, with parts of its file changed."""
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, show_progress=False, special_tokens=MARKS
    )
    inner.train_from_iterator([TEXT * 9], trainer)
    inner.add_tokens(["two words"])
    file = json.loads(inner.to_str())
    for part, values in changes.items():
        whole = not isinstance(values, dict) or "type" in values
        file[part] = values if whole else {**file[part], **values}
    return HubTokenizer(json.dumps(file), inner.get_vocab_size() + beyond, end, None)


OPENING = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|start|>": {"id": "<|start|>", "ids": [1], "tokens": ["<|start|>"]}},
}
TWICE = {**OPENING, "single": [OPENING["single"][0], *OPENING["single"]]}  # type: ignore[index, misc]


def test_bytes_are_spelled_as_gpt2_spells_them(tmp_path: Path) -> None:
    *_, told = written(tmp_path, made("gpt", vocabulary=258), fit_tokenizer("bytes", []))
    texts = told["tokenizer.ggml.tokens"]
    assert len({*texts}) == 258
    known = {0: "Ā", 10: "Ċ", 32: "Ġ", 65: "A", 126: "~", 127: "ġ", 160: "ł", 173: "Ń", 255: "ÿ"}
    assert {byte: texts[byte] for byte in known} == known
    normal, unused = gguf.TokenType.NORMAL, gguf.TokenType.UNUSED
    assert told["tokenizer.ggml.token_type"] == [normal] * 256 + [unused] * 2
    assert (told["tokenizer.ggml.eos_token_id"], told["tokenizer.ggml.bos_token_id"]) == (0, 0)
    assert told["tokenizer.ggml.add_bos_token"] is False
    assert (told["tokenizer.ggml.model"], told["tokenizer.ggml.pre"]) == ("gpt2", "trillion")
    # none that spells bytes, but not an empty list
    [merge] = told["tokenizer.ggml.merges"]
    assert not {*merge.split(" ")} & {*texts}


@pytest.mark.parametrize("opening", [None, OPENING])
def test_tokens_keep_their_numbers(opening: Any, tmp_path: Path) -> None:
    tokenizer = hub(beyond=2, post_processor=opening)
    model = made("gpt", vocabulary=tokenizer.vocabulary)
    *_, told = written(tmp_path, model, tokenizer)
    texts, kinds = told["tokenizer.ggml.tokens"], told["tokenizer.ggml.token_type"]
    file = json.loads(tokenizer.model)
    assert {text: n for n, text in enumerate(texts[: len(file["model"]["vocab"])])} == (
        file["model"]["vocab"]
    )
    assert texts[-3] == "two words"
    types = gguf.TokenType
    assert [kinds[n] for n in (0, 1, 2, -3, -2, -1)] == [
        types.CONTROL, types.CONTROL, types.NORMAL, types.USER_DEFINED, types.UNUSED, types.UNUSED,
    ]  # fmt: skip
    merges = [" ".join(pair) for pair in file["model"]["merges"]]
    assert told["tokenizer.ggml.merges"] == merges
    assert told["tokenizer.ggml.eos_token_id"] == 0
    assert told["tokenizer.ggml.bos_token_id"] == (0 if opening is None else 1)
    assert told["tokenizer.ggml.add_bos_token"] is (opening is not None)


UNFIT: dict[str, dict[str, Any]] = {
    "no end": {"end": None},
    "a normalizer": {"normalizer": {"type": "NFC"}},
    "a space in front": {"pre_tokenizer": {"add_prefix_space": True}},
    "no words": {"pre_tokenizer": {"use_regex": False}},
    "other words": {"pre_tokenizer": {"type": "Whitespace"}},
    "whole words": {"model": {"ignore_merges": True}},
    "chance": {"model": {"dropout": 0.5}},
    "marked ends": {"model": {"end_of_word_suffix": "</w>"}},
    "no decoder": {"decoder": None},
    "two in front": {"post_processor": TWICE},
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_tokenizer_that_llama_would_read_otherwise_is_left_out(case: str, tmp_path: Path) -> None:
    assert fits(hub())
    other = hub(**UNFIT[case])
    assert not fits(other)
    *_, told = written(tmp_path, made("gpt", vocabulary=other.vocabulary), other)
    assert told["tokenizer.ggml.model"] == "none"
    assert not fits(fit_tokenizer("chars", ["abc"]))
    kept = json.loads(hub().model)
    kept["added_tokens"][0]["lstrip"] = True
    assert not fits(hub(added_tokens=kept["added_tokens"]))
    vocabulary = {text: n for text, n in kept["model"]["vocab"].items() if text != "Ā"}
    assert not fits(hub(model={"vocab": vocabulary | {"Āxx": kept["model"]["vocab"]["Ā"]}}))


def loaded(path: Path, tokens: int, **options: Any) -> Any:
    llama = pytest.importorskip("llama_cpp")
    exact = llama.GGML_TYPE_F32
    return llama.Llama(
        str(path), n_ctx=tokens, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True,
        type_k=exact, type_v=exact, **options,
    )  # fmt: skip


WIDE = {"width": 64, "max_length": 300}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", WIDE),
    "gpt, 128 wide, untied": ("gpt", {**WIDE, "width": 128, "tie": False}),
    "gpt, 256 wide, scaled": ("gpt", {**WIDE, "width": 256, "scale_embedding": True}),
    "llama": ("rope", {**WIDE, **LLAMA}),
    "llama, shared heads, wider ones": (
        "rope", {**WIDE, **LLAMA, "kv_heads": 2, "widths": {"key_dim": 24}, "tie": False}
    ),
    "llama, all biases": (
        "rope", {**WIDE, **LLAMA, "bias": ALL, "feedforward_bias": True, "norm_eps": 1e-3}
    ),
    "llama, scaled": ("rope", {**WIDE, **LLAMA, "scale_embedding": True}),
    "qwen2": ("rope", {**WIDE, **QWEN, "base": 1e6}),
    **{name: ("rope", {**WIDE, **LLAMA, "scaling": one}) for name, (one, _) in SCALINGS.items()},
    "yarn with biases": ("rope", {**WIDE, **QWEN, "scaling": YARN}),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_llama_writes_the_same_256_tokens(case: str, tmp_path: Path) -> None:
    """By the same logits, but for what is rounded: its gpt2 has a table of GELU in half."""
    pytest.importorskip("llama_cpp")
    member, options = MODELS[case]
    model, first = made(member, **options), torch.tensor([[3, 200, 77, 5, 41, 190, 8, 120]])
    export_gguf(model, tmp_path / "model.gguf")
    theirs = loaded(tmp_path / "model.gguf", 266)
    text = generate(model, first, tokens=256, sampling=Sampling(temperature=0.0))[0, -256:].tolist()
    # a text that repeats one token would be written by many a wrong model
    assert len({*text}) > 10 or "scaled" in case
    found = theirs.generate(first[0].tolist(), temp=0.0, repeat_penalty=1.0)
    assert [next(found) for _ in range(256)] == text
    theirs.reset()
    theirs.eval([*first[0].tolist(), *text])
    with torch.no_grad():
        ours = model(torch.tensor([[*first[0].tolist(), *text]])).logits[0]
    near = 2e-3 if member == "gpt" else 1e-4
    scores = torch.from_numpy(theirs.scores[: len(ours)].copy())
    torch.testing.assert_close(scores, ours, rtol=0, atol=near * ours.abs().max().item())
    theirs.close()


TOKENIZERS = {
    "bytes": lambda: fit_tokenizer("bytes", []),
    "bpe": lambda: fit_tokenizer("bpe:400", [TEXT * 9]),
    "hub": lambda: hub(beyond=2),
    "hub with an opening": lambda: hub(beyond=2, post_processor=OPENING),
}


@pytest.mark.parametrize("case", TOKENIZERS)
def test_llama_reads_and_writes_the_same_texts(case: str, tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp")
    tokenizer = TOKENIZERS[case]()
    model = made("gpt", vocabulary=tokenizer.vocabulary, layers=1)
    export_gguf(model, tmp_path / "model.gguf", tokenizer)
    theirs = loaded(tmp_path / "model.gguf", 8)
    vocabulary = theirs._model.vocab
    for text in (*TEXTS, "a two words<|end|>b"):
        ids = tokenizer.encode(text)
        assert theirs.tokenize(text.encode(), special=True) == [*tokenizer.opening, *ids], text
        assert theirs.detokenize(ids, special=True).decode() == text
        # the whole text by one call, where some splits have spaces taken out
        room = ctypes.create_string_buffer(1000)
        given = (llama.llama_token * len(ids))(*ids)
        count = llama.llama_detokenize(vocabulary, given, len(ids), room, 1000, False, True)
        assert room.raw[:count].decode() == text
    assert theirs.token_eos() == tokenizer.separator
    theirs.close()
