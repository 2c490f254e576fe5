"""Blockwise attention: what it saves with n blocks, what it loses, and what shifted heads give."""

from __future__ import annotations

from typing import Any

import torch

from everyformer.engines.flops import count_flops
from everyformer.experiments.base import Outcome, Study, experiment, held_out, load, scored_accuracy
from everyformer.experiments.figures import panels, plot, plot_bars
from everyformer.experiments.sinkhorn import DISTANCE, SYMBOLS, gaps
from everyformer.genes.mixers._patterned import PatternAttention
from everyformer.models.build import create_mixer, create_model

COUNTS = (1, 2, 4, 8)
"""n of the layers whose cost is counted"""
LENGTH, WIDTH, HEADS = 2048, 64, 4
TEXT = 192
"""bytes of a text of the masked models"""
COPIERS: dict[str, dict[str, Any]] = {
    "3 heads stay, 1 shifts": {"groups": (3, 1)},
    "all heads stay": {"groups": (4,)},
}
MARGIN, NEAR = 0.3, 0.05


@experiment(
    "a layer makes 1 / n of attention's scores; masked models with 2 and 3 blocks lose at most "
    "5% more; one shifted head of four copies at least 30% more symbols of the other block "
    "than heads that all stay",
    members=("blockwise",),
    minutes=8,
)
def blocks(study: Study) -> Outcome:
    """Scores and operations of a layer; masked models of n blocks; copying across blocks."""
    scores = {n: scores_of(n) for n in COUNTS}
    data = load("mlm", source="stdlib", length=TEXT)
    arms = {f"masked text, n={n}": ("blockwise", {"blocks": n}) for n in (1, 2, 3)}
    sizes = {"width": 96, "layers": 3, "heads": 6}
    for name, model in study.models(arms, data, 16, 500, position="learned", **sizes):
        study.keep(name, held_out(model, data, "loss", limit=256), "{:.3f} nats a hidden byte")
    for seed in study.seeds():
        inputs, targets = gaps(torch.Generator().manual_seed(1000 + seed))
        for name, options in study.arms(COPIERS.items()):
            model = create_model(
                "blockwise", "mlm", width=64, layers=1, heads=4, vocabulary=SYMBOLS + 1,
                max_length=2 * DISTANCE, position="learned", blocks=2, **options,
            )  # fmt: skip
            study.fit(model, gaps, 600, lr=3e-3)
            copied = scored_accuracy(model, inputs, targets)
            study.keep(f"copied, {name}", copied)
            study.say(f"{name} {copied:.1%}")
    numbers = study.numbers
    whole, two, three = (study.mean(f"masked text, n={n}") for n in (1, 2, 3))
    moved, stayed = (study.mean(f"copied, {name}") for name in COPIERS)
    pairs, operations = scores[1]
    shares = ", ".join(
        f"{scores[n][0] / pairs:.1%} and {scores[n][1] / operations:.0%} with {n}"
        for n in COUNTS[1:]
    )
    sentence = (
        f"Of attention's scores and operations a layer of {LENGTH:,} tokens (width {WIDTH}) makes "
        f"{shares} blocks. Masked models lose {whole:.3f} nats a hidden byte with one block, "
        f"{two:.3f} with two and {three:.3f} with three. Of symbols in the other block a layer "
        f"copies {moved:.1%} where one head of four shifts, {stayed:.1%} where none does."
    )
    inverse = all(scores[n][0] * n == pairs for n in COUNTS)
    close = max(two, three) < whole * (1 + NEAR)
    apart = min(numbers["copied, 3 heads stay, 1 shifts"]) > stayed + MARGIN
    holds = inverse and close and apart
    figure, [cost, text, copy] = panels(3, (10, 3))
    part: dict[str, list[float]] = {
        what: [scores[count][n] / scores[1][n] for count in COUNTS]
        for n, what in enumerate(("scores", "operations"))
    }
    part["1 / n"] = [1 / n for n in COUNTS]
    plot(cost, part, COUNTS, xlabel="blocks n", ylabel="share of attention's", ylim=(0, 1.05))
    cost.set_xticks(COUNTS)
    for axis, kind, label in (
        (text, "masked text", "nats a hidden byte"), (copy, "copied", "share copied"),
    ):  # fmt: skip
        of_kind = {n: value for n, value in study.means().items() if n.startswith(kind)}
        plot_bars(axis, {n[len(kind) + 2 :]: value for n, value in of_kind.items()}, ylabel=label)
    text.set_ylim(bottom=0.9 * whole)
    return Outcome(numbers, holds, sentence, {"cost": figure})


def scores_of(blocks: int) -> tuple[int, int]:
    """Scores, and floating-point operations forward, of a layer with n ``blocks``."""
    mixer = create_mixer(
        "blockwise", width=WIDTH, heads=HEADS, max_length=LENGTH, blocks=blocks, backend="blocked"
    )
    assert isinstance(mixer, PatternAttention)
    x = torch.zeros(1, LENGTH, WIDTH)
    with torch.no_grad():
        operations = count_flops(lambda: mixer(x))
    return mixer.plan(LENGTH).pairs(LENGTH, HEADS), operations
