"""GPT-2 of `transformers`: matrices stored (inputs, outputs), queries, keys and values in one."""

from __future__ import annotations

from typing import Any

from everyformer.core.bounds import Amount, Count, Layers, Rate
from everyformer.interop.convert.architecture import (
    HubArchitecture,
    activation,
    refuse,
    their_activation,
)
from everyformer.interop.convert.rules import Rule, same
from everyformer.models.config import ModelConfig


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    refuse(config, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True)
    refuse(config, add_cross_attention=False)
    width = config["n_embd"]
    return {
        "member": "gpt",
        "width": width,
        "layers": config["n_layer"],
        "heads": config["n_head"],
        "max_length": config["n_positions"],
        "vocabulary": config["vocab_size"],
        "expansion": (config.get("n_inner") or 4 * width) / width,
        "feedforward": activation(config["activation_function"]),
        "norm_eps": config["layer_norm_epsilon"],
        "dropout": config["resid_pdrop"],
        "embedding_dropout": config["embd_pdrop"],
        "attention_dropout": config["attn_pdrop"],
        "tie": config.get("tie_word_embeddings", True),
    }


def _describe(config: ModelConfig) -> dict[str, Any]:
    return {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": config.tokens,
        "n_ctx": config.tokens,
        "vocab_size": config.vocabulary,
        "n_inner": round(config.width * config.block.expansion),
        "activation_function": their_activation(config.block.feedforward),
        "layer_norm_epsilon": config.block.norm_eps,
        "resid_pdrop": config.block.dropout,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": config.genes["mixer"].get("attention_dropout", 0.0),
        "tie_word_embeddings": config.tie,
    }


def _rules(config: ModelConfig) -> list[Rule]:
    rules = [
        Rule(("embedding.weight",), ("transformer.wte.weight",)),
        Rule(("position.table",), ("transformer.wpe.weight",)),
        *same("stack.norm", "transformer.ln_f"),
    ]
    if not config.tie:
        rules.append(Rule(("head.weight",), ("lm_head.weight",)))
    for n in range(config.layers):
        ours, theirs = f"stack.blocks.{n}", f"transformer.h.{n}"
        project = f"{ours}.mixer.project"
        rules += [
            *same(f"{ours}.mixer_norm", f"{theirs}.ln_1"),
            *same(f"{ours}.feedforward_norm", f"{theirs}.ln_2"),
            Rule((f"{project}.weights.0",), (f"{theirs}.attn.c_attn.weight",), transposed=True),
            Rule(
                tuple(f"{project}.biases.{part}" for part in ("query", "key", "value")),
                (f"{theirs}.attn.c_attn.bias",),
            ),
            *_transposed(f"{ours}.mixer.out", f"{theirs}.attn.c_proj"),
            *_transposed(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc"),
            *_transposed(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj"),
        ]
    return rules


def _transposed(ours: str, theirs: str) -> list[Rule]:
    return [
        Rule((f"{ours}.weight",), (f"{theirs}.weight",), transposed=True),
        Rule((f"{ours}.bias",), (f"{theirs}.bias",)),
    ]


GPT2 = HubArchitecture(
    model_type="gpt2",
    prefix="transformer.",
    classes={"lm": "GPT2LMHeadModel"},
    options=_options,
    describe=_describe,
    rules=_rules,
    fields={
        **dict.fromkeys(("n_embd", "n_head", "n_positions", "vocab_size"), Count),
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), Rate),
        "n_layer": Layers,
        "n_inner": Count | None,
        "activation_function": str,
        "layer_norm_epsilon": Amount,
    },
    ignored=r"\.attn\.(bias|masked_bias)$|^lm_head\.weight$",
)
