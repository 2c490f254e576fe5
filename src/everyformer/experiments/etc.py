"""ETC: a task of two levels, which global tokens solve and neighbourhoods cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.experiments.base import Outcome, Study, experiment, mean, scored_accuracy
from everyformer.experiments.figures import lines
from everyformer.models.build import create_model

VALUES, NOISE = 8, 8
ASK, END = VALUES + NOISE, VALUES + NOISE + 1
SENTENCES, WORDS = 6, 6
"""of a text; the last two tokens of a sentence ask and end it"""
RADIUS, LAYERS, BATCH, STEPS = 2, 4, 32, 700
"""together four layers reach 8 tokens, the answer is 14 away at least"""
PER_SENTENCE = {"per": "sentence", "ends": (END,)}
ARMS: dict[str, dict[str, Any]] = {
    "hard g2l": {"summaries": PER_SENTENCE},
    "open g2l": {"summaries": PER_SENTENCE, "hard_g2l": False},
    "no global tokens": {"summaries": {"per": None}},
}
SOLVED, FAILED = 0.9, 0.2
LEARNED, WINDOW = 0.5, 20
"""nats of a training loss, averaged over so many steps, from which on a task counts as learned"""


def levels(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts (B, 36) of sentences of noise with one value each, anywhere in it.

    Each asks, before it ends, for the value of the sentence that is half a text away.
    """
    shape = (BATCH, SENTENCES)
    tokens = torch.randint(VALUES, VALUES + NOISE, (*shape, WORDS), generator=generator)
    values = torch.randint(0, VALUES, shape, generator=generator)
    positions = torch.randint(0, WORDS - 2, (*shape, 1), generator=generator)
    tokens = tokens.scatter(2, positions, values[..., None])
    tokens[..., -2], tokens[..., -1] = ASK, END
    targets = torch.full_like(tokens, -100)
    targets[..., -2] = values.roll(SENTENCES // 2, 1)
    return tokens.flatten(1), targets.flatten(1)


@experiment(
    "of questions for a value in a far sentence a model with a global token a sentence answers "
    "over 90%, one with the same radius and none under 20%",
    members=("etc",),
    minutes=10,
)
def far_sentences(study: Study) -> Outcome:
    """The same texts for models that differ in their global tokens alone."""
    study.order([f"{name}, answered" for name in ARMS])
    curves: dict[str, list[list[float]]] = {name: [] for name in ARMS}
    for name, options in study.each(ARMS.items()):
        inputs, targets = levels(torch.Generator().manual_seed(2000 + study.seed))
        model = create_model(
            "etc", "mlm", width=64, layers=LAYERS, heads=4, vocabulary=END + 1,
            max_length=SENTENCES * WORDS, radius=RADIUS, wiring="pre",
            **options,
        )  # fmt: skip
        curve = study.fit(model, levels, STEPS, lr=2e-3)
        curves[name].append(curve)
        share = scored_accuracy(model, inputs, targets)
        study.keep(f"{name}, answered", share)
        if "g2l" in name:
            study.keep(f"{name}, steps", float(learned_after(curve)))
        study.say(f"{name} {share:.1%}, loss {mean(curve[-WINDOW:]):.2f}")
    numbers = study.numbers
    hard, opened, alone = (study.mean(f"{name}, answered") for name in ARMS)
    fast, slow = (study.mean(f"{name}, steps") for name in list(ARMS)[:2])
    sentence = (
        f"With a global token a sentence a model of {LAYERS} layers with radius {RADIUS} answers "
        f"{hard:.1%} of questions for a value {SENTENCES // 2} sentences away after "
        f"{study.steps(STEPS)} steps ({opened:.1%} where global tokens read all sentences), "
        f"without {alone:.1%} (by chance {1 / VALUES:.1%}). Its loss is under {LEARNED} nats after "
        f"{fast:.0f} steps where global tokens read their own sentence alone, after {slow:.0f} "
        "where they read all."
    )
    solved = min(numbers["hard g2l, answered"]) > SOLVED
    failed = max(numbers["no global tokens, answered"]) < FAILED
    figure = lines(curves, smooth=WINDOW, level=LEARNED, ylim=(0, None))
    return Outcome(numbers, solved and failed, sentence, {"loss": figure})


def learned_after(curve: list[float]) -> int:
    """Steps until the mean of the last `WINDOW` losses is below `LEARNED`; all, if it never is."""
    for step in range(WINDOW, len(curve) + 1):
        if mean(curve[step - WINDOW : step]) < LEARNED:
            return step
    return len(curve)
