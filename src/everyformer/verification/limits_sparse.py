"""Law 5 of members with sparse patterns: patterns that show all pairs are plain attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from everyformer.core.mixer import Mixer
from everyformer.verification.cases import LONGEST
from everyformer.verification.limits_genes import LENGTH, Make, Pair


def _sparse_transformer(make: Make) -> list[Pair]:
    """The first set is all tokens if the stride is as long as the text, the second if it is 1."""
    plain = make("attention")
    pairs: list[Pair] = []
    for stride, mode in ((LONGEST, "merged"), (1, "merged")):
        for pattern in ("strided", "fixed"):
            own = {"columns": 1} if pattern == "fixed" else {}
            sparse = make("sparse-transformer", stride=stride, pattern=pattern, mode=mode, **own)
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


def _etc(make: Make) -> list[Pair]:
    """Without labels, and with a radius of the whole text, it is attention."""
    plain = make("attention")
    wide = make("etc", radius=LONGEST)
    own = plain.state_dict()
    rows = own.pop("project.weights.0").chunk(3)
    names = ("long.query.weight", "long.key.any.weight", "long.value.any.weight")
    wide.load_state_dict({**own, **dict(zip(names, rows, strict=True))}, strict=False)
    for labels in (wide.long_labels, wide.summary_labels):
        labels.vectors.data.zero_()
        labels.numbers.data.zero_()
    return [("without labels it is attention", partial(mixed, wide), partial(mixed, plain))]


def _longformer(make: Make) -> list[Pair]:
    """A window over everything is attention; so are tokens that are all global."""
    plain = make("attention")
    names: dict[str, dict[str, Any]] = {
        "window >= 2 L": {"window": 2 * LENGTH},
        "window >= 2 L with global tokens": {"window": 2 * LENGTH, "global_tokens": (0, 3)},
        "all tokens global": {"window": 0, "global_tokens": LENGTH},
    }
    pairs: list[Pair] = []
    for what, options in names.items():
        wide = make("longformer", **options)
        wide.load_state_dict(plain.state_dict(), strict=False)
        if wide.project_global is not None:
            wide.copy_projections()
        pairs.append((f"{what} is attention", partial(mixed, wide), partial(mixed, plain)))
    return pairs


def _bigbird(make: Make) -> list[Pair]:
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
        pairs.append((f"{what} is attention", partial(mixed, wide), partial(mixed, plain)))
    return pairs


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
    "etc": _etc,
    "longformer": _longformer,
    "bigbird": _bigbird,
}
