"""Sparse patterns: needles and questions out of reach.

Sources: Zaheer et al. 2020, arXiv 2007.14062, table 1 (building blocks at 512 tokens, masked
language modelling: random 60.1, window 58.3, both 62.7, with global tokens 64.4, BERT 64.2) and
sections 2 and 3 (paths in the graph of who reads whom: short in a random graph, long in a window,
two steps through a global token); Ainslie et al. 2020, arXiv 2004.08483.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.engines.sparse.plan import SparsePlan, distances
from everyformer.lab.experiments.figures import Bars, Lines
from everyformer.lab.experiments.measures import mean, scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model

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
        test = study.fresh(hidden, 2000, 128)
        model: Any = create_model(
            "bigbird", "mlm", width=64, layers=2, heads=HEADS, vocabulary=QUESTION + 1,
            max_length=LENGTH, position=None, block_size=BLOCK, seed=study.seed, **options,
        )  # fmt: skip
        study.fit(model, hidden, 400, lr=2e-3)
        plans = [block.mixer.plan(LENGTH) for block in model.stack.blocks]
        right, able = scored_accuracy(model, *test), within_reach(plans, *test)
        step = plans[0].mask(LENGTH, HEADS).any(0)[::BLOCK, ::BLOCK]
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
    found = {name: study.numbers[f"{name}, found"] for name in NEEDLES}
    figure = [
        Bars(found, "needles found", level=1 / VALUES, top=1),
        Bars(paths, "layers between two blocks, mean"),
    ]
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


def within_reach(plans: list[SparsePlan], inputs: Tensor, targets: Tensor) -> float:
    """Share of questions whose needle the layers reach."""
    reach = distances([plan.mask(LENGTH, HEADS).any(0) for plan in plans]) <= len(plans)
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
    sizes: dict[str, Any] = {
        "width": 64, "layers": LAYERS, "heads": 4, "vocabulary": END + 1, "radius": RADIUS,
        "max_length": SENTENCES * WORDS, "residual": "pre", "task": "mlm",
    }  # fmt: skip
    for name, model in study.models(GLOBALS, levels, STEPS, member="etc", lr=2e-3, **sizes):
        curve = study.losses[name][-1]
        share = scored_accuracy(model, *study.fresh(levels, 2000))
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
    figure = Lines(study.losses, smooth=WINDOW, levels={"learned": LEARNED}, limits=(0, None))
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
