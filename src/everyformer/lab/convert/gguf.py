"""Files of llama.cpp (GGUF): a model as its gpt2 or its llama reads it, with its tokenizer.

The tables of `export_checkpoint` serve here too; the package `gguf` has the names. It differs in

    rotations   of neighbouring channels, not of a head's halves: other rows of queries and keys
    scalings    a divisor of each pair's rate, and a factor of queries and keys: all of a fixed rate
    embeddings  scaled ones are there twice: scaled, and as the output reads them
"""

import dataclasses
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.package import BPETokenizer, HubTokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions.rope_scaling import BY_LENGTH, RopeScaling, rates
from everyformer.lab.convert.checkpoint import ARCHITECTURES, counterpart, given
from everyformer.lab.convert.rules import Report
from everyformer.lab.convert.tokenizer import STRIPS
from everyformer.models.base import Model
from everyformer.system.files import expanded, file_written_whole
from everyformer.system.plain import from_json
from sequence_laws.extras import extra_module

_GPT2, _QWEN2 = ARCHITECTURES["gpt2"], ARCHITECTURES["qwen2"]
SYSTEMS = (
    dataclasses.replace(_GPT2, names={k: v for k, v in _GPT2.names.items() if k != "feedforward"}),
    ARCHITECTURES["llama"],
    dataclasses.replace(_QWEN2, describe=lambda c: _QWEN2.describe(c) | {"sliding_window": None}),
)
"""those of transformers as far as llama.cpp runs them: GPT-2 with the activation of `gpt` alone,
Llama, and Qwen2 without windows, which is its llama with biases"""
SPLIT = "trillion"
"""its name for GPT-2's split of a text; with its 'gpt-2' decoding drops spaces before . , ? !"""
NEVER = "€ €"
"""a merge of what spells no byte: an empty list of merges is none to llama.cpp"""


def export_gguf(model: Model, path: str | Path, tokenizer: Tokenizer | None = None) -> Report:
    """Write ``model`` as a file that llama.cpp runs, matrices in float32, float16 or bfloat16.

    Args:
        path: ends in .gguf; a file there is replaced.
        tokenizer: written too, where it `fits` llama.cpp.

    Raises:
        UnsupportedError: llama.cpp has no such model; says by which options.
        ConfigError: ``path`` ends otherwise, or the tokenizer has more tokens than the model.
        MissingExtraError: the package gguf is not installed.
    """
    gguf = extra_module("gguf", "llama", "a file for llama.cpp")
    path = expanded(path).absolute()
    if path.suffix != ".gguf":
        raise ConfigError(f"{path} must end in '.gguf'")
    if tokenizer is not None and tokenizer.vocabulary > model.config.vocabulary:
        raise ConfigError(f"{tokenizer} has more tokens than the model: give the model's own one")
    config, scaling = _said_apart(model.config)
    known = counterpart(config, SYSTEMS)
    theirs = known.write(config)
    size, eps = theirs.get("head_dim"), config.block.norm_eps
    kind = "gpt2" if size is None else "llama"
    tensors, report = given(model, known, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config.layers)
    tensors = {names.get_name(n, (".weight", ".bias")): t for n, t in tensors.items()}
    tensors["token_embd.weight"] *= model.config.embedding_scale
    with file_written_whole(path) as temporary, closing(gguf.GGUFWriter(temporary, kind)) as writer:
        writer.add_vocab_size(config.vocabulary)
        writer.add_context_length(config.tokens)
        writer.add_embedding_length(config.width)
        writer.add_feed_forward_length(theirs.get("n_inner") or theirs["intermediate_size"])
        writer.add_block_count(config.layers)
        writer.add_head_count(config.heads)
        (writer.add_layer_norm_rms_eps if size else writer.add_layer_norm_eps)(eps)
        if size is not None:
            writer.add_head_count_kv(theirs["num_key_value_heads"])
            writer.add_key_length(size)
            writer.add_value_length(size)
            writer.add_rope_dimension_count(size)
            writer.add_rope_freq_base(theirs["rope_theta"])
            if scaling.kind != "none":
                angles = partial(rates, torch.zeros(1, 1), size // 2, theirs["rope_theta"])
                scaled, factor = angles(scaling)
                tensors["rope_freqs.weight"] = angles(RopeScaling())[0] / scaled
                writer.add_rope_scaling_attn_factors(factor)
        for name, tensor in tensors.items():
            array = _laid_out(name, tensor, size).contiguous().cpu()
            # numpy has no bfloat16
            raw = gguf.GGMLQuantizationType.BF16 if array.dtype == torch.bfloat16 else None
            writer.add_tensor(name, (array.view(torch.uint8) if raw else array).numpy(), None, raw)
        if tokenizer is not None and fits(tokenizer):
            _add_tokens(gguf.TokenType, writer, tokenizer, config.vocabulary)
        else:
            writer.add_tokenizer_model("none")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    report.taken = list(tensors)
    if next(model.parameters()).dtype == torch.float64:
        report.notes.append("float32, from float64, which llama.cpp does not read")
    return report


def _said_apart(config: ModelConfig) -> tuple[ModelConfig, RopeScaling]:
    """The config without what a file says in other ways: scaled rotations and embeddings."""
    position = config.genes["position"]
    scaling = from_dict(RopeScaling, position.get("scaling") or {})
    if scaling.kind in BY_LENGTH:
        raise UnsupportedError(
            f"llama.cpp has no rotations that go by a text's length (`position.scaling.kind="
            f"{scaling.kind}`): train by linear, ntk, yarn or llama3, or write another form (`to`)"
        )
    options = {name: value for name, value in position.plain().items() if name != "scaling"}
    config = config.with_genes(position=dataclasses.replace(position, options=options))
    if config.embedding_scale != 1.0:
        config = dataclasses.replace(config, scale_embedding=False, tie=False)
    return config, scaling


def _laid_out(name: str, tensor: Tensor, size: int | None) -> Tensor:
    """A tensor of transformers as it lies in the file; ``size`` are channels of a rotated head."""
    if size and (".attn_q." in name or ".attn_k." in name):
        tensor = tensor.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).reshape(tensor.shape)
    if not size and tensor.dim() == 2 and name.startswith("blk."):
        # GPT-2 has inputs by outputs
        tensor = tensor.t()
    # vectors are read as float32 alone
    return tensor.float() if tensor.dim() == 1 or tensor.dtype == torch.float64 else tensor


def _add_tokens(kinds: Any, writer: Any, tokenizer: Tokenizer, size: int) -> None:
    """Add a tokenizer to the file of a model of ``size`` tokens."""
    known, added, pairs = {text: byte for byte, text in enumerate(_bytes())}, [], [NEVER]
    if isinstance(tokenizer, BPETokenizer | HubTokenizer):
        file = from_json(tokenizer.model)
        known, added = file["model"]["vocab"], file.get("added_tokens", ())
        pairs = file["model"]["merges"] or pairs
    # no piece has a space in it
    tokens = [(f"unused {number}", kinds.UNUSED) for number in range(size)]
    for text, number in known.items():
        # our separator too: as a mark its spelling would be read as one where a text has it
        tokens[number] = text, kinds.NORMAL
    for token in added:
        kind = kinds.CONTROL if token["special"] else kinds.USER_DEFINED
        tokens[token["id"]] = token["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLIT)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in pairs])
    writer.add_eos_token_id(tokenizer.separator)
    writer.add_bos_token_id((*tokenizer.opening, tokenizer.separator)[0])
    writer.add_add_bos_token(bool(tokenizer.opening))


def fits(tokenizer: Tokenizer) -> bool:
    """True if llama.cpp has a tokenizer that gives every text the same tokens and the same end."""
    if not isinstance(tokenizer, BPETokenizer | HubTokenizer):
        return isinstance(tokenizer, ByteTokenizer)
    file = from_json(tokenizer.model)
    split, bpe, decoder = (file.get(k) or {} for k in ("pre_tokenizer", "model", "decoder"))
    kinds = [part.get("type") for part in (bpe, split, decoder)]
    return (
        (kinds, file.get("normalizer")) == (["BPE", "ByteLevel", "ByteLevel"], None)
        and split.get("use_regex", True)
        and not split.get("add_prefix_space", True)
        and not any(bpe.get(affix) for affix in ("continuing_subword_prefix", "end_of_word_suffix"))
        and not any(bpe.get(option) for option in ("dropout", "ignore_merges"))
        and not any(token[taken] for token in file.get("added_tokens", ()) for taken in STRIPS)
        and {*_bytes()} <= bpe["vocab"].keys()
        and len(tokenizer.opening) < 2
        # token 11 would end a text there
        and tokenizer.separator is not None
    )


def _bytes() -> list[str]:
    """GPT-2's character for each byte: the byte's own where it shows, else the next from 256 on."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]
