"""Spans of heads: a stream of bigrams in which every other character repeats one far back.

A character follows the one before by a table of bigrams or, with a chance of one half, repeats the
one 48 before it, which a token that foretells it sees at a distance of 47. So one head that looks
that far is enough, and the others need the nearest tokens alone.

Spans start over the whole window and are drawn in by their penalty: a head that sees 8 tokens has
no gradient that tells of the 47th (seen with spans that start at 0, which stayed there). They learn
at 4 times the rate of the other weights, so that they come to rest in so few steps.

Source: Sukhbaatar et al. 2019, arXiv 1905.07799, whose heads are few long ones among short ones.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from everyformer.core.trace import trace
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.measures import mean
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_model

LETTERS, LAG, ROWS = 16, 48, 4
WINDOW, LAYERS, HEADS = 256, 2, 4
COSTS = (1e-5, 1e-4, 1e-3, 1e-2)
"""values of lambda"""
MAIN = 1e-3
"""lambda of the claim about heads"""
SMALL, NOISE = 32.0, 0.03
"""tokens that the mean span is under; nats"""


@experiment(
    f"with lambda = {MAIN:g} some head looks back to what comes again ({LAG - 1} tokens) while the "
    f"mean span is under {SMALL:g} of {WINDOW}, within {NOISE:g} nats of spans that stay at "
    f"{WINDOW}; mean spans fall with lambda",
    members=("adaptive-span",),
    minutes=15,
)
def spans(study: Study) -> Outcome:
    """Spans that stay over the whole window, and spans that are learned at four penalties."""
    by_head: dict[str, list[list[float]]] = {}
    for _ in study.seeds():
        for cost in study.arms((None, *COSTS)):
            model, arm = build(cost), "fixed" if cost is None else f"lambda {cost:g}"
            study.fit(model, texts, 400, weight_decay=0.0)
            loss, heads = measured(model, study.seed)
            study.keep(f"{arm}: loss", loss)
            if cost is not None:
                by_head.setdefault(f"lambda = {cost:g}", []).append(sorted(heads, reverse=True))
                study.keep(f"{arm}: mean span", mean(heads))
                study.keep(f"{arm}: longest span", max(heads))
        study.say(study.latest(".3f"))
    lengths, losses = (study.series(f"lambda {{:g}}: {n}", COSTS) for n in ("mean span", "loss"))
    sentence = (
        f"At lambda = {', '.join(f'{cost:g}' for cost in COSTS)} the mean span is "
        f"{', '.join(f'{length:.1f}' for length in lengths)} tokens, ramp included, and the loss "
        f"{', '.join(f'{loss:.3f}' for loss in losses)} nats, [fixed: loss|.3f] with spans of "
        f"{WINDOW}. At lambda = {MAIN:g} the longest of {LAYERS * HEADS} spans is "
        f"[lambda {MAIN:g}: longest span|.1f]."
    )
    # the ramp ends after the key that is needed
    reaches = min(study.numbers[f"lambda {MAIN:g}: longest span"]) > LAG - 2
    falls = all(a > b for a, b in itertools.pairwise(lengths))
    at = COSTS.index(MAIN)
    near, small = losses[at] - study.mean("fixed: loss") < NOISE, lengths[at] < SMALL
    kinds = ("mean span", "longest span")
    curves = {kind: study.curves(f"lambda {{:g}}: {kind}", COSTS) for kind in kinds}
    lag = {"distance of what comes again": LAG - 1.0}
    ranks = range(1, LAYERS * HEADS + 1)
    figure = [
        Lines(curves, COSTS, ("lambda", "tokens"), log="x", levels=lag),
        Lines(by_head, ranks, ("heads, longest first", "span (tokens)"), levels=lag),
    ]
    return study.outcome(reaches and falls and near and small, sentence, spans=figure)


def build(cost: float | None) -> Model:
    """A model whose spans have this penalty; None: they stay."""
    options: dict[str, Any] = {"width": 64, "layers": LAYERS, "heads": HEADS}
    model = create_model(
        "adaptive-span", vocabulary=LETTERS, max_length=WINDOW, window=WINDOW, ramp=8, start=1.0,
        penalty=cost or 0.0, span_lr=4.0, **options,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if cost is None and name.endswith("mixer.spans"):
            parameter.requires_grad_(False)
    return model


def texts(generator: torch.Generator, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Characters (B, L) and those that follow them."""
    table = torch.rand(LETTERS, LETTERS, generator=torch.Generator().manual_seed(0)).pow(8)
    table = (table / table.sum(1, keepdim=True)).cumsum(1)
    total = WINDOW + 1
    text = torch.randint(LETTERS, (rows, total), generator=generator)
    chance = torch.rand(rows, total, generator=generator)
    copied = torch.rand(rows, total, generator=generator) < 0.5
    for t in range(1, total):
        follows = (chance[:, t, None] > table[text[:, t - 1]]).sum(1).clamp(max=LETTERS - 1)
        text[:, t] = follows if t < LAG else torch.where(copied[:, t], text[:, t - LAG], follows)
    return text[:, :-1], text[:, 1:]


@torch.no_grad()
def measured(model: Model, seed: int) -> tuple[float, list[float]]:
    """The loss on fresh texts, and the span of every head of every layer, ramp included."""
    inputs, targets = texts(torch.Generator().manual_seed(1_000_000 + seed), 32)
    with trace(model) as traced:
        model(inputs[:1])
    heads = [span for layer in traced.find("spans").values() for span in layer.tolist()]
    return float(model(inputs, targets=targets).losses["task"]), heads
