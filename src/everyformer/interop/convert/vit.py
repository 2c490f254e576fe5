"""ViT of `transformers`, with a class token and a linear head."""

from __future__ import annotations

from typing import Any

from everyformer.core.bounds import Amount, Count, Layers, Rate
from everyformer.interop.convert.architecture import (
    ALL_BIASES,
    HubArchitecture,
    activation,
    refuse,
    their_activation,
)
from everyformer.interop.convert.labels import described_labels, label_count
from everyformer.interop.convert.rules import Rule, heads, same
from everyformer.models.config import ModelConfig

PARTS = ("query", "key", "value")


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    refuse(config, qkv_bias=True)
    width, side = config["hidden_size"], config["image_size"]
    height, breadth = side if isinstance(side, list) else (side, side)
    return {
        "member": "vit",
        "width": width,
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "image": (config["num_channels"], height, breadth),
        "patch": config["patch_size"],
        "classes": label_count(config),
        "expansion": config["intermediate_size"] / width,
        "feedforward": activation(config["hidden_act"]),
        "norm_eps": config["layer_norm_eps"],
        "dropout": config["hidden_dropout_prob"],
        "embedding_dropout": config["hidden_dropout_prob"],
        "attention_dropout": config["attention_probs_dropout_prob"],
        "bias": ALL_BIASES,
        "pooling": "class",
    }


def _describe(config: ModelConfig) -> dict[str, Any]:
    assert config.image is not None
    channels, height, width = config.image
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "image_size": height if height == width else [height, width],
        "num_channels": channels,
        "patch_size": config.patch,
        **described_labels(config),
        "intermediate_size": round(config.width * config.block.expansion),
        "hidden_act": their_activation(config.block.feedforward),
        "layer_norm_eps": config.block.norm_eps,
        "hidden_dropout_prob": config.block.dropout,
        "attention_probs_dropout_prob": config.genes["mixer"].get("attention_dropout", 0.0),
        "qkv_bias": True,
    }


def _rules(config: ModelConfig) -> list[Rule]:
    rules = [
        *same("patches", "vit.embeddings.patch_embeddings.projection"),
        Rule(("position.table",), ("vit.embeddings.position_embeddings",), lead=True),
        Rule(("pool.token",), ("vit.embeddings.cls_token",)),
        *same("stack.norm", "vit.layernorm"),
        *same("pool.head", "classifier"),
    ]
    for n in range(config.layers):
        ours, theirs = f"stack.blocks.{n}", f"vit.encoder.layer.{n}"
        three = tuple(f"{theirs}.attention.attention.{part}" for part in PARTS)
        rules += [
            *heads(f"{ours}.mixer.project", three, (config.width,) * 3, bias=True),  # type: ignore[arg-type]
            *same(f"{ours}.mixer.out", f"{theirs}.attention.output.dense"),
            *same(f"{ours}.mixer_norm", f"{theirs}.layernorm_before"),
            *same(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense"),
            *same(f"{ours}.feedforward.down", f"{theirs}.output.dense"),
            *same(f"{ours}.feedforward_norm", f"{theirs}.layernorm_after"),
        ]
    return rules


VIT = HubArchitecture(
    model_type="vit",
    prefix="vit.",
    classes={"classify-image": "ViTForImageClassification"},
    options=_options,
    describe=_describe,
    rules=_rules,
    fields={
        **dict.fromkeys(("hidden_size", "num_attention_heads", "intermediate_size"), Count),
        **dict.fromkeys(("num_channels", "patch_size"), Count),
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), Rate),
        "image_size": Count | tuple[Count, Count],
        "num_hidden_layers": Layers,
        "hidden_act": str,
        "layer_norm_eps": Amount,
    },
    ignored=r"^vit\.pooler\.",
)
