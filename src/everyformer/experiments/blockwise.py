"""Blockwise attention: what it saves with n blocks, what it loses, and what shifted heads give."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.engines.flops import count_flops
from everyformer.experiments.base import (
    Experiment,
    Outcome,
    Setting,
    Trials,
    held_out,
    mean,
    scored_accuracy,
)
from everyformer.experiments.sinkhorn import DISTANCE, SYMBOLS, gaps
from everyformer.mixers._patterned import PatternAttention
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


def blockwise(setting: Setting) -> Outcome:
    """Scores and operations of a layer; masked models of n blocks; copying across blocks."""
    scores = {n: scores_of(n) for n in COUNTS}
    trials = Trials(setting, "blocks")
    data = load_dataset(DataConfig(source="stdlib", length=TEXT), "mlm")
    for seed in trials.seeds():
        for blocks in trials.arms((1, 2, 3)):
            model = create_model(
                "blockwise", "mlm", width=96, layers=3, heads=6, vocabulary=data.vocabulary,
                max_length=TEXT, position="learned", blocks=blocks,
            )  # fmt: skip
            trials.fit(model, (data, 16), 500)
            loss = held_out(model, data, "loss", limit=256)
            trials.keep(f"masked text, n={blocks}", loss)
            trials.say(f"n={blocks} {loss:.3f} nats a hidden byte")
        inputs, targets = gaps(torch.Generator().manual_seed(1000 + seed))
        for name, options in trials.arms(COPIERS.items()):
            model = create_model(
                "blockwise", "mlm", width=64, layers=1, heads=4, vocabulary=SYMBOLS + 1,
                max_length=2 * DISTANCE, position="learned", blocks=2, **options,
            )  # fmt: skip
            trials.fit(model, gaps, 600, lr=3e-3)
            copied = scored_accuracy(model, inputs, targets)
            trials.keep(f"copied, {name}", copied)
            trials.say(f"{name} {copied:.1%}")
    numbers = trials.numbers
    whole, two, three = (mean(numbers[f"masked text, n={n}"]) for n in (1, 2, 3))
    moved, stayed = (mean(numbers[f"copied, {name}"]) for name in COPIERS)
    made, operations = scores[1]
    shares = ", ".join(
        f"{scores[n][0] / made:.1%} and {scores[n][1] / operations:.0%} with {n}"
        for n in COUNTS[1:]
    )
    sentence = (
        f"Of attention's scores and operations a layer of {LENGTH:,} tokens (width {WIDTH}) makes "
        f"{shares} blocks. Masked models lose {whole:.3f} nats a hidden byte with one block, "
        f"{two:.3f} with two and {three:.3f} with three. Of symbols in the other block a layer "
        f"copies {moved:.1%} where one head of four shifts, {stayed:.1%} where none does."
    )
    inverse = all(scores[n][0] * n == made for n in COUNTS)
    close = max(two, three) < whole * (1 + NEAR)
    apart = min(numbers["copied, 3 heads stay, 1 shifts"]) > stayed + MARGIN
    holds = inverse and close and apart
    return Outcome(numbers, holds, sentence, {"cost": _figure(scores, numbers)})


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


def _figure(scores: dict[int, tuple[int, int]], numbers: dict[str, list[float]]) -> Figure:
    figure = Figure(figsize=(10, 3))
    axes: list[Axes] = list(figure.subplots(1, 3))
    for n, what in enumerate(("scores", "operations")):
        share = [scores[count][n] / scores[1][n] for count in COUNTS]
        axes[0].plot(COUNTS, share, "o-", label=what)
    axes[0].plot(COUNTS, [1 / n for n in COUNTS], ":", color="grey", label="1 / n")
    axes[0].set(xlabel="blocks n", ylabel="share of attention's", ylim=(0, 1.05))
    axes[0].set_xticks(COUNTS)
    axes[0].legend()
    kinds = itertools.groupby(numbers, lambda name: name.split(",")[0])
    for axis, (kind, names) in zip(axes[1:], kinds, strict=True):
        chosen = list(names)
        labels = [name.split(", ", 1)[1].replace(", ", ",\n") for name in chosen]
        axis.bar(labels, [mean(numbers[name]) for name in chosen])
        axis.set_ylabel("share copied" if kind == "copied" else "nats a hidden byte")
    lowest = min(min(values) for name, values in numbers.items() if name.startswith("masked"))
    axes[1].set_ylim(bottom=0.9 * lowest)
    figure.tight_layout()
    return figure


EXPERIMENTS = (
    Experiment(
        "blocks",
        ("blockwise",),
        "a layer makes 1 / n of attention's scores; masked models with 2 and 3 blocks lose at most "
        "5% more; one shifted head of four copies at least 30% more symbols of the other block "
        "than heads that all stay",
        8,
        blockwise,
    ),
)
