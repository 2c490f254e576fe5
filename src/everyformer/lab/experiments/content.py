"""Attention that is of low rank or routed: slots, spectra, clusters, and how operations grow."""

import math
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.trace import trace
from everyformer.data.dataset import Dataset
from everyformer.lab.bench.timing import seconds_of
from everyformer.lab.experiments.figures import Lines, Matrices
from everyformer.lab.experiments.measures import accuracy, held_out, load, mean
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_mixer
from sequence_laws.flops import count_flops

LENGTHS = (512, 1024, 2048, 4096)
TEXT = 64
"""bytes that the masked models read"""
SLOTS = (4, 16, 64)
"""k of these models"""
SHARE = 0.8
"""of the sum of the singular values, in the first quarter of them"""
LOSS = "nats a hidden byte, {}"


@experiment(
    "the operations of a layer double with the length and its pass takes under half of "
    "attention's time at 4,096; a quarter of the singular values of trained attention matrices "
    "has 80% of their sum; of the gap between the losses of masked models with 4 slots for 64 "
    "tokens and with full attention, 16 slots close a part and 64 more than half",
    members=("linformer",),
    minutes=15,
)
def low_rank(study: Study) -> Outcome:
    """Cost by length; masked models of a few k and of full attention; spectra of the latter."""
    for name in ("linformer", "attention"):
        for length in LENGTHS:
            operations, seconds = cost(name, length, study.steps(5))
            study.numbers[f"{name}, operations at {length}"] = [float(operations)]
            study.numbers[f"{name}, ms at {length}"] = [1000 * seconds]
    data = load("mlm", length=TEXT)
    spectra: list[Tensor] = []
    arms: dict[str, tuple[str, dict[str, Any]]] = {"attention": ("attention", {})}
    arms |= {f"k={k}": ("linformer", {"k": k}) for k in SLOTS}
    for name, model in study.models(arms, (data, 16), 800, width=64, layers=2, heads=4):
        loss = held_out(model, data, "loss", limit=256)
        study.keep(LOSS.format(name), loss, "{:.3f}")
        if name == "attention":
            spectra.append(spectrum(model, data))
    shares = [float(s[TEXT // 4 - 1]) for s in spectra]
    study.numbers["singular values, share of the first quarter"] = shares
    m = study.means()
    growth = {n: m[f"{n}, operations at 4096"] / m[f"{n}, operations at 2048"]
              for n in ("linformer", "attention")}  # fmt: skip
    faster = m["linformer, ms at 4096"] / m["attention, ms at 4096"]
    full, *losses = study.series(LOSS, arms)
    by_slots = ", ".join(f"{loss:.3f} with k={k}" for k, loss in zip(SLOTS, losses, strict=True))
    sentence = (
        f"For twice the length (2,048 to 4,096, width 64, k=256) a layer takes "
        f"{growth['linformer']:.2f} times the operations, of attention {growth['attention']:.2f} "
        f"times; at 4,096 its forward pass takes {faster:.2f} of attention's time. In a trained "
        f"masked model the first quarter of an attention matrix's {TEXT} singular values has "
        f"{mean(shares):.1%} of their sum. Nats a hidden byte: {full:.3f} with full attention, "
        f"{by_slots}."
    )
    costs = {
        name: [ops / 1e9 for ops in study.series(name + ", operations at {}", LENGTHS)]
        for name in growth
    }
    figure = [
        Lines(costs, LENGTHS, ("length", "GFLOP of a layer, forward"), log="xy"),
        Lines(
            {"attention": [curve.tolist() for curve in spectra]}, range(1, TEXT + 1),
            ("singular values", "share of their sum"), style="-", at=TEXT // 4, limits=(0, 1.02),
        ),
        Lines(
            {"linformer": losses}, SLOTS, ("slots k", "nats a hidden byte"), log="x",
            levels={"attention": full},
        ),
    ]  # fmt: skip
    few, some, many = (loss - full for loss in losses)
    cheap = growth["linformer"] < 2.05 and faster < 0.5 and min(shares) > SHARE
    return study.outcome(cheap and some < few and many < few / 2, sentence, rank=figure)


@torch.no_grad()
def cost(name: str, length: int, repeats: int) -> tuple[int, float]:
    """Operations and median seconds of a layer's forward pass."""
    mixer = create_mixer(name, width=64, heads=4, max_length=length).eval()
    call = partial(mixer, torch.randn(1, length, 64))
    operations = count_flops(call)
    return operations, median(seconds_of(call, "cpu") for _ in range(repeats))


@torch.no_grad()
def spectrum(model: Model, data: Dataset) -> Tensor:
    """Running shares (L,) of the singular values of attention matrices in their sum, the mean over
    layers, heads and held-out texts."""
    with trace(model) as traced:
        model(next(iter(data.validation_batches(16, 16))).inputs)
    weights = torch.cat([layer.flatten(0, 1) for layer in traced.find("weights").values()])
    values = torch.linalg.svdvals(weights)
    return (values.cumsum(-1) / values.sum(-1, keepdim=True)).mean(0)


CHUNK = 16
READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "linformer-chunked": ("linformer-chunked", {"causal_chunk": CHUNK, "k": CHUNK // 2}),
    "attention, window 16": ("attention", {"window": CHUNK}),
}


@experiment(
    "slots of earlier segments copy at least 30% more symbols of two segments before than "
    "attention with a window of one segment",
    members=("linformer-chunked",),
    minutes=6,
)
def far_slots(study: Study) -> Outcome:
    """Copying 32 symbols: what lies two segments back is in slots, or out of reach."""
    data = load("lm", source="copy", length=4 * CHUNK, symbols=16)
    sizes: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4}
    study.measure(
        READERS, (data, 32), 600, lambda model: accuracy(model, data), position="learned", **sizes
    )
    sentence = (
        f"In two layers, {CHUNK // 2} slots for every segment of {CHUNK} tokens copy "
        f"[linformer-chunked|.1%] of 16 symbols that were read 32 tokens before; attention to the "
        f"last {CHUNK} tokens copies [attention, window 16|.1%]."
    )
    worst, window = min(study.numbers["linformer-chunked"]), study.mean("attention, window 16")
    return study.outcome(worst > window + 0.3, sentence, loss=Lines(study.losses))


WINDOW = 8
"""tokens that a head sees; two layers of local ones reach 14 back, what is copied lies 16 back"""
CLUSTERS = (1, 2, 4, 8, 16)
"""K; one cluster is a local window again"""
MAIN = "routed, K=8"
"""arm of the claim"""
COUNTED = (1024, 2048, 4096, 8192)
"""tokens at which operations are counted"""


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
        "hashed, K=8": ("routing", {"clusters": 8, "window": WINDOW, "update": "none"}),
        **{f"routed, K={k}": ("routing", {"clusters": k, "window": WINDOW}) for k in CLUSTERS},
    }
    sizes: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4}
    for name, model in study.models(arms, (data, 32), 600, position="learned", **sizes):
        study.keep(name, accuracy(model, data), "{:.1%}")
        if name == MAIN:
            nearest = clusters(model, next(iter(data.validation_batches(256, 256))).inputs)
    counted = [float(mixing_operations(length)) for length in COUNTED]
    first, last = COUNTED[0], COUNTED[-1]
    power = math.log(counted[-1] / counted[0]) / math.log(last / first)
    study.numbers["exponent of operations"] = [power]
    routed = ", ".join(f"[routed, K={k}|.1%] by K={k}" for k in CLUSTERS)
    sentence = (
        f"Of symbols {data.length // 2} tokens back local heads with windows of {WINDOW} copy "
        "[local heads|.1%], dense ones [dense heads|.1%]. With half of the heads routed, who see "
        f"{WINDOW} tokens too, {routed}; with centroids left as drawn (hashing) "
        "[hashed, K=8|.1%] by K=8. Operations of the mixing grow like L^"
        f"{power:.2f} from {first:,} to {last:,} tokens."
    )
    ends = {arm: mean(mean(run[-20:]) for run in runs) for arm, runs in study.losses.items()}
    growth = {f"L^{p}": [counted[0] * (n / first) ** p for n in COUNTED] for p in (1, 1.5, 2)}
    growth["routing, K = w = sqrt(L)"] = counted
    loss = [
        Lines(
            {"routed": [ends[f"routed, K={k}"] for k in CLUSTERS]}, CLUSTERS,
            (f"clusters K, {WINDOW} members seen", "loss (nats)"), log="x",
            levels={arm: ends[arm] for arm in ("local heads", "dense heads")},
        ),
        Lines(growth, COUNTED, ("tokens", "operations of the mixing"), log="xy"),
    ]  # fmt: skip
    figure = Matrices(nearest, ("token", "text"))
    copied = study.mean(MAIN) > 0.8 and study.mean("local heads") < 0.2
    return study.outcome(copied and abs(power - 1.5) < 0.1, sentence, clusters=figure, loss=loss)


def mixing_operations(length: int) -> int:
    """Operations of a causal layer of width 64 with default sizes, those of its matrices left out.

    Their number is linear in the length, and would hide how the rest grows.
    """
    mixer = create_mixer("routing", width=64, heads=4, causal=True, max_length=length).eval()
    with torch.no_grad():
        counted = count_flops(lambda: mixer(torch.randn(1, length, 64)))
    matrices = sum(m.weight.numel() for m in mixer.modules() if isinstance(m, nn.Linear))
    return counted - 2 * length * matrices


def clusters(model: Model, inputs: Tensor) -> dict[str, Tensor]:
    """The nearest centroid of every token of a few texts, in the routed heads of the last layer."""
    with torch.no_grad(), trace(model) as traced:
        model(inputs[:12])
    last = list(traced.find("clusters").values())[-1]
    return {f"routed head {n + 1}": last[:, n].long() for n in range(last.shape[1])}
