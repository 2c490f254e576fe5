"""Linformer: attention matrices are of low rank, slots cost by the token, and more lose less."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.trace import trace
from everyformer.data.dataset import Dataset
from everyformer.engines.flops import count_flops
from everyformer.experiments.base import Outcome, Study, accuracy, experiment, held_out, load, mean
from everyformer.experiments.figures import lines, panels, plot
from everyformer.models.base import Model
from everyformer.models.build import create_mixer

LENGTHS = (512, 1024, 2048, 4096)
TEXT, BATCH, STEPS = 64, 16, 800
SLOTS = (4, 16, 64)
"""k of the masked models that read `TEXT` bytes"""
SHARE = 0.8
"""of the sum of the singular values, in the first quarter of them"""


@experiment(
    "the operations of a layer double with the length and its pass takes under half of "
    "attention's time at 4,096; a quarter of the singular values of trained attention matrices "
    "has 80% of their sum; of the gap between the losses of masked models with 4 slots for 64 "
    "tokens and with full attention, 16 slots close a part and 64 more than half",
    members=("linformer",),
    minutes=15,
)
def low_rank(study: Study) -> Outcome:
    """Cost by length; masked models of a few k beside full attention; spectra of the latter."""
    costs = {name: cost(name, study.steps(5)) for name in ("linformer", "attention")}
    for name, found in costs.items():
        for length, (operations, seconds) in found.items():
            study.numbers[f"{name}, operations at {length}"] = [float(operations)]
            study.numbers[f"{name}, ms at {length}"] = [1000 * seconds]
    data = load("mlm", length=TEXT)
    spectra: list[Tensor] = []
    arms: dict[str, tuple[str, dict[str, Any]]] = {"attention": ("attention", {})}
    arms |= {f"k={k}": ("linformer", {"k": k}) for k in SLOTS}
    for name, model in study.models(arms, data, BATCH, STEPS, width=64, layers=2, heads=4):
        loss = held_out(model, data, "loss", limit=256)
        study.keep(f"nats a hidden byte, {name}", loss, "{:.3f}")
        if name == "attention":
            spectra.append(spectrum(model, data))
    numbers = study.numbers
    shares = [float(s[TEXT // 4 - 1]) for s in spectra]
    numbers["singular values, share of the first quarter"] = shares
    losses = {name: study.mean(f"nats a hidden byte, {name}") for name in arms}
    gaps = [losses[f"k={k}"] - losses["attention"] for k in SLOTS]
    growth = {n: c[LENGTHS[-1]][0] / c[LENGTHS[-2]][0] for n, c in costs.items()}
    faster = costs["linformer"][LENGTHS[-1]][1] / costs["attention"][LENGTHS[-1]][1]
    listed = ", ".join(f"{losses[f'k={k}']:.3f} with k={k}" for k in SLOTS)
    sentence = (
        f"For twice the length (2,048 to 4,096, width 64, k=256) a layer takes "
        f"{growth['linformer']:.2f} times the operations, of attention {growth['attention']:.2f} "
        f"times; at 4,096 its forward pass takes {faster:.2f} of attention's time. In a trained "
        f"masked model the first quarter of an attention matrix's {TEXT} singular values has "
        f"{mean(shares):.1%} of their sum. Nats a hidden byte: {losses['attention']:.3f} with full "
        f"attention, {listed}."
    )
    holds = growth["linformer"] < 2.05 and faster < 0.5 and min(shares) > SHARE
    nearer = gaps[1] < gaps[0] and gaps[-1] < gaps[0] / 2
    return Outcome(numbers, holds and nearer, sentence, {"rank": _figure(costs, spectra, losses)})


def cost(name: str, repeats: int) -> dict[int, tuple[int, float]]:
    """Operations and median seconds of a layer's forward pass at every length."""
    found = {}
    for length in LENGTHS:
        mixer = create_mixer(name, width=64, heads=4, max_length=length).eval()
        x = torch.randn(1, length, 64)
        times = []
        with torch.no_grad():
            operations = count_flops(lambda m=mixer, x=x: m(x))  # type: ignore[misc]
            for _ in range(repeats):
                start = time.perf_counter()
                mixer(x)
                times.append(time.perf_counter() - start)
        found[length] = operations, median(times)
    return found


@torch.no_grad()
def spectrum(model: Model, data: Dataset) -> Tensor:
    """Running shares (L,) of the singular values of attention matrices in their sum, the mean over
    layers, heads and held-out texts."""
    inputs = next(iter(data.validation_batches(16, 16))).inputs
    with trace(model) as traced:
        model(inputs)
    weights = torch.cat([found.flatten(0, 1) for found in traced.find("weights").values()])
    values = torch.linalg.svdvals(weights)
    return (values.cumsum(-1) / values.sum(-1, keepdim=True)).mean(0)


def _figure(
    costs: dict[str, dict[int, tuple[int, float]]], spectra: list[Tensor], losses: dict[str, float]
) -> Figure:
    figure, axes = panels(3, (10, 3))
    cost = {name: [found[n][0] / 1e9 for n in LENGTHS] for name, found in costs.items()}
    labels: dict[str, Any] = {"xlabel": "length", "ylabel": "GFLOP of a layer, forward"}
    plot(axes[0], cost, LENGTHS, xscale="log", yscale="log", **labels)
    for curve in spectra:
        axes[1].plot(range(1, TEXT + 1), curve.tolist())
    axes[1].axvline(TEXT // 4, linestyle=":", color="grey")
    axes[1].set(xlabel="singular values", ylabel="share of their sum", ylim=(0, 1.02))
    curves = {"linformer": [losses[f"k={k}"] for k in SLOTS]}
    labels = {"xlabel": "slots k", "ylabel": "nats a hidden byte (dotted: attention)"}
    plot(axes[2], curves, SLOTS, level=losses["attention"], xscale="log", **labels)
    return figure


CHUNK = 16
READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "linformer-chunked": ("linformer-chunked", {"causal_chunk": CHUNK, "k": CHUNK // 2}),
    "attention, window 16": ("attention", {"window": CHUNK}),
}
SLOT_MARGIN = 0.3


@experiment(
    "slots of earlier segments copy at least 30% more symbols of two segments before than "
    "attention with a window of one segment",
    members=("linformer-chunked",),
    minutes=6,
)
def far_slots(study: Study) -> Outcome:
    """Copying 32 symbols: what lies two segments back is in slots, or out of reach."""
    data = load("lm", source="copy", length=4 * CHUNK, symbols=16)
    sizes = {"width": 64, "layers": 2, "heads": 4}
    for name, model in study.models(READERS, data, 32, 600, position="learned", **sizes):
        study.keep(name, accuracy(model, data), "{:.1%}")
    numbers = study.numbers
    slots, window = study.means().values()
    sentence = (
        f"In two layers, {CHUNK // 2} slots for every segment of {CHUNK} tokens copy {slots:.1%} "
        f"of 16 symbols that were read 32 tokens before; attention to the last {CHUNK} tokens "
        f"copies {window:.1%}."
    )
    worst = min(numbers["linformer-chunked"])
    return Outcome(numbers, worst > window + SLOT_MARGIN, sentence, {"loss": lines(study.losses)})
