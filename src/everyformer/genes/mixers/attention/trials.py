"""Cases and limits of softmax attention for the laws."""

import torch

from everyformer.core.trials import HEADS, LENGTH, WIDTH, Make, Pair, Trials, output


def _limits(make: Make) -> list[Pair]:
    """A window over everything is no window; equal groups of heads are plain heads."""
    plain, windowed = make("attention"), make("attention", window=LENGTH)
    windowed.load_state_dict(plain.state_dict())
    grouped, full = make("attention", kv_heads=1), make("attention")
    size = WIDTH // HEADS
    q, k, v = grouped.project.weights[0].detach().split((WIDTH, size, size))
    full.load_state_dict(
        {
            "project.weights.0": torch.cat((q, k.repeat(HEADS, 1), v.repeat(HEADS, 1))),
            "out.weight": grouped.out.weight,
        },
        strict=False,
    )
    return [
        ("window >= L is no window", output(windowed), output(plain)),
        ("copied key-value heads are shared ones", output(full), output(grouped)),
    ]


TRIALS = Trials(
    variants=(
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
    limits=_limits,
)
