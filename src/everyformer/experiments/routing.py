"""Routing: what local heads cannot reach, what more clusters cost, how operations grow."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from everyformer.core.trace import trace
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.engines.flops import count_flops
from everyformer.experiments.base import Experiment, Outcome, Setting, Trials, mean, scored_accuracy
from everyformer.models.base import Model
from everyformer.models.build import create_mixer, create_model

WINDOW = 8
"""tokens that a head sees; two layers of local ones reach 14 back, what is copied stands 16 back"""
CLUSTERS = (1, 2, 4, 8, 16)
"""K; one cluster is a local window again"""
MAIN = 8
"""K of the claim"""
LENGTHS = (1024, 2048, 4096, 8192)


def routed_copy(setting: Setting) -> Outcome:
    """Symbols copied by local heads, by half local and half routed ones, by dense attention."""
    data = load_dataset(DataConfig(source="copy", length=32, symbols=16), "lm")
    arms: dict[str, tuple[str, dict[str, Any]]] = {
        "local heads": ("attention", {"window": WINDOW}),
        "dense heads": ("attention", {}),
        f"hashed, K={MAIN}": ("routing", _sizes(MAIN) | {"update": "none"}),
        **{f"routed, K={k}": ("routing", _sizes(k)) for k in CLUSTERS},
    }
    trials = Trials(setting, "routed-copy")
    losses: dict[str, list[float]] = {}
    for name, (member, options) in trials.each(arms.items()):
        model = create_model(
            member, width=64, layers=2, heads=4, vocabulary=data.vocabulary,
            max_length=data.length, position="learned", **options,
        )  # fmt: skip
        curve = trials.fit(model, (data, 32), 600)
        held = next(iter(data.validation_batches(256, 256)))
        trials.keep(name, scored_accuracy(model, held.inputs, held.targets), "{:.1%}")
        losses.setdefault(name, []).append(mean(curve[-20:]))
        if name == f"routed, K={MAIN}":
            figure = clusters_figure(model, held.inputs)
    counted = {length: mixing_operations(length) for length in LENGTHS}
    first, last = LENGTHS[0], LENGTHS[-1]
    power = math.log(counted[last] / counted[first]) / math.log(last / first)
    numbers = trials.numbers | {"exponent of operations": [power]}
    shares = {name: mean(values) for name, values in numbers.items()}
    main, local = shares[f"routed, K={MAIN}"], shares["local heads"]
    sentence = (
        f"Of symbols {data.length // 2} tokens back local heads with windows of {WINDOW} copy "
        f"{local:.1%}, dense ones {shares['dense heads']:.1%}. With half of the heads routed, who "
        f"see {WINDOW} tokens too, "
        + ", ".join(f"{shares[f'routed, K={k}']:.1%} by K={k}" for k in CLUSTERS)
        + f"; with centroids left as drawn (hashing) {shares[f'hashed, K={MAIN}']:.1%} by "
        f"K={MAIN}. Operations of the mixing grow like L^{power:.2f} from {first:,} to {last:,} "
        "tokens."
    )
    holds = main > 0.8 and local < 0.2 and abs(power - 1.5) < 0.1
    figures = {"clusters": figure, "loss": _loss_figure(losses, counted)}
    return Outcome(numbers, holds, sentence, figures)


def _sizes(clusters: int) -> dict[str, int]:
    return {"clusters": clusters, "window": WINDOW}


def mixing_operations(length: int) -> int:
    """Operations of a causal layer of width 64 with default sizes, those of its matrices left out.

    Their number is linear in the length, and would hide how the rest grows.
    """
    mixer = create_mixer("routing", width=64, heads=4, causal=True, max_length=length).eval()
    with torch.no_grad():
        counted = count_flops(lambda: mixer(torch.randn(1, length, 64)))
    matrices = sum(m.weight.numel() for m in mixer.modules() if isinstance(m, nn.Linear))
    return counted - 2 * length * matrices


def clusters_figure(model: Model, inputs: torch.Tensor) -> Figure:
    """The nearest centroid of every token of a few texts, in the routed heads of the last layer."""
    with torch.no_grad(), trace(model) as seen:
        model(inputs[:12])
    clusters = list(seen.find("clusters").values())[-1]
    figure = Figure(figsize=(8, 2.6))
    axes = figure.subplots(1, clusters.shape[1], squeeze=False)[0]
    for number, axis in enumerate(axes):
        axis.imshow(clusters[:, number].numpy(), cmap="tab10", vmin=0, vmax=9, interpolation="none")
        axis.axvline(inputs.shape[1] / 2 - 0.5, color="black", linewidth=1)
        axis.set(xlabel="token", ylabel="text", title=f"routed head {number + 1}", aspect="auto")
    figure.tight_layout()
    return figure


def _loss_figure(losses: dict[str, list[float]], counted: dict[int, int]) -> Figure:
    figure = Figure(figsize=(8, 3))
    left, right = figure.subplots(1, 2)
    left.plot(CLUSTERS, [mean(losses[f"routed, K={k}"]) for k in CLUSTERS], "o-", label="routed")
    for name, look in (("local heads", "--"), ("dense heads", ":")):
        left.axhline(mean(losses[name]), linestyle=look, color="grey", label=name)
    left.set(xscale="log", xlabel=f"clusters K, {WINDOW} members seen", ylabel="loss (nats)")
    left.set_xticks(CLUSTERS, CLUSTERS)
    left.legend()
    lengths = list(counted)
    right.plot(lengths, list(counted.values()), "o-", label="routing, K = w = sqrt(L)")
    for power in (1, 1.5, 2):
        curve = [counted[lengths[0]] * (n / lengths[0]) ** power for n in lengths]
        right.plot(lengths, curve, ":", color="grey", linewidth=0.5 + power / 2, label=f"L^{power}")
    right.set(xscale="log", yscale="log", xlabel="tokens", ylabel="operations of the mixing")
    right.legend(fontsize=7)
    figure.tight_layout()
    return figure


EXPERIMENTS = (
    Experiment(
        "routed-copy",
        ("routing",),
        "symbols beyond the reach of local heads: these copy under 20%; half of the heads routed, "
        "with windows as small, over 80%; operations grow like L to the power of 1.4 to 1.6",
        6,
        routed_copy,
    ),
)
