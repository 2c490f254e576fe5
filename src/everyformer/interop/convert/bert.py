"""BERT and RoBERTa of `transformers`, which differ in the head's names and the first position."""

from dataclasses import dataclass
from typing import Any

from everyformer.core.bounds import Count
from everyformer.core.tasks import TASKS
from everyformer.genes.config import ModelConfig
from everyformer.interop.convert.architecture import ALL_BIASES, HubArchitecture, activation, refuse
from everyformer.interop.convert.rules import Rule, heads, in_layers, same

PARTS = ("query", "key", "value")
BERT_HEAD = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions",
)
ROBERTA_HEAD = ("lm_head.dense", "lm_head.layer_norm", "lm_head")
"""transform, its norm, and where the bias of the output layer lies"""


@dataclass(frozen=True)
class Encoder:
    """Differences among the encoders that are built like BERT."""

    body: str
    """what the names of its layers begin with"""
    head: tuple[str, str, str]
    first: int = 0
    """rows of the position table before the first position (RoBERTa keeps row 1 for padding)"""
    acts: bool = True
    """whether the transform has the feed-forward's activation (RoBERTa's has always GELU)"""
    classifier: str = ""
    """where its two-layer classification head lies, if it has one that is read here"""


NAMES = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "expansion": "intermediate_size",
    "feedforward": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""what encoders of text and of pictures have"""
TEXT_NAMES = NAMES | {"vocabulary": "vocab_size", "token_types": "type_vocab_size"}
ENCODER_FIELDS = {"max_position_embeddings": Count}
LAYER = {
    "mixer.out": "attention.output.dense",
    "mixer_norm": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}


def encoder_options(config: dict[str, Any], kind: Encoder) -> dict[str, Any]:
    """Options of an encoder by its config, beside its attention."""
    refuse(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    return {
        "max_length": config["max_position_embeddings"] - kind.first,
        "transform_activation": activation(config["hidden_act"]) if kind.acts else "gelu",
        "embedding_dropout": config["hidden_dropout_prob"],
        "tie": config.get("tie_word_embeddings", True),
    }


def describe_encoder(config: ModelConfig, kind: Encoder) -> dict[str, Any]:
    """Config of an encoder as theirs, beside its attention."""
    return {
        "max_position_embeddings": (config.max_length or config.tokens) + kind.first,
        "tie_word_embeddings": config.tie,
    }


def encoder_rules(config: ModelConfig, kind: Encoder) -> list[Rule]:
    """Every tensor of an encoder and of its heads; of the attention queries, keys and values."""
    body, (dense, norm, bias) = f"{kind.body}.embeddings", kind.head
    rules = [
        Rule(("embedding.weight",), (f"{body}.word_embeddings.weight",)),
        Rule(("position.table",), (f"{body}.position_embeddings.weight",), skip=kind.first),
        Rule(("types.weight",), (f"{body}.token_type_embeddings.weight",)),
        *same("embedding_norm", f"{body}.LayerNorm"),
    ]
    if TASKS[config.task].predicts == "hidden":
        rules += [
            *same("transform", dense),
            *same("transform_norm", norm),
            Rule(("head.bias",), (f"{bias}.bias",)),
        ]
        if not config.tie:
            # they hold the bias twice, and add this one
            rules += same("head", f"{bias}.decoder")
    else:
        rules += same("pool.head.0", f"{kind.classifier}.dense")
        rules += same("pool.head.2", f"{kind.classifier}.out_proj")
    biased = "query" in config.genes["mixer"].get("bias", ())
    for n in range(config.layers):
        theirs = f"{kind.body}.encoder.layer.{n}.attention.self"
        three = [f"{theirs}.{part}" for part in PARTS]
        rules += heads(f"stack.blocks.{n}.mixer.project", three, (config.width,) * 3, bias=biased)
    return rules + in_layers(config.layers, f"{kind.body}.encoder.layer", LAYER)


def _like(name: str, kind: Encoder) -> HubArchitecture:
    plain = {"member": "bert", "bias": ALL_BIASES}
    return HubArchitecture(
        model_type=kind.body,
        prefix=f"{kind.body}.",
        classes={"mlm": f"{name}ForMaskedLM"},
        names=TEXT_NAMES,
        options=lambda config, _: plain | encoder_options(config, kind),
        describe=lambda config: describe_encoder(config, kind),
        rules=lambda config: encoder_rules(config, kind),
        further=ENCODER_FIELDS,
        ignored=r"position_ids$|token_type_ids$|\.decoder\.(weight|bias)$",
    )


BERT = _like("Bert", Encoder("bert", BERT_HEAD))
ROBERTA = _like("Roberta", Encoder("roberta", ROBERTA_HEAD, first=2, acts=False))
