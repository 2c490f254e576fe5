"""Trials of BigBird, which the laws are tried on."""

from typing import Any

from everyformer.core.trials import LENGTH, LONGEST, Trials, are_attention

LIMITS: dict[str, dict[str, Any]] = {
    "a window of all blocks": {
        "block_size": 2, "window_blocks": 2 * LENGTH + 1, "random_blocks": 0
    },
    "one block": {"block_size": LONGEST},
    "all blocks global": {"block_size": 2, "global_blocks": tuple(range(LENGTH // 2 + 1))},
    "all blocks drawn": {"block_size": 2, "random_blocks": LENGTH, "global_blocks": ()},
}  # fmt: skip
TRIALS = Trials(
    variants=(
        {},
        {"block_size": 3, "random_blocks": 1, "bias": ("query", "key", "value", "output")},
        {"block_size": 2, "random_blocks": 2, "backend": "blocked", "global_blocks": (1,)},
        {"block_size": 3, "random_blocks": 2, "window_blocks": 1, "position": "rope", "seed": 4},
        {"block_size": 4, "random_blocks": 0, "position": "alibi"},
        {"block_size": 2, "random_blocks": 3, "random": "release", "global_blocks": ()},
    ),
    bidirectional=(
        {"block_size": 2, "random_blocks": 2, "form": "etc", "extra_tokens": 3},
        {"block_size": 3, "random_blocks": 1, "random": "zeros", "dense_blocks": 3},
        {"block_size": 2, "random_blocks": 1, "global_blocks": (0, 2, -1, -2), "dense_blocks": 4},
    ),
    limits=are_attention("bigbird", LIMITS),
)
