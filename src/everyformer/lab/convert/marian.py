"""Marian of `transformers`: the Transformer as published, with a bias in the output layer."""

from typing import Any

from everyformer.core.bounds import Count
from everyformer.genes.config import ModelConfig
from everyformer.lab.convert.architecture import ALL_BIASES, HubArchitecture, refuse, written
from everyformer.lab.convert.rules import Rule, in_layers, linked

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
    "feedforward_dropout": "activation_dropout",
}
AGAIN = {
    "heads": "decoder_attention_heads",
    "expansion": "decoder_ffn_dim",
    "vocabulary": "decoder_vocab_size",
    "start_token": "pad_token_id",
    "end_token": "forced_eos_token_id",
}
"""what their config says twice"""


def _attention(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{part}_proj" for part in "qkv")


ENCODER = {
    "mixer.project": _attention("self_attn"),
    "mixer.out": "self_attn.out_proj",
    "mixer_norm": "self_attn_layer_norm",
    "feedforward.up": "fc1",
    "feedforward.down": "fc2",
    "feedforward_norm": "final_layer_norm",
}
DECODER = ENCODER | {
    "cross.project": _attention("encoder_attn"),
    "cross.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    heads, hidden = config["encoder_attention_heads"], config["encoder_ffn_dim"]
    refuse(config, decoder_attention_heads=heads, decoder_ffn_dim=hidden)
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
        "scale_embedding": config.scale_embedding is not False,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }


def _rules(config: ModelConfig) -> list[Rule]:
    sizes, decoders = (config.width,) * 3, config.decoder_layers or config.layers
    return [
        *linked({"embedding": "model.shared"}),
        Rule(("head.bias",), ("final_logits_bias",), lead=True),
        *in_layers(config.layers, "model.encoder.layers", ENCODER, "encoder.blocks", sizes=sizes),
        *in_layers(decoders, "model.decoder.layers", DECODER, sizes=sizes),
    ]


MARIAN = HubArchitecture(
    model_type="marian",
    prefix="model.",
    classes={"seq2seq": "MarianMTModel"},
    names=NAMES,
    options=_options,
    describe=_describe,
    rules=_rules,
    further={
        "scale_embedding": bool,
        **dict.fromkeys(("decoder_attention_heads", "decoder_ffn_dim"), Count | None),
        "num_hidden_layers": Count | None,
    },
    ignored=r"embed_positions\.weight$|embed_tokens\.weight$|^lm_head\.weight$",
    only={"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True},
)
