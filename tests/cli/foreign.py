"""Random tiny checkpoints of transformers, each with a tokenizer of the kind that its like has."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quiet import transformers

tokenizers = pytest.importorskip("tokenizers")

TEXT = "the quick brown fox, and a warm tree sleep. Gamlet, ça va? 東京\n" * 30
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40}
CLASSES = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 2}),
    "bert": ("BertForMaskedLM", SIZES),
}


def bytes_tokenizer() -> Any:
    """As GPT-2's: byte-level BPE, nothing around a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=alphabet,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def words_tokenizer() -> Any:
    """As Llama's: words that begin with a mark, <s> in front of a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return made


def pieces_tokenizer() -> Any:
    """As BERT's: pieces of words between [CLS] and [SEP]; texts are cut and filled to length 6."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=marks, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_truncation(6)
    made.enable_padding(length=6)
    return made


BERT_MARKS = ("pad", "unk", "cls", "sep", "mask")
TOKENIZERS = {
    "gpt2": (bytes_tokenizer, {"eos_token": "<|endoftext|>"}),
    "llama": (words_tokenizer, {"eos_token": {"content": "</s>"}, "bos_token": "<s>"}),
    "bert": (pieces_tokenizer, {f"{use}_token": f"[{use.upper()}]" for use in BERT_MARKS}),
}


def checkpoint(
    kind: str, folder: Path, *, beyond: int = 0, tokens: bool = True, **more: Any
) -> Any:
    """A random model of transformers, saved, with ``beyond`` more tokens than its tokenizer."""
    make, marks = TOKENIZERS[kind]
    made = make()
    name, options = CLASSES[kind]
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    vocabulary = made.get_vocab_size() + beyond
    special = {"bos_token_id": 0, "eos_token_id": 0} if kind == "gpt2" else {}
    config = {"vocab_size": vocabulary, **options, **special, **more}
    model = cls(cls.config_class(**config)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    if tokens:
        made.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(marks), encoding="utf-8")
    return model


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found
