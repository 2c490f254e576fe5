"""Marian of `transformers`: the Transformer as published, with a bias in the output layer."""

from __future__ import annotations

from typing import Any

from everyformer.core.bounds import Count, Layers, Rate, Whole
from everyformer.interop.convert.architecture import (
    ALL_BIASES,
    HubArchitecture,
    activation,
    refuse,
    their_activation,
)
from everyformer.interop.convert.rules import Rule, heads, same
from everyformer.models.config import ModelConfig

PARTS = ("q_proj", "k_proj", "v_proj")


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    width, count = config["d_model"], config["encoder_attention_heads"]
    refuse(config, decoder_attention_heads=count, decoder_ffn_dim=config["encoder_ffn_dim"])
    refuse(config, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    return {
        "member": "transformer",
        "width": width,
        "layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "heads": count,
        "max_length": config["max_position_embeddings"],
        "vocabulary": config["vocab_size"],
        "start_token": config["decoder_start_token_id"],
        "end_token": config["eos_token_id"],
        "expansion": config["encoder_ffn_dim"] / width,
        "feedforward": activation(config["activation_function"]),
        "norm_eps": 1e-5,
        "dropout": config["dropout"],
        "embedding_dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "scale_embedding": bool(config["scale_embedding"]),
        "layout": "halves",
        "head_bias": True,
        "bias": ALL_BIASES,
        "cross_options": {
            "bias": list(ALL_BIASES),
            "attention_dropout": config["attention_dropout"],
        },
    }


def _describe(config: ModelConfig) -> dict[str, Any]:
    hidden = round(config.width * config.block.expansion)
    return {
        "is_encoder_decoder": True,
        "d_model": config.width,
        "encoder_layers": config.layers,
        "decoder_layers": config.decoder_layers or config.layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": hidden,
        "decoder_ffn_dim": hidden,
        "max_position_embeddings": config.tokens,
        "vocab_size": config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "decoder_start_token_id": config.start_token,
        "pad_token_id": config.start_token,
        "eos_token_id": config.end_token,
        "forced_eos_token_id": config.end_token,
        "activation_function": their_activation(config.block.feedforward),
        "dropout": config.block.dropout,
        "attention_dropout": config.genes["mixer"].get("attention_dropout", 0.0),
        "activation_dropout": 0.0,
        "scale_embedding": config.scale_embedding is not False,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }


def _rules(config: ModelConfig) -> list[Rule]:
    rules = [
        Rule(("embedding.weight",), ("model.shared.weight",)),
        Rule(("head.bias",), ("final_logits_bias",), lead=True),
    ]
    sizes = (config.width,) * 3
    decoders = config.decoder_layers or config.layers
    for side, stack, count in (
        ("encoder", "encoder", config.layers),
        ("decoder", "stack", decoders),
    ):
        for n in range(count):
            ours, theirs = f"{stack}.blocks.{n}", f"model.{side}.layers.{n}"
            pairs = {"mixer": "self_attn"} | (
                {"cross": "encoder_attn"} if side == "decoder" else {}
            )
            for own, other in pairs.items():
                three = tuple(f"{theirs}.{other}.{part}" for part in PARTS)
                rules += heads(f"{ours}.{own}.project", three, sizes, bias=True)  # type: ignore[arg-type]
                rules += same(f"{ours}.{own}.out", f"{theirs}.{other}.out_proj")
                rules += same(f"{ours}.{own}_norm", f"{theirs}.{other}_layer_norm")
            rules += same(f"{ours}.feedforward.up", f"{theirs}.fc1")
            rules += same(f"{ours}.feedforward.down", f"{theirs}.fc2")
            rules += same(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm")
    return rules


MARIAN = HubArchitecture(
    model_type="marian",
    prefix="model.",
    classes={"seq2seq": "MarianMTModel"},
    options=_options,
    describe=_describe,
    rules=_rules,
    fields={
        **dict.fromkeys(("d_model", "encoder_attention_heads", "encoder_ffn_dim"), Count),
        **dict.fromkeys(("max_position_embeddings", "vocab_size"), Count),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), Layers),
        **dict.fromkeys(("decoder_start_token_id", "eos_token_id"), Whole),
        **dict.fromkeys(("dropout", "attention_dropout"), Rate),
        "activation_function": str,
        "scale_embedding": bool,
    },
    ignored=r"embed_positions\.weight$|embed_tokens\.weight$|^lm_head\.weight$",
)
