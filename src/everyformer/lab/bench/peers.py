"""Peers, what a user would pick instead: a bare module around torch's fused attention, packages.

Each builder makes one mixing layer of (batch, length, width) with its projections. A package that
is not installed, or that lacks what is requested, is reported so; nothing else takes its place.
"""

import contextlib
import functools
import io
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import MissingExtraError, UnsupportedError
from everyformer.lab.bench.points import Point

PEERS: dict[str, tuple[str, ...]] = {
    "torch sdpa": (
        *("attention", "aft-full", "aft-local", "aft-simple", "aft-conv", "gmlp", "amlp"),
        *("linear", "performer", "rfa", "reformer", "routing", "linformer", "sinkhorn"),
        *("longformer", "bigbird"),
        *("image-transformer", "sparse-transformer"),
    ),
    "torch nn.MultiheadAttention": ("attention",),
    "x-transformers": ("attention", "rope"),
    "aft-pytorch": ("aft-full", "aft-local", "aft-simple"),
    "g-mlp-pytorch": ("gmlp", "amlp"),
    "flash-linear-attention": ("linear",),
    "performer-pytorch": ("performer",),
    "reformer-pytorch": ("reformer",),
    "routing-transformer": ("routing",),
    "linformer": ("linformer",),
    "transformers": ("longformer", "bigbird"),
    "local-attention": ("image-transformer",),
}
"""package -> the members that it is a peer of"""


class Projected(nn.Module):
    """A fused projection, what ``inner`` does with queries, keys and values, a projection."""

    def __init__(self, width: int, heads: int, inner: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.inner = heads, inner
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = self.inner(*heads.unbind(0))
        return self.out(y.transpose(1, 2).flatten(2))


class TorchMultihead(nn.Module):
    """`nn.MultiheadAttention` as self-attention, without weights returned."""

    def __init__(self, width: int, heads: int, causal: bool, length: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        self.mask = nn.Transformer.generate_square_subsequent_mask(length) if causal else None

    def forward(self, x: Tensor) -> Tensor:
        causal = self.mask is not None
        y, _ = self.inner(x, x, x, attn_mask=self.mask, is_causal=causal, need_weights=False)
        return y


class TakesFirst(nn.Module):
    """A package's module that returns more than its output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y[0] if isinstance(y, tuple) else y


class XTransformersRotated(nn.Module):
    """Attention of x-transformers with rotations made once, as for all layers of its models."""

    def __init__(self, inner: nn.Module, angles: Tensor, scale: Any) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale
        self.register_buffer("angles", angles)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x, rotary_pos_emb=(self.angles, self.scale))
        return y[0] if isinstance(y, tuple) else y


def build_peer(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    """The peer's layer for one point.

    Raises:
        MissingExtraError: the package is not installed.
        UnsupportedError: it has no causal (or no bidirectional) form.
    """
    if point.source == "torch sdpa":
        # the least that attention can cost
        attend = functools.partial(F.scaled_dot_product_attention, is_causal=causal)
        return Projected(width, heads, attend)
    if point.source == "torch nn.MultiheadAttention":
        return TorchMultihead(width, heads, causal, point.length)
    try:
        return _PACKAGES[point.source](point, width, heads, causal)
    except ModuleNotFoundError as error:
        raise MissingExtraError(point.source, "peers", "this comparison") from error


def _x_transformers(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    from x_transformers.x_transformers import Attention, RotaryEmbedding

    inner = Attention(width, heads=heads, dim_head=width // heads, causal=causal, flash=True)
    if point.member != "rope":
        return TakesFirst(inner)
    angles, scale = RotaryEmbedding(width // heads).forward_from_seq_len(point.length)
    return XTransformersRotated(inner, angles, scale)


def _aft_pytorch(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    import aft_pytorch

    if causal:
        raise UnsupportedError("aft-pytorch has no causal form: measure with --no-causal")
    kinds = {"aft-full": "AFTFull", "aft-local": "AFTLocal", "aft-simple": "AFTSimple"}
    cls = getattr(aft_pytorch, kinds[point.member])
    arguments = {"max_seqlen": point.length, "dim": width, "hidden_dim": width}
    if point.member == "aft-local":
        arguments["s"] = 32
    return cls(**arguments)


def _g_mlp_pytorch(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    from g_mlp_pytorch import gMLPBlock

    sizes = {"dim_ff": 4 * width, "attn_dim": 64 if point.member == "amlp" else None}
    return gMLPBlock(dim=width, seq_len=point.length, causal=causal, **sizes)


def _flash_linear_attention(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    """Its kernels of chunks, on the features of our `linear`."""
    from fla.ops.linear_attn import chunk_linear_attn

    if not causal:
        raise UnsupportedError("flash-linear-attention is causal: leave out --no-causal")

    def on_cuda(q: Tensor, *rest: Tensor, **arguments: Any) -> Any:
        if not q.is_cuda:
            raise UnsupportedError("its kernels are for GPUs: measure with --device cuda")
        return chunk_linear_attn(q, *rest, **arguments)

    return Projected(width, heads, functools.partial(averaged_features, on_cuda))


def averaged_features(
    average: Callable[..., tuple[Tensor, Any]], q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Averages (B, H, L, D) by an operator of flash-linear-attention, of q, k, v (B, H, L, D)."""
    q, k, v = (t.transpose(1, 2) for t in (F.elu(q) + 1, F.elu(k) + 1, v))
    return average(q, k, v, scale=1.0, normalize=True)[0].transpose(1, 2)


def _performer_pytorch(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    """Its causal form without CUDA is slow and, by its own sums, inexact: timings alone count."""
    from performer_pytorch import SelfAttention

    # it prints that it takes that form
    with contextlib.redirect_stdout(io.StringIO()):
        return SelfAttention(width, heads=heads, dim_head=width // heads, causal=causal)


def _reformer_pytorch(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    from reformer_pytorch import Autopadder, LSHSelfAttention

    # our chunks and rounds; without the threshold it is dense attention up to 64 tokens
    sizes = {"heads": heads, "bucket_size": 64, "n_hashes": 4, "full_attn_thres": 0}
    return Autopadder(LSHSelfAttention(width, causal=causal, **sizes))


def _routing_transformer(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    from routing_transformer.routing_transformer import SelfAttention

    # our default sizes, as far as its clusters of equal size allow them
    window = 2 ** round(math.log2(point.length) / 2)
    if point.length % window:
        raise UnsupportedError(
            f"routing-transformer cuts a text into windows of {window}: measure lengths that are "
            "powers of two"
        )
    sizes = (width, 1, point.length, heads, heads // 2, window)
    return TakesFirst(SelfAttention(*sizes, causal=causal, shared_qk=causal, rel_pos_emb=False))


def _linformer(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    from linformer import LinformerSelfAttention

    if causal:
        raise UnsupportedError("linformer has no causal form: measure with --no-causal")
    return LinformerSelfAttention(width, point.length, heads=heads)


class TransformersSparse(nn.Module):
    """Attention of Longformer or BigBird there, with what its model passes, and a projection."""

    def __init__(self, inner: nn.Module, width: int, extra: dict[str, Any], spare: int) -> None:
        super().__init__()
        self.inner, self.extra, self.spare = inner, extra, spare
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        extra = {
            name: part.to(x.device).expand(len(x), *part.shape[1:])
            if isinstance(part, Tensor)
            else part
            for name, part in self.extra.items()
        }
        y = self.inner(F.pad(x, (0, 0, 0, self.spare)), **extra)[0]
        return self.out(y[:, : x.shape[1]])


def _transformers(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    """Our default window, or our default blocks with random ones, as in its training.

    As its models do, texts are padded to whole windows or blocks, and up to 11 blocks read whole.
    """
    from transformers import BigBirdConfig, LongformerConfig
    from transformers.models.big_bird import modeling_big_bird as big_bird
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    if causal:
        raise UnsupportedError("transformers has no causal form of it: measure with --no-causal")
    unit = 512 if point.member == "longformer" else 64
    spare = -point.length % unit
    sizes: dict[str, Any] = {
        "hidden_size": width, "num_attention_heads": heads, "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": point.length + spare,
    }  # fmt: skip
    real = F.pad(torch.ones(1, point.length), (0, spare))
    inputs: dict[str, Any]
    if point.member == "longformer":
        nowhere = torch.zeros_like(real, dtype=torch.bool)
        inputs = {"attention_mask": real - 1, "is_index_masked": real < 1}
        inputs |= {"is_index_global_attn": nowhere, "is_global_attn": False}
        windows = LongformerConfig(**sizes, attention_window=[unit])
        return TransformersSparse(LongformerSelfAttention(windows, 0), width, inputs, spare)
    blocks = BigBirdConfig(**sizes, block_size=unit)
    if point.length <= 11 * unit:
        return TransformersSparse(big_bird.BigBirdSelfAttention(blocks), width, {}, 0)
    masks = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(real, unit)
    blocked, band, rows, columns = masks
    inputs = {"band_mask": band, "from_mask": rows, "to_mask": columns}
    inputs |= {"from_blocked_mask": blocked, "to_blocked_mask": blocked}
    inner = big_bird.BigBirdBlockSparseAttention(blocks, seed=0)
    return TransformersSparse(inner, width, inputs, spare)


def _local_attention(point: Point, width: int, heads: int, causal: bool) -> nn.Module:
    from local_attention import LocalAttention

    if not causal:
        raise UnsupportedError(
            "local-attention's windows to both sides read padding as keys: measure causal ones"
        )
    # our default blocks and memory
    size = 256
    inner = LocalAttention(
        window_size=size, causal=True, look_backward=1, look_forward=0, autopad=True,
        exact_windowsize=False, use_rotary_pos_emb=False,
    )  # fmt: skip
    return Projected(width, heads, inner)


_PACKAGES = {
    "x-transformers": _x_transformers,
    "aft-pytorch": _aft_pytorch,
    "g-mlp-pytorch": _g_mlp_pytorch,
    "flash-linear-attention": _flash_linear_attention,
    "performer-pytorch": _performer_pytorch,
    "reformer-pytorch": _reformer_pytorch,
    "routing-transformer": _routing_transformer,
    "linformer": _linformer,
    "transformers": _transformers,
    "local-attention": _local_attention,
}
