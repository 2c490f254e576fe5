"""Sparse Sinkhorn attention: what lies in a far block is sorted in, and how sharply."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from everyformer.core.trace import trace
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.experiments.base import (
    Experiment,
    Outcome,
    Setting,
    dataset_batches,
    fit,
    mean,
    scored_accuracy,
)
from everyformer.models.build import create_model

BLOCK = 8
DISTANCE = 2 * BLOCK
"""from a symbol to its copy"""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sinkhorn": ("sinkhorn", {"block_size": BLOCK, "sort_net": "bilinear"}),
    "attention, window 16": ("attention", {"window": 2 * BLOCK}),
}
MARGIN = 0.3


def far_block(setting: Setting) -> Outcome:
    """Copying 16 symbols in one layer whose queries read 16 keys, the nearest or 8 sorted in."""
    data = load_dataset(DataConfig(source="copy", length=2 * DISTANCE, symbols=16), "lm")
    numbers: dict[str, list[float]] = {name: [] for name in ARMS}
    numbers |= {"entropy of P at the start, nats": [], "entropy of P, nats": []}
    curves: dict[str, list[float]] = {}
    shown: list[Tensor] = []
    for seed in range(setting.seeds):
        for name, (member, options) in ARMS.items():
            torch.manual_seed(seed)
            model = create_model(
                member, width=64, layers=1, heads=4, vocabulary=data.vocabulary,
                max_length=data.length, position="learned", **options,
            )  # fmt: skip
            held = next(iter(data.validation_batches(256, 256)))
            start = sort_matrices(model, held.inputs) if name == "sinkhorn" else None
            batches = dataset_batches(data, 32, seed)
            curves[name] = fit(model, batches, steps=setting.steps(700), lr=5e-3, seed=seed)
            numbers[name].append(scored_accuracy(model, held.inputs, held.targets))
            if start is not None:
                after = sort_matrices(model, held.inputs)
                numbers["entropy of P at the start, nats"].append(entropy(start))
                numbers["entropy of P, nats"].append(entropy(after))
                shown = [start[0], after[0]]
            setting.say(f"far-block, seed {seed}: {name} {numbers[name][-1]:.1%}")
    found, local, before, after_all = (mean(values) for values in numbers.values())
    sentence = (
        f"One layer of Sinkhorn attention with blocks of {BLOCK} copies {found:.1%} of the symbols "
        f"that stand {DISTANCE} tokens back, attention to the last {2 * BLOCK} tokens {local:.1%}. "
        f"The entropy of a row of P goes from {before:.2f} to {after_all:.2f} nats."
    )
    sharper = all(
        a < b
        for a, b in zip(
            numbers["entropy of P, nats"], numbers["entropy of P at the start, nats"], strict=True
        )
    )
    holds = sharper and min(numbers["sinkhorn"]) > local + MARGIN
    return Outcome(numbers, holds, sentence, {"sorting": _figure(curves, shown)})


@torch.no_grad()
def sort_matrices(model: nn.Module, inputs: Tensor) -> Tensor:
    """P (B, H, N, N) of the first layer."""
    model.eval()
    with trace(model) as traced:
        model(inputs)
    return next(iter(traced.find("sort").values()))


def entropy(p: Tensor) -> float:
    """Mean entropy in nats of the rows of causal ``p`` that have a choice: the third and later."""
    rows = p[:, :, 2:]
    return float(-torch.special.xlogy(rows, rows).sum(-1).mean())


def _figure(curves: dict[str, list[float]], shown: list[Tensor]) -> Figure:
    figure = Figure(figsize=(10, 3))
    axes: Any = figure.subplots(1, 1 + 2 * len(shown))
    for name, losses in curves.items():
        axes[0].plot(losses, label=name)
    axes[0].set(xlabel="step", ylabel="loss (nats)")
    axes[0].legend(fontsize=6)
    for n, (title, p) in enumerate(zip(("start", "trained"), shown, strict=True)):
        for head in range(2):
            axis = axes[1 + 2 * n + head]
            axis.imshow(p[head].numpy(), vmin=0, vmax=1, cmap="viridis")
            axis.set(title=f"P, {title}, head {head + 1}", xlabel="block sorted in")
    figure.tight_layout()
    return figure


EXPERIMENTS = (
    Experiment(
        "far-block",
        ("sinkhorn",),
        "one layer copies at least 30% more symbols of a block that is out of a window's reach "
        "than local attention with as many keys a query, and the rows of P lose entropy",
        4,
        far_block,
    ),
)
