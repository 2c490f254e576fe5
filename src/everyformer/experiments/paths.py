"""How far tokens are from each other through the layers of sparse patterns, counted exactly.

Sources: Zaheer et al. 2020, arXiv 2007.14062, section 2 (paths of a random graph are short, of a
window long, through a global token two steps); Beltagy et al. 2020, arXiv 2004.05150, section 3.1
(layers of windows reach the sum of their windows); Child et al. 2019, arXiv 1904.10509, section
4.2 (two layers of factorised attention reach every earlier token).
"""

from __future__ import annotations

from typing import Any

from everyformer.engines.sparse.plan import SparsePlan, distances, reached
from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import lines
from everyformer.genes.mixers._patterned import PatternAttention
from everyformer.genes.mixers.sparse_transformer import SparseTransformer
from everyformer.models.build import create_mixer

LENGTHS = (32, 64, 128, 256, 512)
BLOCK = 8
"""tokens of a block of BigBird, of which 512 tokens have 64"""
BIGBIRDS: dict[str, dict[str, Any]] = {
    "near": {"random_blocks": 0, "global_blocks": ()},
    "near and random": {"random_blocks": 3, "global_blocks": ()},
    "near and global": {"random_blocks": 0, "global_blocks": (0,)},
}
SIZE, WINDOW, STRIDE, COLUMNS = 256, 32, 16, 1
"""tokens, Longformer's window, and the stride and summary columns of the factorised sets"""
LAYERS = 8
TICKS = (1, 2, 5, 10, 20)
LINEAR, FLAT = 1.8, 1.0
"""of paths while the length doubles: factor of windows at least, steps of random blocks at most"""


@experiment(
    "twice the length doubles the layers between two tokens of windows (1.8 times at least), "
    "adds at most one with random blocks, and leaves two through global ones; two layers of "
    "strided or fixed sets reach every earlier token; m windows of w tokens reach 1 + m w",
    members=("bigbird", "longformer", "sparse-transformer"),
    minutes=1,
)
def paths(study: Study) -> Outcome:
    """Mean steps between two tokens by length; what the last token has reached layer by layer."""
    longest = 0.0
    for name, options in study.each(BIGBIRDS.items()):
        for length in LENGTHS:
            mixer = create_mixer(
                "bigbird", width=8, heads=1, causal=False, max_length=length,
                block_size=BLOCK, seed=study.seed, **options,
            )  # fmt: skip
            far = distances([_plan(mixer, length)], length)
            # a token is no step from itself
            study.keep(f"{name}, {length} tokens", float(far.sum()) / (length * (length - 1)))
            if name == "near and global":
                longest = max(longest, float(far.max()))
    numbers = study.numbers
    found = study.means()
    reach = reach_by_layer()
    for name, shares in reach.items():
        numbers[f"reached in 2 layers, {name}"] = [shares[2]]
    study.setting.say(f"paths: {len(numbers)} numbers, none of them trained")

    def of(name: str, length: int = LENGTHS[-1]) -> float:
        return found[f"{name}, {length} tokens"]

    back = reach["fixed, second set first"][2]
    sentence = (
        f"Between two of {LENGTHS[-1]:,} tokens lie on average {of('near'):.1f} layers of windows "
        f"of three blocks of {BLOCK}, {of('near and random'):.2f} with three random blocks besides "
        f"and {of('near and global'):.2f} with one global block, never more than {longest:.0f}. "
        f"Two layers reach all earlier tokens by the strided sets and by the fixed ones, "
        f"{back:.0%} of pairs if the second fixed set comes first, and {2 * (WINDOW // 2) + 1} "
        f"tokens by causal windows of {WINDOW}."
    )
    half = LENGTHS[-2]
    holds = (
        of("near") >= LINEAR * of("near", half)
        and of("near and random") - of("near and random", half) <= FLAT
        and longest == 2
        and reach["strided"][2] == reach["fixed"][2] == 1 > back
        and windows_reach()
    )
    lengths = {name: [of(name, n) for n in LENGTHS] for name in BIGBIRDS}
    labels: dict[str, Any] = {"xlabel": "tokens", "ylabel": "layers between two tokens"}
    by_length = lines(lengths, LENGTHS, ticks=True, xscale="log", yscale="log", **labels)
    by_length.axes[0].set_yticks(TICKS, [str(n) for n in TICKS])
    labels = {"xlabel": "layers", "ylabel": "earlier tokens reached", "ylim": (0, 1.05)}
    figures = {"length": by_length, "layers": lines(reach, range(LAYERS + 1), **labels)}
    return Outcome(numbers, holds, sentence, figures)


def reach_by_layer() -> dict[str, list[float]]:
    """Share of all pairs (i, j), j <= i, that some layers connect, after 0, 1, ... layers."""
    sparse = create_mixer(
        "sparse-transformer", width=8, heads=1, causal=True, max_length=SIZE,
        pattern="fixed", stride=STRIDE, columns=COLUMNS,
    )  # fmt: skip
    assert isinstance(sparse, SparseTransformer)
    strided, fixed = (
        [SparsePlan.of(*union) for union in sparse.sets_of(pattern)]
        for pattern in ("strided", "fixed")
    )
    orders = {
        f"windows of {WINDOW}": [_windows()],
        "strided": strided,
        "fixed": fixed,
        "fixed, second set first": fixed[::-1],
    }
    pairs = SIZE * (SIZE + 1) / 2
    return {
        name: [
            float(reached((plans * LAYERS)[:layers], SIZE).sum()) / pairs
            for layers in range(LAYERS + 1)
        ]
        for name, plans in orders.items()
    }


def windows_reach() -> bool:
    """Whether m layers of windows of w tokens back bring exactly 1 + m w tokens to the last one."""
    counts = [int(_windows().reach(SIZE, layers)[-1].sum()) for layers in range(1, LAYERS)]
    return counts == [1 + layers * (WINDOW // 2) for layers in range(1, LAYERS)]


def _windows() -> SparsePlan:
    mixer = create_mixer("longformer", width=8, heads=1, causal=True, window=WINDOW)
    return _plan(mixer, SIZE)


def _plan(mixer: Any, length: int) -> SparsePlan:
    assert isinstance(mixer, PatternAttention)
    return mixer.plan(length)
