"""What the laws try BigBird on."""

from __future__ import annotations

from typing import Any

from everyformer.core.trials import LENGTH, LONGEST, Make, Pair, Trials, output


def _limits(make: Make) -> list[Pair]:
    """Blocks that cover the text are attention, whichever kind they are of."""
    plain = make("attention")
    names: dict[str, dict[str, Any]] = {
        "a window of all blocks": {"window_blocks": 2 * LENGTH + 1, "random_blocks": 0},
        "one block": {"block_size": LONGEST},
        "all blocks global": {"global_blocks": tuple(range(LENGTH // 2 + 1))},
        "all blocks drawn": {"random_blocks": LENGTH, "global_blocks": ()},
    }
    pairs: list[Pair] = []
    for what, options in names.items():
        wide = make("bigbird", **{"block_size": 2, **options})
        wide.load_state_dict(plain.state_dict(), strict=False)
        pairs.append((f"{what} is attention", output(wide), output(plain)))
    return pairs


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
    limits=_limits,
)
