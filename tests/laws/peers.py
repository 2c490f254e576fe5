"""Models of other libraries, small, each made by a function without arguments."""

import torch
from torch import nn

from sequence_laws.adapters import subject_of
from sequence_laws.adapters.masks import KEEP
from sequence_laws.subject import Subject

PACKAGES = (
    "linformer",
    "local-attention",
    "performer-pytorch",
    "reformer-pytorch",
    "routing-transformer",
    "sinkhorn-transformer",
    "x-transformers",
)
"""whose versions a board of this file records"""
VOCABULARY, WIDTH, LONGEST = 32, 32, 64


def masked(model: nn.Module, name: str, word: str) -> Subject:
    """Of a model whose mask is one of ``**kwargs``, where no name tells of it."""
    subject = subject_of(model, name, vocabulary=VOCABULARY)
    subject.masking = (word, KEEP)
    return subject


def x_transformers() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True)
    return TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=LONGEST, attn_layers=layers)


def performer() -> Subject:
    from performer_pytorch import PerformerLM

    sizes = {"num_tokens": VOCABULARY, "max_seq_len": LONGEST, "dim": WIDTH, "depth": 2}
    model = PerformerLM(**sizes, heads=4, dim_head=8, causal=True, nb_features=16)
    return masked(model, "performer", "mask")


def routing() -> Subject:
    from routing_transformer import RoutingTransformerLM

    sizes = {"num_tokens": VOCABULARY, "max_seq_len": LONGEST, "dim": WIDTH, "depth": 2}
    model = RoutingTransformerLM(**sizes, heads=4, window_size=16, causal=True)
    model(torch.randint(VOCABULARY, (2, LONGEST)))  # of a first text clusters are drawn
    return masked(model, "routing", "input_mask")


def sinkhorn() -> Subject:
    from sinkhorn_transformer import SinkhornTransformerLM

    sizes = {"num_tokens": VOCABULARY, "max_seq_len": LONGEST, "dim": WIDTH, "depth": 2}
    model = SinkhornTransformerLM(**sizes, heads=4, bucket_size=8, causal=True)
    return masked(model, "sinkhorn", "input_mask")


def linformer() -> Subject:
    from linformer import LinformerLM

    sizes = {"num_tokens": VOCABULARY, "seq_len": LONGEST, "dim": WIDTH, "depth": 2}
    model = LinformerLM(**sizes, heads=4, k=16)
    return subject_of(model, "linformer", causal=False, vocabulary=VOCABULARY)


def reformer() -> Subject:
    from reformer_pytorch import ReformerLM

    sizes = {"num_tokens": VOCABULARY, "max_seq_len": LONGEST, "dim": WIDTH, "depth": 2}
    model = ReformerLM(**sizes, heads=4, bucket_size=8, n_hashes=2, causal=True)
    return masked(model, "reformer", "input_mask")


def local_attention() -> nn.Module:
    from local_attention import LocalTransformer

    sizes = {"num_tokens": VOCABULARY, "max_seq_len": LONGEST, "dim": WIDTH, "depth": 2}
    return LocalTransformer(**sizes, heads=4, dim_head=8, local_attn_window_size=8, causal=True)


PEERS = {
    f.__name__: f
    for f in (x_transformers, performer, routing, sinkhorn, linformer, reformer, local_attention)
}
