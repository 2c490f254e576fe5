"""Sparse Transformer: strided and fixed sets on pictures of columns and on text, and their cost."""

from __future__ import annotations

import math

import torch

from everyformer.engines.flops import count_flops
from everyformer.experiments.base import Outcome, Study, experiment, fitting, held_out, load
from everyformer.experiments.figures import panels, plot
from everyformer.experiments.pictures import COLUMNS, ROWS, bits, columns, drawn, least_bits
from everyformer.genes.mixers.sparse_transformer import SparseTransformer
from everyformer.models.build import create_model

PATTERNS = ("strided", "fixed")
LENGTH, STRIDE, SUMMARIES = 512, 64, 16
"""of text: a quarter of each stride are summaries, as in the paper (128 and 32)"""
SHORT, LONG = 2**14, 2**16
"""lengths whose units are as full as each other: strides of 128 and 256"""
PICTURES_AHEAD, TEXT_AHEAD = 0.5, 0.02


@experiment(
    "strided sets need at least 0.5 bits/dim less than fixed ones on pictures of columns, "
    "fixed ones at least 0.02 bits a byte less than strided ones on text, and the operations "
    "of both grow like L^1.5 (within 0.1)",
    members=("sparse-transformer",),
    minutes=10,
)
def factorised(study: Study) -> Outcome:
    """Both sets in one softmax; strides of a row of the picture, and of 64 bytes for the text.

    Weights start by each part's own rule: the published start is for deep networks, and these are
    small and learn for minutes.
    """
    text = load("lm", source="stdlib", length=LENGTH)
    test = columns(200, torch.Generator().manual_seed(99))
    curves: dict[str, list[float]] = {}
    for _ in study.seeds():
        for pattern in study.arms(PATTERNS):
            model = create_model(
                "sparse-transformer", "pixels", width=64, layers=2, heads=4, init="member",
                image=(1, ROWS, COLUMNS), pattern=pattern, **summaries(pattern, 2),
            )  # fmt: skip
            name = f"pictures, {pattern}"
            curves[name] = study.fit(model, drawn, 300, lr=3e-3)
            study.keep(name, bits(model, test), "{:.3f} bits/dim")
        for pattern in study.arms(PATTERNS):
            model = fitting(
                text, "sparse-transformer", width=64, layers=3, heads=4, init="member",
                pattern=pattern, stride=STRIDE, **summaries(pattern, SUMMARIES),
            )  # fmt: skip
            name = f"text, {pattern}"
            curves[name] = study.fit(model, (text, 2), 1000, lr=3e-3)
            found = held_out(model, text, "bits_per_byte", limit=64)
            study.keep(name, found, "{:.3f} bits a byte")
    numbers = study.numbers
    for pattern in PATTERNS:
        numbers[f"exponent, {pattern}"] = [exponent(pattern)]
    means = study.means()
    pictures = means["pictures, fixed"] - means["pictures, strided"]
    words = means["text, strided"] - means["text, fixed"]
    sentence = (
        f"Pictures of columns (least possible {least_bits():.3f} bits/dim): strided "
        f"{means['pictures, strided']:.3f}, fixed {means['pictures, fixed']:.3f}. Python's source, "
        f"{LENGTH} bytes at a time: strided {means['text, strided']:.3f} bits a byte, fixed "
        f"{means['text, fixed']:.3f}. Counted operations of attention from {SHORT:,} to {LONG:,} "
        f"tokens grow like L^{means['exponent, strided']:.2f} (strided) and "
        f"L^{means['exponent, fixed']:.2f} (fixed)."
    )
    near = all(abs(means[f"exponent, {pattern}"] - 1.5) < 0.1 for pattern in PATTERNS)
    holds = pictures > PICTURES_AHEAD and words > TEXT_AHEAD and near
    figure, axes = panels(2, (8, 3))
    for axis, what in zip(axes, ("pictures", "text"), strict=True):
        bits_of = {p: [loss / math.log(2) for loss in curves[f"{what}, {p}"]] for p in PATTERNS}
        plot(axis, bits_of, smooth=20, title=what, ylabel="bits")
    return Outcome(numbers, holds, sentence, {"loss": figure})


def summaries(pattern: str, columns: int) -> dict[str, int]:
    """Summary columns, for the pattern that has some."""
    return {"columns": columns} if pattern == "fixed" else {}


def exponent(pattern: str) -> float:
    """The power of the length by which operations between queries, keys and values grow."""

    def operations(length: int) -> int:
        options = {"pattern": pattern, "backend": "blocked"}
        mixer = SparseTransformer(width=8, causal=True, max_length=length, options=options)
        x = torch.zeros(1, length, 8)
        projections = 2 * length * 8 * 8 * 4
        return count_flops(lambda: mixer(x)) - projections

    return math.log(operations(LONG) / operations(SHORT)) / math.log(LONG / SHORT)
