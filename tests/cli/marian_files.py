"""A tiny random Marian of transformers, with two models of sentencepiece learned here."""

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from quiet import transformers

sentencepiece = pytest.importorskip("sentencepiece")

ENGLISH = (
    "the quick brown fox and a warm tree sleep",
    "we see the boy, who runs home.",
    "the tree and the fox see a boy",
    "who runs and who can sleep?",
)
GERMAN = (
    "der schnelle Fuchs und ein warmer Baum schläft",
    "wir sehen den Jungen, der nun läuft.",
    "der Baum und der Fuchs sehen ein Kind",
    "wer läuft und wer schläft nun?",
)
LANGUAGES = ">>deu<<", ">>nds<<"
FILES = "source.spm", "target.spm", "vocab.json"


@functools.cache
def learned(lines: tuple[str, ...], kind: str = "unigram") -> bytes:
    """A model of sentencepiece with up to 120 pieces."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20),
        model_writer=made,
        vocab_size=120,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return made.getvalue()


def pieces(model: bytes) -> list[str]:
    """All pieces of a model, its own marks left out."""
    read = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = [read.id_to_piece(number) for number in range(read.get_piece_size())]
    return [piece for piece in found if piece not in ("<unk>", "<s>", "</s>")]


def table(left_out: tuple[str, ...] = ()) -> dict[str, int]:
    """A vocab.json of both models, in an order that is that of neither."""
    both = sorted({*pieces(learned(ENGLISH)), *pieces(learned(GERMAN))} - {*left_out})
    random.Random(0).shuffle(both)
    marks = ["</s>", "<unk>", *LANGUAGES]
    return {piece: number for number, piece in enumerate([*marks, *both, "<pad>"])}


def tokens_of(folder: Path, held: dict[str, int] | None = None, **options: Any) -> Any:
    """The tokenizer's files, as transformers keeps them; what transformers makes of them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.spm").write_bytes(learned(ENGLISH))
    (folder / "target.spm").write_bytes(learned(GERMAN))
    (folder / "vocab.json").write_text(json.dumps(held or table()), encoding="utf-8")
    if options:
        (folder / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")
    return transformers.MarianTokenizer.from_pretrained(folder)


def checkpoint(folder: Path, **options: Any) -> tuple[Any, Any]:
    """Model and tokenizer of transformers, saved, the padding banned as in released ones."""
    read = tokens_of(folder, **options)
    held = read.get_vocab()
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=len(held), decoder_vocab_size=len(held), d_model=16, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=60, pad_token_id=held["<pad>"],
        decoder_start_token_id=held["<pad>"], eos_token_id=held["</s>"], forced_eos_token_id=None,
        activation_function="swish", scale_embedding=True,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.8 * torch.randn_like(weight))
        model.final_logits_bias.normal_(-9)
        # released ones have no score for the padding, which others may stay below
        model.model.shared.weight[held["<pad>"]] = 0
        model.final_logits_bias[0, held["<pad>"]] = 0
    model.generation_config.bad_words_ids = [[held["<pad>"]]]
    model.save_pretrained(folder)
    return model, read
