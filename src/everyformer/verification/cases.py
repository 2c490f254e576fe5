"""What the laws are tried on: each member, small, with the options that change its paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.core.tasks import TASKS
from everyformer.models.base import Model
from everyformer.models.build import configure_layers, create_model
from everyformer.models.layers import build_mixers

WIDTH, HEADS, LONGEST = 12, 3, 40
LENGTHS = (1, 2, 7, 33)

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "attention": (
        {},
        {"kv_heads": 1, "bias": ("query", "key", "value", "output")},
        {"window": 3},
        {"window": (2, None, 5), "qk_norm": True},
        {"softcap": 2.0, "sink": True},
        {"widths": {"key_dim": 6, "value_dim": 5}},
        {
            "mixer": "by-head",
            "mixer_options": {
                "mixers": ("attention", "aft-local", "aft-conv"),
                "own": {"aft-local": {"window": 3}},
            },
        },
    ),
    "aft-full": ({}, {"rank": None}, {"rank": 4, "gate": "relu"}),
    "aft-local": ({"window": 4}, {"window": 1}, {"window": 0}, {"window": 8, "rank": None}),
    "aft-simple": ({}, {"gate": "identity"}),
    "aft-conv": (
        {"kernel": 5},
        {"kernel": 3, "tied": False},
        {"kernel": 7, "reparameterise": False},
    ),
    "linear": (
        {},
        {"eps": 1e-6, "bias": ("query", "key", "value", "output")},
        {"feature_map": "relu"},
        {"feature_map": "exp"},
        {"feature_map": "softmax"},
        {"feature_map": "identity", "normalise": "rms"},
        {"feature_map": "t2r"},
        {"feature_map": "product", "normalise": "rms"},
        {"feature_map": "hedgehog"},
        {"feature_map": "dpfp", "nu": 2},
    ),
    "performer": (
        {},
        {"features": 16, "draw": "iid", "per_head": True, "eps": 1e-3},
        {"features": 8, "feature_map": "hyperbolic", "draw": "regularised"},
        {"features": 256, "feature_map": "trigonometric"},
        {"features": 8, "feature_map": "relu", "bias": ("query", "value")},
        {"features": 0, "feature_map": "relu"},
    ),
    "rfa": (
        {},
        {"draw": "orthogonal", "pool": 4, "learned_scale": False},
        {"feature_map": "arccos", "temperature": 0.5},
    ),
    "image-transformer": (
        {},
        {"block_size": 4, "memory_size": 3, "backend": "blocked"},
        {"block_size": 3, "memory_size": 0, "bias": ("query", "key", "value", "output")},
        {"block_size": 1, "memory_size": 5},
        {"dims": 2, "grid": (5, 8), "tile": (2, 3), "flange": (1, 2)},
        {"dims": 2, "grid": (4, 10), "tile": (2, 5), "flange": (3, 0), "backend": "blocked"},
        {"dims": 2, "grid": (20, 2), "tile": (1, 1), "flange": (0, 9), "bias": ("key",)},
    ),
    "sparse-transformer": (
        {"stride": 5},
        {"stride": 4, "mode": "heads", "inclusive": True},
        {"stride": 5, "columns": 2, "pattern": "fixed", "groups": 2, "backend": "blocked"},
        {"stride": 4, "columns": 2, "pattern": "fixed", "mode": "interleave", "bias": ("value",)},
        {"stride": 4, "columns": 1, "pattern": "fixed", "mode": "heads", "include_self": True},
        {"stride": 6, "mode": "interleave", "backend": "blocked"},
        {"mode": "heads", "sets": ("second", "both"), "key_dim": 3, "backend": "blocked"},
        {"pattern": "fixed", "key_dim": 6},
        {"stride": 4, "columns": 1, "pattern": "fixed", "mode": "heads", "sets": ("second",)},
    ),
    "longformer": (
        {},
        {"window": 4, "global_tokens": 2, "bias": ("query", "key", "value", "output")},
        {"window": (0, 2, 6), "global_tokens": (1, 4), "dilation": (1, 3, 2), "backend": "blocked"},
        {"window": 6, "global_tokens": (2, 0, 7), "global_projections": False, "position": "rope"},
        {"window": 6, "dilation": 2, "global_tokens": 1, "position": "alibi"},
        {"window": 4, "global_tokens": (0, 3), "position": "t5-relative"},
    ),
    "bigbird": (
        {},
        {"block_size": 3, "random_blocks": 1, "bias": ("query", "key", "value", "output")},
        {"block_size": 2, "random_blocks": 2, "backend": "blocked", "global_blocks": (1,)},
        {"block_size": 3, "random_blocks": 2, "window_blocks": 1, "position": "rope", "seed": 4},
        {"block_size": 4, "random_blocks": 0, "position": "alibi"},
        {"block_size": 2, "random_blocks": 3, "random": "release", "global_blocks": ()},
    ),
    "etc": (
        {},
        {"radius": 3, "clip": 2, "sharing": "sides"},
        {"radius": 2, "clip": 5, "sharing": "none", "bias": ("query", "key", "value", "output")},
        {"radius": 0, "direction": False, "share_output": True},
        {"radius": 4, "ordered": False, "hard_g2l": False, "hard_l2g": True},
    ),
    "blockwise": (
        {},
        {"blocks": 3, "groups": (1, 1, 1), "backend": "blocked"},
        {"blocks": 4, "groups": (1, 0, 2), "wrap": "none", "bias": ("query", "output")},
        {"blocks": 5, "block_size": 8, "groups": (0, 2, 1)},
        {"blocks": 1},
    ),
    "sinkhorn": (
        {"block_size": 4},
        {"block_size": 3, "sort_net": "mlp", "bias": ("query", "key", "value", "output")},
        {"block_size": 3, "sort_net": "bilinear", "iterations": 2, "bias": ("key",)},
        {"block_size": 4, "combine": "sum-scores", "pool": "mean"},
        {"block_size": 4, "combine": "sum-out", "sort_net": "bilinear"},
        {"block_size": 5, "mixture": True, "iterations": 1},
        {"block_size": 2, "hard": True, "pool": "mean", "shared_sort": True},
        {},
    ),
    "linformer": (
        {},
        {"k": 5, "sharing": "none", "bias": ("query", "key", "value", "output")},
        {"k": 5, "sharing": "key-value", "bias": ("key",)},
        {"k": 5, "sharing": "layerwise", "frozen": True},
        {"k": 9, "projection": "mean"},
        {"k": 9, "projection": "max", "bias": ("value",)},
        {"k": 9, "projection": "conv"},
        {"k": 9, "projection": "conv", "sharing": "none"},
    ),
    "linformer-chunked": (
        {"causal_chunk": 4},
        {"causal_chunk": 3, "k": 2, "sharing": "none", "bias": ("key", "value")},
        {"causal_chunk": 5, "k": 2, "projection": "max"},
        {"causal_chunk": 5, "k": 3, "projection": "mean"},
        {"causal_chunk": 4, "k": 2, "projection": "conv", "sharing": "key-value"},
        {"causal_chunk": 1},
    ),
    "gmlp": (
        {},
        {"gate": "multiplicative", "sgu_heads": 2},
        {"gate": "additive"},
        {"gate": "linear"},
        {"spatial": "toeplitz"},
        {"spatial": "toeplitz", "taps": 3},
    ),
    "reformer": (
        {"chunk": 4, "rounds": 2},
        {"chunk": 4, "rounds": 3, "wrap": "circular", "look_ahead": 1},
        {"chunk": 4, "rounds": 3, "once": True, "scale": 0.5},
        {"chunk": 3, "rounds": 2, "across_buckets": False, "look_back": 2},
        {"chunk": 3, "rounds": 2, "once": True, "wrap": "circular", "buckets": (4, 2)},
        {},
    ),
    "routing": (
        {"clusters": 3, "window": 4},
        {"clusters": 2, "window": 3, "routing": "prefix", "local_window": 5},
        {"clusters": 2, "window": 3, "routing": "prefix", "rank_bias": 2, "share_qk": True},
        {
            "clusters": 3,
            "window": 4,
            "routing": "paper",
            "local_heads": 0,
            "rank_bias": 2,
            "share_qk": True,
        },
        {"clusters": 3, "window": 5, "routing": "paper", "share_qk": False},
        {"clusters": 1, "window": 1, "share_qk": True, "local_heads": 2},
        {
            "clusters": 4,
            "window": 3,
            "update": "gradient",
            "local_heads": 0,
            "rank_bias": 9,
            "share_qk": True,
        },
        {},
    ),
    "learned-per-layer": ({}, {"align": "end"}),
    "amlp": ({"attention_dim": 4}, {"attention_dim": 4, "spatial": "toeplitz"}),
}

MEMORIES: dict[str, tuple[dict[str, Any], ...]] = {
    "segment": (
        {"slots": 4},
        {"slots": 4, "store": "inputs", "untie": False},
        {"slots": LONGEST, "store": "inputs", "same_length": "never", "position": "rope"},
        {"slots": 3, "position": "alibi"},
        {"slots": 5, "position": "t5-relative", "kv_heads": 1},
    ),
    "compressive": (
        {"slots": 4, "compressed": 3, "rate": 2},
        {"slots": 2, "compressed": 3, "rate": 2, "function": "most-used", "distance": "time"},
        {"slots": 3, "compressed": 6, "rate": 3, "function": "dilated", "gradient": "one-segment"},
    ),
}
"""what is carried beside attention"""

INSIDE: tuple[dict[str, Any], ...] = (
    {"position": "alibi"},
    {"position": "alibi", "learned": True, "window": 5, "kv_heads": 1},
    {"position": "alibi", "lowest": 0.4, "stretch": 3.0},
    {"position": "rope", "learned": True, "fraction": 0.5},
    {"position": "t5-relative", "buckets": 8, "max_distance": 12},
    {"position": "rope", "scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8}},
    {"position": "shaw", "clip": (2, 4), "per_head": True, "queries": True},
    {"position": "shaw", "clip": 3, "keys": False, "window": 5, "kv_heads": 1},
    {"position": "xl-relative", "clamp": 4, "softcap": 2.0},
    {"position": "xl-relative", "distances": "learned", "reach": 3},
    {"position": "da-transformer", "distance_scale": 3.0, "window": (2, None, 5)},
    {
        "position": "alibi",
        "mixer": "by-head",
        "mixer_options": {"mixers": ("attention", "aft-conv", "attention")},
    },
)
"""positions inside softmax attention that have no row of their own"""

ORDERED: dict[str, tuple[dict[str, Any], ...]] = {
    "rfa": (
        {"gate": True},
        {"gate": True, "feature_map": "arccos", "features": 16, "temperature": 2.0},
        {"compat_clamp": True},
    ),
}
"""options that only causal mixers have"""

SMALL: dict[tuple[str, str], dict[str, Any]] = {
    ("etc", "mlm"): {"radius": 3, "summaries": {"every": 4, "cpc": 0.25, "cpc_share": 0.5}},
    ("etc", "classify-text"): {"radius": 3, "summaries": {"every": 4}},
}
"""options by which all that a member's models of a task have is in use on twelve tokens"""

BOTH_WAYS: dict[str, tuple[dict[str, Any], ...]] = {
    "bigbird": (
        {"block_size": 2, "random_blocks": 2, "form": "etc", "extra_tokens": 3},
        {"block_size": 3, "random_blocks": 1, "random": "zeros", "dense_blocks": 3},
        {"block_size": 2, "random_blocks": 1, "global_blocks": (0, 2, -1, -2), "dense_blocks": 4},
    ),
    "sinkhorn": ({"block_size": 4, "sortcut": 2}, {"block_size": 4, "sortcut": 2, "hard": True}),
}
"""options that only bidirectional mixers have"""


@dataclass(frozen=True)
class Case:
    """One member, one choice of options, causal or not."""

    member: Member
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = True

    def __str__(self) -> str:
        chosen = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.member.name}({chosen}{', ' if chosen else ''}causal={self.causal})"

    def mixer(self, dtype: torch.dtype, device: str = "cpu", **more: Any) -> Mixer:
        """One mixer of the member with its position inside, weights drawn wide enough to matter."""
        sizes = {"width": WIDTH, "heads": HEADS, "layers": 1, "length": LONGEST, **more}
        config = configure_layers(self.member.name, self.causal, **self.options, **sizes)
        made = build_mixers(config)[0].to(device, dtype).eval()
        stir(made)
        return made


def cases(member: Member) -> Iterator[Case]:
    """Every variant of a member, causal and bidirectional where it can be."""
    mixer = str(member.genes["mixer"].name)
    inside = INSIDE if member.name == "attention" else ()
    variants = VARIANTS.get(member.name) or VARIANTS.get(mixer, ({},))
    if member.genes["memory"].name is not None:
        variants = MEMORIES[member.genes["memory"].name]
    for options in (*variants, *inside):
        for causal in (True, False):
            if member.can("causal" if causal else "bidirectional"):
                yield Case(member, options, causal)
    for options in ORDERED.get(mixer, ()):
        yield Case(member, options)
    for options in BOTH_WAYS.get(mixer, ()):
        yield Case(member, options, False)


def stir(module: nn.Module) -> None:
    """Give vectors and near-zero tables values that matter, so that no law holds by vacuity."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.dim() < 2 or float(parameter.detach().abs().max()) < 0.06:
            drawn = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.data.add_(drawn.to(parameter))


def draw(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> Tensor:
    """Standard normal numbers that depend on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def small_model(
    member: Member, task: str | None = None, **more: Any
) -> tuple[Model, Tensor, Tensor]:
    """A two-layer model of the member with inputs and targets that fit it."""
    task = task or member.tasks[0]
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "layers": 2, "max_length": 16}
    sizes |= SMALL.get((member.name, task), {}) | more
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (2, 12), generator=generator)
    does = TASKS[task]
    if does.pictures:
        sizes |= {"image": (1, 4, 4), "patch": 2, "classes": 3}
        pixels = torch.randint(0, 256, (2, 1, 4, 4), generator=generator).to(torch.uint8)
        targets = torch.tensor([0, 2]) if does.classifies else pixels.flatten(1).long()
        if does.encodes:
            sizes |= {"source_image": (1, 2, 2)}
            pixels = pixels[:, :, ::2, ::2]
        return create_model(member.name, task, **sizes), pixels, targets
    targets = torch.tensor([0, 1]) if does.classifies else tokens.roll(-1, 1)
    return create_model(member.name, task, vocabulary=50, **sizes), tokens, targets
