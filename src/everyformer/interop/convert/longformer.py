"""Longformer of `transformers`: RoBERTa with windows and a second set of projections."""

from typing import Any

from everyformer.core.bounds import Even
from everyformer.core.tasks import TASKS
from everyformer.genes.config import ModelConfig
from everyformer.interop.convert.architecture import (
    ALL_BIASES,
    HubArchitecture,
    described_labels,
    label_count,
)
from everyformer.interop.convert.bert import (
    ENCODER_FIELDS,
    PARTS,
    ROBERTA_HEAD,
    TEXT_NAMES,
    Encoder,
    describe_encoder,
    encoder_options,
    encoder_rules,
)
from everyformer.interop.convert.rules import Rule, heads
from everyformer.models.draft import by_layer

KIND = Encoder("longformer", ROBERTA_HEAD, first=2, acts=False, classifier="classifier")
OF_BERT = {
    "wiring": "post",
    "position": "learned",
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
}
"""what makes a member's layers those of BERT"""
OF_CLASSIFIER = {"pooling": "first", "head_activation": "tanh"}


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    windows = config["attention_window"]
    windows = [windows] * config["num_hidden_layers"] if isinstance(windows, int) else windows
    options = {
        "member": "longformer",
        "bias": ALL_BIASES,
        "window": windows[0] if len(set(windows)) == 1 else by_layer(*windows),
        **OF_BERT,
        **encoder_options(config, KIND),
    }
    if TASKS[task].classifies:
        options |= {**OF_CLASSIFIER, "head_hidden": config["hidden_size"]}
        options |= {"classes": label_count(config), "head_transform": False, "head_bias": False}
    return options


def _describe(config: ModelConfig) -> dict[str, Any]:
    window = config.genes["mixer"].get("window", 512)
    windows = config.schedule.get("window", (window,) * config.layers)
    return {
        **describe_encoder(config, KIND),
        **described_labels(config),
        "attention_window": list(windows),
        "pad_token_id": 1,
        # what their embeddings count positions from
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _rules(config: ModelConfig) -> list[Rule]:
    rules = encoder_rules(config, KIND)
    for n in range(config.layers):
        theirs = f"longformer.encoder.layer.{n}.attention.self"
        three = [f"{theirs}.{part}_global" for part in PARTS]
        ours = f"stack.blocks.{n}.mixer.project_global"
        rules += heads(ours, three, (config.width,) * 3, bias=True)
    return rules


LONGFORMER = HubArchitecture(
    model_type="longformer",
    prefix="longformer.",
    classes={
        "mlm": "LongformerForMaskedLM",
        "classify-text": "LongformerForSequenceClassification",
    },
    names=TEXT_NAMES,
    options=_options,
    describe=_describe,
    rules=_rules,
    further=ENCODER_FIELDS | {"attention_window": Even | tuple[Even, ...]},
    ignored=r"position_ids$|token_type_ids$|\.decoder\.(weight|bias)$|\.pooler\.",
)
