"""BERT, RoBERTa, Longformer and BigBird of `transformers`: one encoder with other attention.

RoBERTa differs from BERT in the head's names and in the first position, Longformer from RoBERTa in
windows and a second set of projections, BigBird from BERT in blocks near, at random and for all.

In evaluation BigBird's random blocks are all block 0 (``random="zeros"`` here), and texts of at
most 5 + 2 r blocks are read whole. The released tables, with which it was trained, are
``random="release"``. The last block of a padded batch, not of a text, is global there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everyformer.core.bounds import Count, Even, Whole
from everyformer.core.tasks import TASKS
from everyformer.genes.config import ModelConfig
from everyformer.genes.mixers.bigbird import BigBirdOptions
from everyformer.lab.convert.architecture import (
    ALL_BIASES,
    HubArchitecture,
    activation,
    described_labels,
    label_count,
)
from everyformer.lab.convert.rules import Rule, in_layers, linked
from everyformer.models.draft import by_layer

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


def three(theirs: str, after: str = "") -> tuple[str, ...]:
    """Their queries, keys and values."""
    return tuple(f"{theirs}.{part}{after}" for part in ("query", "key", "value"))


LAYER = {
    "mixer.project": three("attention.self"),
    "mixer.project_global": three("attention.self", "_global"),
    "mixer.out": "attention.output.dense",
    "mixer_norm": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}
HEADS = {
    False: ("cls.predictions", "transform.dense", "transform.LayerNorm"),
    True: ("lm_head", "dense", "layer_norm"),
}
"""the output layer, its transform and that one's norm, of BERT and of RoBERTa"""
OF_BERT = {
    "residual": "post",
    "position": "learned",
    "embedding_norm": True,
    "head_transform": True,
    "head_bias": True,
}
"""what makes a member's layers those of BERT"""


@dataclass(frozen=True)
class Encoder:
    """Differences among the encoders that are built like BERT."""

    name: str
    """what the names of its classes begin with"""
    body: str
    """what the names of its layers begin with"""
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {
        "member": "bert",
        "bias": ALL_BIASES,
    }
    """member and options of its attention, of their config"""
    write: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}
    """what their config says of attention, of ours"""
    further: Mapping[str, Any] = field(default_factory=dict)
    """types of what else their config says"""
    model_type: str = ""
    """theirs (default: the name of its body)"""
    roberta: bool = False
    """whether its head is RoBERTa's, which has always GELU, and its positions begin at row 2"""
    classifies: bool = False
    """whether its two-layer classification head is read here"""

    @property
    def first(self) -> int:
        """Rows of the position table before the first position (row 1 is for padding)."""
        return 2 if self.roberta else 0

    def architecture(self) -> HubArchitecture:
        """The encoder as a system of ``transformers``."""
        classes = {"mlm": f"{self.name}ForMaskedLM"}
        ignored = r"position_ids$|token_type_ids$|\.decoder\.(weight|bias)$"
        if self.classifies:
            classes["classify-text"] = f"{self.name}ForSequenceClassification"
            ignored += r"|\.pooler\.|seq_relationship"
        only: dict[str, Any] = {"position_embedding_type": "absolute"}
        if self.roberta:
            # their positions begin behind it
            only["pad_token_id"] = self.first - 1
        return HubArchitecture(
            model_type=self.model_type or self.body,
            prefix=f"{self.body}.",
            classes=classes,
            names=NAMES | {"vocabulary": "vocab_size", "token_types": "type_vocab_size"},
            options=self._options,
            describe=self._describe,
            rules=self._rules,
            further={"max_position_embeddings": Count, **self.further},
            ignored=ignored,
            only=only,
        )

    def _options(self, config: dict[str, Any], task: str) -> dict[str, Any]:
        usual = activation(config["hidden_act"])
        options = {
            "max_length": config["max_position_embeddings"] - self.first,
            "transform_activation": "gelu" if self.roberta else usual,
            "embedding_dropout": config["hidden_dropout_prob"],
            "tie": config.get("tie_word_embeddings", True),
            **self.read(config),
        }
        if TASKS[task].classifies:
            options |= {"pooling": "first", "head_hidden": config["hidden_size"]}
            options |= {"head_activation": "tanh" if self.roberta else usual}
            options |= {"classes": label_count(config), "head_transform": False, "head_bias": False}
        return options

    def _describe(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "max_position_embeddings": (config.max_length or config.tokens) + self.first,
            "tie_word_embeddings": config.tie,
            **described_labels(config),
            **self.write(config),
        }

    def _rules(self, config: ModelConfig) -> list[Rule]:
        body, (head, transform, norm) = self.body, HEADS[self.roberta]
        pairs = {
            "embedding": f"{body}.embeddings.word_embeddings",
            "types": f"{body}.embeddings.token_type_embeddings",
            "embedding_norm": f"{body}.embeddings.LayerNorm",
            "transform": f"{head}.{transform}",
            "transform_norm": f"{head}.{norm}",
            "pool.head.0": "classifier.dense",
            "pool.head.2": "classifier.out_proj",
        }
        if not config.tie:
            # they hold the bias twice, and add this one
            pairs["head"] = f"{head}.decoder"
        positions = f"{body}.embeddings.position_embeddings.weight"
        return [
            Rule(("position.table",), (positions,), skip=self.first),
            Rule(("head.bias",), (f"{head}.bias",)),
            *linked(pairs),
            *in_layers(config.layers, f"{body}.encoder.layer", LAYER, sizes=(config.width,) * 3),
        ]


def _read_longformer(config: dict[str, Any]) -> dict[str, Any]:
    windows = config["attention_window"]
    windows = [windows] * config["num_hidden_layers"] if isinstance(windows, int) else windows
    window = windows[0] if len(set(windows)) == 1 else by_layer(*windows)
    return {"member": "longformer", "bias": ALL_BIASES, "window": window, **OF_BERT}


def _write_longformer(config: ModelConfig) -> dict[str, Any]:
    # attention that sees everything has None, which theirs cannot say
    window = config.genes["mixer"].get("window") or 512
    return {
        "attention_window": list(config.schedule.get("window", (window,) * config.layers)),
        "pad_token_id": 1,
        # what their embeddings count positions from
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def _read_bigbird(config: dict[str, Any]) -> dict[str, Any]:
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
    if config.get("rescale_embeddings", False):
        options["scale_embedding"] = True
    return options | {"bias": ALL_BIASES if config.get("use_bias", True) else ("output",)}


def _write_bigbird(config: ModelConfig) -> dict[str, Any]:
    sparse = config.genes["mixer"].name == "bigbird"
    chosen = {**vars(BigBirdOptions()), **(config.genes["mixer"].options if sparse else {})}
    return {
        "attention_type": "block_sparse" if sparse else "original_full",
        "block_size": chosen["block_size"],
        "num_random_blocks": chosen["random_blocks"],
        "use_bias": "query" in config.genes["mixer"].get("bias", ()),
        "rescale_embeddings": bool(config.scale_embedding),
        # no token is theirs to know of here
        "pad_token_id": 0,
    }


BERT_LIKE = tuple(
    kind.architecture()
    for kind in (
        Encoder("Bert", "bert"),
        Encoder("Roberta", "roberta", roberta=True),
        Encoder(
            "Longformer", "longformer", _read_longformer, _write_longformer,
            {"attention_window": Even | tuple[Even, ...]}, roberta=True, classifies=True,
        ),
        Encoder(
            "BigBird", "bert", _read_bigbird, _write_bigbird,
            {
                "attention_type": Literal["block_sparse", "original_full"] | None,
                "block_size": Count | None,
                "num_random_blocks": Whole | None,
                "use_bias": bool | None,
                "rescale_embeddings": bool | None,
            },
            model_type="big_bird", classifies=True,
        ),
    )
)  # fmt: skip
