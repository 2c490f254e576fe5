"""GPT-2 of `transformers`: matrices stored (inputs, outputs), queries, keys and values in one."""

from typing import Any

from everyformer.core.bounds import Count
from everyformer.genes.config import ModelConfig
from everyformer.lab.convert.architecture import HubArchitecture
from everyformer.lab.convert.rules import Rule, in_layers, linked

NAMES = {
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "max_length": "n_positions",
    "vocabulary": "vocab_size",
    "expansion": "n_inner",
    "feedforward": "activation_function",
    "norm_eps": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "embedding_dropout": "embd_pdrop",
    "attention_dropout": "attn_pdrop",
}
LAYER = {
    "mixer_norm": "ln_1",
    "mixer.project": ("attn.c_attn",),
    "mixer.out": "attn.c_proj",
    "feedforward_norm": "ln_2",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
SCALES = {"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True}
"""values that alone have a counterpart"""


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    return {
        "member": "gpt",
        "expansion": (config.get("n_inner") or 4 * config["n_embd"]) / config["n_embd"],
        "tie": config.get("tie_word_embeddings", True),
    }


def _rules(config: ModelConfig) -> list[Rule]:
    pairs = {"embedding": "transformer.wte"} | ({} if config.tie else {"head": "lm_head"})
    return [
        *linked(pairs),
        Rule(("position.table",), ("transformer.wpe.weight",)),
        *layer_rules(config, "transformer"),
    ]


def layer_rules(config: ModelConfig, prefix: str) -> list[Rule]:
    """All layers and the norm behind them."""
    layers = in_layers(config.layers, f"{prefix}.h", LAYER, transposed=True)
    return [*linked({"stack.norm": f"{prefix}.ln_f"}), *layers]


GPT2 = HubArchitecture(
    model_type="gpt2",
    prefix="transformer.",
    classes={"lm": "GPT2LMHeadModel"},
    names=NAMES,
    options=_options,
    describe=lambda config: {"n_ctx": config.tokens, "tie_word_embeddings": config.tie},
    rules=_rules,
    further={"n_inner": Count | None},
    ignored=r"\.attn\.(bias|masked_bias)$|^lm_head\.weight$",
    only=SCALES,
)
