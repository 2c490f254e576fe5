"""Cases and limits of Linformer for the laws: slots of a whole text, and of causal segments."""

from __future__ import annotations

from typing import Any

import torch

from everyformer.core.trials import LENGTH, LONGEST, Make, Pair, Trials, output


def _slots(make: Make, plain: Any) -> list[Pair]:
    """A slot for each token is attention: E = F = I, or windows of one token."""
    pairs: list[Pair] = []
    for kind in ("linear", "mean", "max", "conv"):
        slotted = make("linformer", k=LENGTH, projection=kind, max_length=LENGTH)
        slotted.load_state_dict(plain.state_dict(), strict=False)
        if slotted.length_map is not None:
            own = slotted.length_map
            one = torch.eye(LENGTH) if kind == "linear" else torch.ones(1)
            own.data.copy_(one.to(own).expand_as(own))
        what = f"{kind} with a slot for each token is attention"
        pairs.append((what, output(slotted), output(plain)))
    return pairs


def _segments(make: Make, plain: Any) -> list[Pair]:
    """One segment is causal attention; so are segments whose slots are their tokens."""
    pairs: list[Pair] = []
    for size in (LONGEST, 4):
        segments = make("linformer", causal_chunk=size, k=size, projection="mean")
        segments.load_state_dict(plain.state_dict(), strict=False)
        what = f"segments of {size} with a slot a token are attention"
        pairs.append((what, output(segments), output(plain)))
    return pairs


def _limits(make: Make) -> list[Pair]:
    """Slots of a whole text are bidirectional, those of segments causal."""
    plain = make("attention")
    return _segments(make, plain) if plain.causal else _slots(make, plain)


TRIALS = Trials(
    causal=(
        {"causal_chunk": 4},
        {"causal_chunk": 3, "k": 2, "sharing": "none", "bias": ("key", "value")},
        {"causal_chunk": 5, "k": 2, "projection": "max"},
        {"causal_chunk": 5, "k": 3, "projection": "mean"},
        {"causal_chunk": 4, "k": 2, "projection": "conv", "sharing": "key-value"},
        {"causal_chunk": 1},
    ),
    bidirectional=(
        {},
        {"k": 5, "sharing": "none", "bias": ("query", "key", "value", "output")},
        {"k": 5, "sharing": "key-value", "bias": ("key",)},
        {"k": 5, "sharing": "layerwise", "frozen": True},
        {"k": 9, "projection": "mean"},
        {"k": 9, "projection": "max", "bias": ("value",)},
        {"k": 9, "projection": "conv"},
        {"k": 9, "projection": "conv", "sharing": "none"},
    ),
    limits=_limits,
)
