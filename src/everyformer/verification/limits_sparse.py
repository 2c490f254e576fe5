"""Law 5 of members with sparse patterns: patterns that show all pairs are plain attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from everyformer.core.mixer import Mixer
from everyformer.verification.cases import LONGEST
from everyformer.verification.limits_genes import Make, Pair


def _sparse_transformer(make: Make) -> list[Pair]:
    """The first set is all tokens if the stride is as long as the text, the second if it is 1."""
    plain = make("attention")
    pairs: list[Pair] = []
    for stride, mode in ((LONGEST, "merged"), (1, "merged")):
        for pattern in ("strided", "fixed"):
            sparse = make(
                "sparse-transformer", stride=stride, columns=1, pattern=pattern, mode=mode
            )
            sparse.load_state_dict(plain.state_dict())
            what = f"{pattern} sets with a stride of {stride} are attention"
            pairs.append((what, partial(mixed, sparse), partial(mixed, plain)))
    return pairs


def _blockwise(make: Make) -> list[Pair]:
    """One block is attention."""
    plain = make("attention")
    one = make("blockwise", blocks=1, max_length=LONGEST)
    one.load_state_dict(plain.state_dict())
    return [("one block is attention", partial(mixed, one), partial(mixed, plain))]


def _image_transformer(make: Make) -> list[Pair]:
    """Blocks or memories of the whole text are attention, and so is one tile of the picture."""
    plain = make("attention")
    sizes: dict[str, dict[str, Any]] = {
        "one block": {"block_size": LONGEST, "memory_size": 0},
        "a memory of all tokens": {"block_size": 3, "memory_size": LONGEST},
        "one tile": {"dims": 2, "grid": (5, 8), "tile": (5, 8), "flange": (0, 0)},
        "a flange over the picture": {
            "dims": 2, "grid": (1, LONGEST), "tile": (1, 3), "flange": (0, LONGEST)
        },
    }  # fmt: skip
    pairs: list[Pair] = []
    for what, options in sizes.items():
        local = make("image-transformer", **options)
        local.load_state_dict(plain.state_dict())
        pairs.append((f"{what} is attention", partial(mixed, local), partial(mixed, plain)))
    return pairs


def mixed(mixer: Mixer, x: Tensor) -> Tensor:
    return mixer(x).y


SPARSE_LIMITS: dict[str, Callable[[Make], list[Pair]]] = {
    "image-transformer": _image_transformer,
    "sparse-transformer": _sparse_transformer,
    "blockwise": _blockwise,
}
