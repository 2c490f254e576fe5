"""ViT of `transformers`, with a class token and a linear head."""

from typing import Any

from everyformer.core.bounds import Count
from everyformer.genes.config import ModelConfig
from everyformer.lab.convert.architecture import (
    ALL_BIASES,
    HubArchitecture,
    described_labels,
    label_count,
)
from everyformer.lab.convert.bert import LAYER, NAMES, three
from everyformer.lab.convert.rules import Rule, in_layers, linked

TABLE = {
    "patches": "vit.embeddings.patch_embeddings.projection",
    "stack.norm": "vit.layernorm",
    "pool.head": "classifier",
}
OWN = {
    "mixer.project": three("attention.attention"),
    "mixer_norm": "layernorm_before",
    "feedforward_norm": "layernorm_after",
}


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    side = config["image_size"]
    height, width = side if isinstance(side, list) else (side, side)
    return {
        "member": "vit",
        "image": (config["num_channels"], height, width),
        "classes": label_count(config),
        "embedding_dropout": config["hidden_dropout_prob"],
        "bias": ALL_BIASES,
        "pooling": "class",
    }


def _describe(config: ModelConfig) -> dict[str, Any]:
    assert config.image is not None
    channels, height, width = config.image
    return {
        "image_size": height if height == width else [height, width],
        "num_channels": channels,
        **described_labels(config),
        "qkv_bias": True,
    }


def _rules(config: ModelConfig) -> list[Rule]:
    return [
        *linked(TABLE),
        Rule(("position.table",), ("vit.embeddings.position_embeddings",), lead=True),
        Rule(("pool.token",), ("vit.embeddings.cls_token",)),
        *in_layers(config.layers, "vit.encoder.layer", LAYER | OWN, sizes=(config.width,) * 3),
    ]


VIT = HubArchitecture(
    model_type="vit",
    prefix="vit.",
    classes={"classify-image": "ViTForImageClassification"},
    names=NAMES | {"patch": "patch_size"},
    options=_options,
    describe=_describe,
    rules=_rules,
    further={"num_channels": Count, "image_size": Count | tuple[Count, Count]},
    ignored=r"^vit\.pooler\.",
    only={"qkv_bias": True},
)
