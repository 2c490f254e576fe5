"""Sparse patterns: needles and questions out of reach, and how far tokens are from each other.

Sources: Zaheer et al. 2020, arXiv 2007.14062, table 1 (building blocks at 512 tokens, masked
language modelling: random 60.1, window 58.3, both 62.7, with global tokens 64.4, BERT 64.2) and
sections 2 and 3 (paths in the graph of who reads whom: short in a random graph, long in a window,
two steps through a global token); Ainslie et al. 2020, arXiv 2004.08483; Beltagy et al. 2020, arXiv
2004.05150, section 3.1 (layers of windows reach the sum of their windows); Child et al. 2019, arXiv
1904.10509, section 4.2 (two layers of factorised attention reach every earlier token).
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.engines.sparse.plan import SparsePlan, distances
from everyformer.genes.mixers.patterned import PatternAttention
from everyformer.genes.mixers.sparse_transformer import SparseTransformer
from everyformer.lab.experiments.figures import lines, panels, plot_bars
from everyformer.lab.experiments.measures import mean, scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_mixer, create_model

BLOCK, BLOCKS, HEADS = 2, 64, 4
LENGTH = BLOCK * BLOCKS
NOISE, VALUES, QUESTIONS = 2, 8, 8
QUESTION = NOISE + VALUES
"""symbols: noise, needles, and the question which of them there is, asked `QUESTIONS` times"""
NEEDLES: dict[str, dict[str, Any]] = {
    "window": {"window_blocks": 7, "random_blocks": 0, "global_blocks": ()},
    "random": {"window_blocks": 1, "random_blocks": 6, "global_blocks": ()},
    "window, random": {"window_blocks": 3, "random_blocks": 4, "global_blocks": ()},
    "window, global": {"window_blocks": 5, "random_blocks": 0},
    "window, random, global": {"window_blocks": 3, "random_blocks": 2},
}
"""a block reads seven blocks in each of them"""
MARGIN = 0.3


@experiment(
    "with as many keys, windows with random or global blocks find at least 30% more needles "
    "than windows alone, and paths between blocks are shorter by a third",
    members=("bigbird",),
    minutes=16,
)
def needle(study: Study) -> Outcome:
    """Two layers find the value of a needle anywhere in a text of noise, or do not."""
    for name, options in study.each(NEEDLES.items()):
        test = hidden(torch.Generator().manual_seed(2000 + study.seed), 128)
        model = create_model(
            "bigbird", "mlm", width=64, layers=2, heads=HEADS, vocabulary=QUESTION + 1,
            max_length=LENGTH, position=None, block_size=BLOCK, seed=study.seed, **options,
        )  # fmt: skip
        study.fit(model, hidden, 400, lr=2e-3)
        right, able = scored_accuracy(model, *test), within_reach(model, *test)
        step = plans_of(model)[0].mask(LENGTH, HEADS).any(0)[::BLOCK, ::BLOCK]
        far = distances([step])
        length = float(far.sum()) / (len(far) * (len(far) - 1))
        study.keep(f"{name}, found", right)
        study.keep(f"{name}, within reach", able)
        study.keep(f"{name}, mean path", length)
        study.say(
            f"{name} {right:.1%} found, {able:.1%} within reach, paths of {length:.2f} layers, at "
            f"most {float(far.max()):g}"
        )
    each = "; ".join(
        f"{name} [{name}, found|.0%] ([{name}, within reach|.0%] within reach, mean path "
        f"[{name}, mean path|.2f])"
        for name in NEEDLES
    )
    sentence = (
        f"Two layers in which each of {BLOCKS} blocks of {BLOCK} tokens reads seven blocks find a "
        f"needle's value (chance {1 / VALUES:.0%}): {each}."
    )
    shares, paths = (
        {name: study.mean(f"{name}, {number}") for name in NEEDLES}
        for number in ("found", "mean path")
    )
    mixed = [name for name in NEEDLES if name.startswith("window, ")]
    better = all(shares[name] > shares["window"] + MARGIN for name in mixed)
    shorter = all(1.5 * paths[name] < paths["window"] for name in mixed)
    figure, [left, right_axis] = panels(2, (8, 3))
    plot_bars(left, shares, ylabel="needles found", ylim=(0, 1))
    left.axhline(1 / VALUES, color="grey", linestyle=":")
    plot_bars(right_axis, paths, ylabel="layers between two blocks, mean")
    return study.outcome(better and shorter, sentence, needle=figure)


def hidden(generator: torch.Generator, rows: int = 32) -> tuple[Tensor, Tensor]:
    """Noise with a needle and questions anywhere else that ask for its value."""
    inputs = torch.randint(0, NOISE, (rows, LENGTH), generator=generator)
    targets = torch.full_like(inputs, -100)
    values = torch.randint(0, VALUES, (rows, 1), generator=generator)
    positions = torch.rand(rows, LENGTH, generator=generator).topk(1 + QUESTIONS).indices
    inputs.scatter_(1, positions, QUESTION)
    inputs.scatter_(1, positions[:, :1], NOISE + values)
    targets.scatter_(1, positions[:, 1:], (NOISE + values).expand(-1, QUESTIONS))
    return inputs, targets


def plans_of(model: Model) -> list[SparsePlan]:
    """Pattern of each layer."""
    return [plan_of(block.mixer, LENGTH) for block in model.stack.blocks]


def within_reach(model: Model, inputs: Tensor, targets: Tensor) -> float:
    """Share of questions whose needle the layers reach."""
    seen = [plan.mask(LENGTH, HEADS).any(0) for plan in plans_of(model)]
    reach = distances(seen) <= len(seen)
    needles = ((inputs >= NOISE) & (inputs < NOISE + VALUES)).long().argmax(1)
    row, position = (targets != -100).nonzero(as_tuple=True)
    return float(reach[position, needles[row]].float().mean())


WORDS, NOISES, SENTENCES = 6, 8, 6
"""of a text of sentences; the last two tokens of a sentence ask and end it"""
ASK, END = VALUES + NOISES, VALUES + NOISES + 1
RADIUS, LAYERS, STEPS = 2, 4, 700
"""together four layers reach 8 tokens, the answer is 14 away at least"""
PER_SENTENCE = {"per": "sentence", "ends": (END,)}
GLOBALS: dict[str, dict[str, Any]] = {
    "hard g2l": {"summaries": PER_SENTENCE},
    "open g2l": {"summaries": PER_SENTENCE, "hard_g2l": False},
    "no global tokens": {"summaries": {"per": None}},
}
SOLVED, FAILED = 0.9, 0.2
LEARNED, WINDOW = 0.5, 20
"""nats of a training loss, averaged over so many steps, from which on a task counts as learned"""


@experiment(
    "of questions for a value in a far sentence a model with a global token a sentence answers "
    "over 90%, one with the same radius and none under 20%",
    members=("etc",),
    minutes=10,
)
def far_sentences(study: Study) -> Outcome:
    """Questions across sentences, for models that differ in their global tokens alone."""
    study.order(f"{name}, answered" for name in GLOBALS)
    curves: dict[str, list[list[float]]] = {}
    sizes: dict[str, Any] = {
        "width": 64, "layers": LAYERS, "heads": 4, "vocabulary": END + 1, "radius": RADIUS,
        "max_length": SENTENCES * WORDS, "wiring": "pre", "task": "mlm",
    }  # fmt: skip
    for name, model in study.models(GLOBALS, levels, STEPS, member="etc", lr=2e-3, **sizes):
        test = levels(torch.Generator().manual_seed(2000 + study.seed))
        curve = study.losses[name]
        curves.setdefault(name, []).append(curve)
        share = scored_accuracy(model, *test)
        study.keep(f"{name}, answered", share)
        if "g2l" in name:
            study.keep(f"{name}, steps", float(learned_after(curve)))
        study.say(f"{name} {share:.1%}, loss {mean(curve[-WINDOW:]):.2f}")
    sentence = (
        f"With a global token a sentence a model of {LAYERS} layers with radius {RADIUS} answers "
        f"[hard g2l, answered|.1%] of questions for a value {SENTENCES // 2} sentences away after "
        f"{study.steps(STEPS)} steps ([open g2l, answered|.1%] where global tokens read all "
        f"sentences), without [no global tokens, answered|.1%] (by chance {1 / VALUES:.1%}). Its "
        f"loss is under {LEARNED} nats after [hard g2l, steps|.0f] steps where global tokens read "
        "their own sentence alone, after [open g2l, steps|.0f] where they read all."
    )
    solved = min(study.numbers["hard g2l, answered"]) > SOLVED
    failed = max(study.numbers["no global tokens, answered"]) < FAILED
    figure = lines(curves, smooth=WINDOW, level=LEARNED, ylim=(0, None))
    return study.outcome(solved and failed, sentence, loss=figure)


def levels(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts (32, 36) of sentences of noise with one value each, anywhere in it.

    Each asks, before it ends, for the value of the sentence that is half a text away.
    """
    shape = (32, SENTENCES)
    tokens = torch.randint(VALUES, VALUES + NOISES, (*shape, WORDS), generator=generator)
    values = torch.randint(0, VALUES, shape, generator=generator)
    positions = torch.randint(0, WORDS - 2, (*shape, 1), generator=generator)
    tokens = tokens.scatter(2, positions, values[..., None])
    tokens[..., -2], tokens[..., -1] = ASK, END
    targets = torch.full_like(tokens, -100)
    targets[..., -2] = values.roll(SENTENCES // 2, 1)
    return tokens.flatten(1), targets.flatten(1)


def learned_after(curve: list[float]) -> int:
    """Steps until the mean of the last `WINDOW` losses is below `LEARNED`; all, if it never is."""
    steps = range(WINDOW, len(curve) + 1)
    learned = (step for step in steps if mean(curve[step - WINDOW : step]) < LEARNED)
    return next(learned, len(curve))


LENGTHS = (32, 64, 128, 256, 512)
BIGBIRDS: dict[str, dict[str, Any]] = {
    "near": {"random_blocks": 0, "global_blocks": ()},
    "near and random": {"random_blocks": 3, "global_blocks": ()},
    "near and global": {"random_blocks": 0, "global_blocks": (0,)},
}
"""blocks of 8 tokens, of which 512 tokens have 64"""
SIZE, SPAN = 256, 32
"""tokens, and Longformer's window"""
DEPTH = 8
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
                block_size=8, seed=study.seed, **options,
            )  # fmt: skip
            far = distances([plan_of(mixer, length).mask(length)[0]])
            # a token is no step from itself
            study.keep(f"{name}, {length} tokens", float(far.sum()) / (length * (length - 1)))
            if name == "near and global":
                longest = max(longest, float(far.max()))
    curves = {name: study.series(name + ", {} tokens", LENGTHS) for name in BIGBIRDS}
    reach = reach_by_layer()
    for name, shares in reach.items():
        study.numbers[f"reached in 2 layers, {name}"] = [shares[2]]
    study.setting.say(f"paths: {len(study.numbers)} numbers, none of them trained")
    back = reach["fixed, second set first"][2]
    near, random, through = (values[-1] for values in curves.values())
    sentence = (
        f"Between two of {LENGTHS[-1]:,} tokens lie on average {near:.1f} layers of windows of "
        f"three blocks of 8, {random:.2f} with three random blocks besides and {through:.2f} with "
        f"one global block, never more than {longest:.0f}. Two layers reach all earlier tokens by "
        f"the strided sets and by the fixed ones, {back:.0%} of pairs if the second fixed set "
        f"comes first, and {2 * (SPAN // 2) + 1} tokens by causal windows of {SPAN}."
    )
    holds = (
        near >= LINEAR * curves["near"][-2]
        and random - curves["near and random"][-2] <= FLAT
        and longest == 2
        and reach["strided"][2] == reach["fixed"][2] == 1 > back
        and windows_reach()
    )
    labels = "tokens", "layers between two tokens"
    by_length = lines(curves, LENGTHS, labels, ticks=True, xscale="log", yscale="log")
    by_length.axes[0].set_yticks(TICKS, [str(n) for n in TICKS])
    labels = "layers", "earlier tokens reached"
    by_layer = lines(reach, range(DEPTH + 1), labels, ylim=(0, 1.05))
    return study.outcome(holds, sentence, length=by_length, layers=by_layer)


def reach_by_layer() -> dict[str, list[float]]:
    """Share of all pairs (i, j), j <= i, that some layers connect, after 0, 1, ... layers."""
    sparse = create_mixer(
        "sparse-transformer", width=8, heads=1, causal=True, max_length=SIZE,
        pattern="fixed", stride=16, columns=1,
    )  # fmt: skip
    assert isinstance(sparse, SparseTransformer)
    strided, fixed = (
        [SparsePlan.of(*union) for union in sparse.sets_of(pattern)]
        for pattern in ("strided", "fixed")
    )
    orders = {
        f"windows of {SPAN}": [windows_plan()],
        "strided": strided,
        "fixed": fixed,
        "fixed, second set first": fixed[::-1],
    }
    pairs = SIZE * (SIZE + 1) / 2
    far = {name: distances([p.mask(SIZE)[0] for p in plans]) for name, plans in orders.items()}
    return {
        name: [float((each <= n).sum()) / pairs for n in range(DEPTH + 1)]
        for name, each in far.items()
    }


def windows_reach() -> bool:
    """True if m layers of windows of w tokens back bring exactly 1 + m w tokens to the last one."""
    last = distances([windows_plan().mask(SIZE)[0]])[-1]
    counts = [int((last <= layers).sum()) for layers in range(1, DEPTH)]
    return counts == [1 + layers * (SPAN // 2) for layers in range(1, DEPTH)]


def windows_plan() -> SparsePlan:
    """Causal windows of Longformer."""
    return plan_of(create_mixer("longformer", width=8, heads=1, causal=True, window=SPAN), SIZE)


def plan_of(mixer: Any, length: int) -> SparsePlan:
    """Pattern of so many tokens."""
    assert isinstance(mixer, PatternAttention)
    return mixer.plan(length)
