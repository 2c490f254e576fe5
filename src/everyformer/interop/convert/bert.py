"""BERT and RoBERTa of `transformers`, which differ in the head's names and the first position."""

from __future__ import annotations

from typing import Any

from everyformer.interop.convert.architecture import (
    ALL_BIASES,
    Architecture,
    activation,
    refuse,
    their_activation,
)
from everyformer.interop.convert.rules import Rule, heads, same
from everyformer.models.config import ModelConfig

PARTS = ("query", "key", "value")
# RoBERTa keeps row 1 for padding and counts positions from 2
FIRST = {"bert": 0, "roberta": 2}
HEADS = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions",
    ),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
}
"""transform, its norm, and where the bias of the output layer lies"""


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    refuse(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    width = config["hidden_size"]
    return {
        "member": "bert",
        "width": width,
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "max_length": config["max_position_embeddings"] - FIRST[config["model_type"]],
        "vocabulary": config["vocab_size"],
        "token_types": config["type_vocab_size"],
        "expansion": config["intermediate_size"] / width,
        "feedforward": activation(config["hidden_act"]),
        "norm_eps": config["layer_norm_eps"],
        "dropout": config["hidden_dropout_prob"],
        "embedding_dropout": config["hidden_dropout_prob"],
        "attention_dropout": config["attention_probs_dropout_prob"],
        "tie": config.get("tie_word_embeddings", True),
        "bias": ALL_BIASES,
    }


def _describe(model_type: str, config: ModelConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.tokens + FIRST[model_type],
        "vocab_size": config.vocabulary,
        "type_vocab_size": config.token_types,
        "intermediate_size": round(config.width * config.block.expansion),
        "hidden_act": their_activation(config.block.feedforward),
        "layer_norm_eps": config.block.norm_eps,
        "hidden_dropout_prob": config.block.dropout,
        "attention_probs_dropout_prob": config.mixer_options.get("attention_dropout", 0.0),
        "tie_word_embeddings": config.tie,
    }


def _rules(model_type: str, config: ModelConfig) -> list[Rule]:
    body, table = f"{model_type}.embeddings", "position_embeddings.weight"
    dense, norm, bias = HEADS[model_type]
    rules = [
        Rule(("embedding.weight",), (f"{body}.word_embeddings.weight",)),
        Rule(("position.table",), (f"{body}.{table}",), skip=FIRST[model_type]),
        Rule(("types.weight",), (f"{body}.token_type_embeddings.weight",)),
        *same("embedding_norm", f"{body}.LayerNorm"),
        *same("transform", dense),
        *same("transform_norm", norm),
        Rule(("head.bias",), (f"{bias}.bias",)),
    ]
    if not config.tie:
        rules.append(Rule(("head.weight",), (f"{bias}.decoder.weight",)))
    for n in range(config.layers):
        ours, theirs = f"stack.blocks.{n}", f"{model_type}.encoder.layer.{n}"
        three = tuple(f"{theirs}.attention.self.{part}" for part in PARTS)
        rules += [
            *heads(f"{ours}.mixer.project", three, (config.width,) * 3, bias=True),  # type: ignore[arg-type]
            *same(f"{ours}.mixer.out", f"{theirs}.attention.output.dense"),
            *same(f"{ours}.mixer_norm", f"{theirs}.attention.output.LayerNorm"),
            *same(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense"),
            *same(f"{ours}.feedforward.down", f"{theirs}.output.dense"),
            *same(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm"),
        ]
    return rules


def _like(model_type: str, name: str) -> Architecture:
    return Architecture(
        model_type=model_type,
        prefix=f"{model_type}.",
        classes={"mlm": f"{name}ForMaskedLM"},
        options=_options,
        describe=lambda config: _describe(model_type, config),
        rules=lambda config: _rules(model_type, config),
        ignored=r"position_ids$|token_type_ids$|\.decoder\.(weight|bias)$",
    )


BERT, ROBERTA = _like("bert", "Bert"), _like("roberta", "Roberta")
