"""BigBird of `transformers`: BERT with blocks near, at random and for all.

In evaluation its random blocks are all block 0 (``random="zeros"`` here), and texts of at most
5 + 2 r blocks are read whole. The released tables, with which it was trained, are
``random="release"``. The last block of a padded batch, not of a text, is global there.
"""

from typing import Any, Literal

from everyformer.core.bounds import Count, Whole
from everyformer.core.tasks import TASKS
from everyformer.genes.config import ModelConfig
from everyformer.genes.mixers.bigbird import BigBirdOptions
from everyformer.interop.convert.architecture import (
    HubArchitecture,
    activation,
    described_labels,
    label_count,
)
from everyformer.interop.convert.bert import (
    BERT_HEAD,
    ENCODER_FIELDS,
    TEXT_NAMES,
    Encoder,
    describe_encoder,
    encoder_options,
    encoder_rules,
)
from everyformer.interop.convert.longformer import OF_BERT

KIND = Encoder("bert", BERT_HEAD, classifier="classifier")


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    parts = ("query", "key", "value") if config.get("use_bias", True) else ()
    options: dict[str, Any] = {"member": "bert"}
    if config.get("attention_type", "block_sparse") == "block_sparse":
        count = config.get("num_random_blocks", 3)
        options = {
            "member": "bigbird",
            "block_size": config.get("block_size", 64),
            "random_blocks": count,
            "random": "zeros",
            "dense_blocks": 5 + 2 * count,
            **OF_BERT,
        }
    options |= encoder_options(config, KIND) | {"bias": (*parts, "output")}
    if config.get("rescale_embeddings", False):
        options["scale_embedding"] = True
    if TASKS[task].classifies:
        options |= {"pooling": "first", "head_hidden": config["hidden_size"]}
        options |= {"head_activation": activation(config["hidden_act"])}
        options |= {"classes": label_count(config), "head_transform": False, "head_bias": False}
    return options


def _describe(config: ModelConfig) -> dict[str, Any]:
    sparse = config.genes["mixer"].name == "bigbird"
    chosen = {**vars(BigBirdOptions()), **(config.genes["mixer"].options if sparse else {})}
    return {
        **describe_encoder(config, KIND),
        **described_labels(config),
        "attention_type": "block_sparse" if sparse else "original_full",
        "block_size": chosen["block_size"],
        "num_random_blocks": chosen["random_blocks"],
        "use_bias": "query" in config.genes["mixer"].get("bias", ()),
        "rescale_embeddings": bool(config.scale_embedding),
        # no token is theirs to know of here
        "pad_token_id": 0,
    }


BIGBIRD = HubArchitecture(
    model_type="big_bird",
    prefix="bert.",
    classes={"mlm": "BigBirdForMaskedLM", "classify-text": "BigBirdForSequenceClassification"},
    names=TEXT_NAMES,
    options=_options,
    describe=_describe,
    rules=lambda config: encoder_rules(config, KIND),
    further=ENCODER_FIELDS
    | {
        "attention_type": Literal["block_sparse", "original_full"] | None,
        "block_size": Count | None,
        "num_random_blocks": Whole | None,
        "use_bias": bool | None,
        "rescale_embeddings": bool | None,
    },
    ignored=r"position_ids$|token_type_ids$|\.decoder\.(weight|bias)$|\.pooler\.|seq_relationship",
)
