"""Marian of `transformers`: the Transformer as published, with a bias in the output layer."""

from typing import Any

from everyformer.genes.config import ModelConfig
from everyformer.interop.convert.architecture import ALL_BIASES, HubArchitecture, refuse, written
from everyformer.interop.convert.rules import Rule, heads, same

PARTS = ("q_proj", "k_proj", "v_proj")
NAMES = {
    "width": "d_model",
    "layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "heads": "encoder_attention_heads",
    "expansion": "encoder_ffn_dim",
    "max_length": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "start_token": "decoder_start_token_id",
    "end_token": "eos_token_id",
    "feedforward": "activation_function",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}
AGAIN = {
    "heads": "decoder_attention_heads",
    "expansion": "decoder_ffn_dim",
    "vocabulary": "decoder_vocab_size",
    "start_token": "pad_token_id",
    "end_token": "forced_eos_token_id",
}
"""what their config says twice"""


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    refuse(config, decoder_attention_heads=config["encoder_attention_heads"])
    refuse(config, decoder_ffn_dim=config["encoder_ffn_dim"])
    refuse(config, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    return {
        "member": "transformer",
        "norm_eps": 1e-5,
        "embedding_dropout": config["dropout"],
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
    return {
        "is_encoder_decoder": True,
        **written(AGAIN, config),
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
    own_words, cross = {"mixer": "self_attn"}, {"cross": "encoder_attn"}
    for side, stack, count, pairs in (
        ("encoder", "encoder", config.layers, own_words),
        ("decoder", "stack", decoders, own_words | cross),
    ):
        for n in range(count):
            ours, theirs = f"{stack}.blocks.{n}", f"model.{side}.layers.{n}"
            for own, other in pairs.items():
                three = [f"{theirs}.{other}.{part}" for part in PARTS]
                rules += heads(f"{ours}.{own}.project", three, sizes, bias=True)
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
    names=NAMES,
    options=_options,
    describe=_describe,
    rules=_rules,
    further={"scale_embedding": bool},
    ignored=r"embed_positions\.weight$|embed_tokens\.weight$|^lm_head\.weight$",
)
