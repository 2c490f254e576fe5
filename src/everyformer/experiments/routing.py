"""Routing: what local heads cannot reach, what more clusters cost, how operations grow."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from everyformer.core.trace import trace
from everyformer.engines.flops import count_flops
from everyformer.experiments.base import Outcome, Study, accuracy, experiment, load, mean
from everyformer.experiments.figures import panels, plot
from everyformer.models.base import Model
from everyformer.models.build import create_mixer

WINDOW = 8
"""tokens that a head sees; two layers of local ones reach 14 back, what is copied stands 16 back"""
CLUSTERS = (1, 2, 4, 8, 16)
"""K; one cluster is a local window again"""
MAIN = 8
"""K of the claim"""
LENGTHS = (1024, 2048, 4096, 8192)


@experiment(
    "symbols beyond the reach of local heads: these copy under 20%; half of the heads routed, "
    "with windows as small, over 80%; operations grow like L to the power of 1.4 to 1.6",
    members=("routing",),
    minutes=6,
)
def routed_copy(study: Study) -> Outcome:
    """Symbols copied by local heads, by half local and half routed ones, by dense attention."""
    data = load("lm", source="copy", length=32, symbols=16)
    arms: dict[str, tuple[str, dict[str, Any]]] = {
        "local heads": ("attention", {"window": WINDOW}),
        "dense heads": ("attention", {}),
        f"hashed, K={MAIN}": ("routing", {"clusters": MAIN, "window": WINDOW, "update": "none"}),
        **{f"routed, K={k}": ("routing", {"clusters": k, "window": WINDOW}) for k in CLUSTERS},
    }
    losses: dict[str, list[float]] = {}
    sizes = {"width": 64, "layers": 2, "heads": 4}
    for name, model in study.models(arms, data, 32, 600, position="learned", **sizes):
        study.keep(name, accuracy(model, data), "{:.1%}")
        losses.setdefault(name, []).append(mean(study.losses[name][-20:]))
        if name == f"routed, K={MAIN}":
            figure = clusters_figure(model, next(iter(data.validation_batches(256, 256))).inputs)
    counted = {length: mixing_operations(length) for length in LENGTHS}
    first, last = LENGTHS[0], LENGTHS[-1]
    power = math.log(counted[last] / counted[first]) / math.log(last / first)
    study.numbers["exponent of operations"] = [power]
    shares = study.means()
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
    loss, [left, right] = panels(2, (8, 3))
    for name, style in (("local heads", "--"), ("dense heads", ":")):
        left.axhline(mean(losses[name]), linestyle=style, color="grey", label=name)
    routed = {"routed": [mean(losses[f"routed, K={k}"]) for k in CLUSTERS]}
    labels: dict[str, Any] = {"xlabel": f"clusters K, {WINDOW} members seen", "xscale": "log"}
    plot(left, routed, CLUSTERS, ticks=True, ylabel="loss (nats)", **labels)
    growth = {f"L^{p}": [counted[first] * (n / first) ** p for n in LENGTHS] for p in (1, 1.5, 2)}
    growth["routing, K = w = sqrt(L)"] = list(map(float, counted.values()))
    labels = {"xlabel": "tokens", "ylabel": "operations of the mixing", "yscale": "log"}
    plot(right, growth, LENGTHS, xscale="log", **labels)
    return Outcome(study.numbers, holds, sentence, {"clusters": figure, "loss": loss})


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
    figure, axes = panels(clusters.shape[1], (8, 2.6))
    for number, axis in enumerate(axes):
        axis.imshow(clusters[:, number].numpy(), cmap="tab10", vmin=0, vmax=9, interpolation="none")
        axis.axvline(inputs.shape[1] / 2 - 0.5, color="black", linewidth=1)
        axis.set(xlabel="token", ylabel="text", title=f"routed head {number + 1}", aspect="auto")
    return figure
