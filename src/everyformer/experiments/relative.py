"""Relative positions: what vectors by distance, factors of distance and XL's four terms carry.

And, for the tables before every layer, what their paper's losses of inner layers are worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.trace import trace
from everyformer.experiments.base import (
    Outcome,
    Study,
    experiment,
    fitting,
    held_out,
    load,
    scored_accuracy,
)
from everyformer.experiments.figures import boxes, panels, plot
from everyformer.genes.positions._panels import TERMS
from everyformer.genes.positions.da_transformer import DaTransformer
from everyformer.genes.positions.xl_relative import XlRelative
from everyformer.models.base import Model
from everyformer.models.build import create_model

SYMBOLS, LENGTH, SHIFT = 16, 24, 4
CLIPS = (0, 2, 4, 5, 8)
"""largest distances with vectors; the last is shared by all that is farther, so that one token in
`SHIFT` places is told from the others from `SHIFT` + 1 on"""
ARMS: dict[str, dict[str, Any]] = {
    **{f"clip {k}": {"clip": k} for k in CLIPS},
    "clip 8, keys alone": {"clip": 8, "values": False},
    "clip 8, values alone": {"clip": 8, "keys": False},
}


@experiment(
    "one layer says which token stood 4 places before with an accuracy over 99% when vectors "
    "reach 5 places or 8, those of keys alone as well, and under 50% when 4 places and all "
    "beyond share one or none is told from another",
    members=("shaw",),
    minutes=5,
)
def shift(study: Study) -> Outcome:
    """Each token of one layer, seeing both sides, must say which stood `SHIFT` places before it."""
    for seed in study.seeds():
        for name, options in study.arms(ARMS.items()):
            model = create_model(
                "shaw", "mlm", width=48, layers=1, heads=4, vocabulary=SYMBOLS, max_length=LENGTH,
                **options,
            )  # fmt: skip
            study.fit(model, shifted, 600)
            found = scored_accuracy(model, *shifted(torch.Generator().manual_seed(99 + seed)))
            study.keep(name, found)
        study.say(study.latest(".2f"))
    numbers = study.numbers
    short = [f"clip {k}" for k in CLIPS if k <= SHIFT]
    long = [*(f"clip {k}" for k in CLIPS if k > SHIFT), "clip 8, keys alone"]
    blind, solved = max(max(numbers[n]) for n in short), min(min(numbers[n]) for n in long)
    sentence = (
        f"Token {SHIFT} places before, guessing {1 / SYMBOLS:.2f}: vectors up to a distance of "
        f"{SHIFT}, the last for all that is farther, reach an accuracy of {blind:.2f} at most "
        f"({study.mean('clip 0'):.2f} with one vector for all), vectors up to "
        f"{SHIFT + 1} or 8 at least {solved:.2f}; of 8, those of keys alone "
        f"{study.mean('clip 8, keys alone'):.2f}, of values alone "
        f"{study.mean('clip 8, values alone'):.2f}."
    )
    figure, [axis] = panels()
    at = range(len(CLIPS))
    for part, mark in (("keys", "s"), ("values", "^")):
        axis.plot(at[-1], study.mean(f"clip 8, {part} alone"), mark, label=part)
    both = {"keys and values": [study.mean(f"clip {k}") for k in CLIPS]}
    title = f"the token {SHIFT} positions before"
    plot(axis, both, at, level=1 / SYMBOLS, xlabel="clip", ylabel="accuracy", title=title)
    axis.set_xticks(at, [str(k) for k in CLIPS])
    return Outcome(numbers, blind < 0.5 and solved > 0.99, sentence, {"clip": figure})


def shifted(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random symbols, and for each the one `SHIFT` places before; the first are not scored."""
    x = torch.randint(0, SYMBOLS, (64, LENGTH), generator=generator)
    y = x.roll(SHIFT, 1)
    y[:, :SHIFT] = -100
    return x, y


TEXT, NOISE, VALUES = 32, 8, 4
"""tokens of a text, symbols that fill it, and symbols that may be asked for"""
SPANS = ((1, 4), (10, 14), (15, 19), (25, 31))
"""where values stand: one asked for, two in the way, one asked for"""


@experiment(
    "from alpha = 0 in all heads, a question after the nearest and the farthest of four values "
    "makes a head below -0.1 and one above 0.1 in every model; accuracy over 80% of sixteen "
    "classes, under 40% without positions",
    members=("da-transformer",),
    minutes=5,
)
def near_and_far(study: Study) -> Outcome:
    """The first token must tell the nearest and the farthest of four values: sixteen classes."""
    arms = {"da-transformer": {"spread": 0.0, "distance_scale": 8.0}, "no position": {}}
    study.order(arms)
    learned: list[DaTransformer] = []
    for seed in study.seeds():
        for name, options in study.arms(arms.items()):
            member, position = (name, {}) if options else ("attention", {"position": None})
            model = create_model(
                member, "classify-text", width=48, layers=1, heads=4, classes=VALUES**2,
                vocabulary=1 + NOISE + VALUES, max_length=TEXT, pooling="first",
                **position, **options,
            )  # fmt: skip
            study.fit(model, valued, 1500)
            with torch.no_grad():
                x, y = valued(torch.Generator().manual_seed(99 + seed), 1024)
                study.keep(name, float((model(x).logits.argmax(-1) == y).float().mean()))
            layers = [m for m in model.modules() if isinstance(m, DaTransformer)]
            if layers:
                alphas = torch.cat([one.alpha.detach() for one in layers])
                study.keep("smallest alpha", float(alphas.min()))
                study.keep("largest alpha", float(alphas.max()))
            learned = learned or layers
        study.say(study.latest(".2f"))
    numbers = study.numbers
    able, blind = min(numbers["da-transformer"]), max(numbers["no position"])
    low, high = max(numbers["smallest alpha"]), min(numbers["largest alpha"])
    sentence = (
        f"Which value stands nearest, which farthest, 16 classes: an accuracy of {able:.2f} or "
        f"more with factors of distance, {blind:.2f} or less without positions. From alpha = 0 "
        f"in all heads, every model ends with a head at {low:.2f} or below and one at {high:.2f} "
        "or above."
    )
    holds = able > 0.8 and blind < 0.4 and low < -0.1 and high > 0.1
    return Outcome(numbers, holds, sentence, {"curves": _curves(learned)})


def valued(generator: torch.Generator, rows: int = 64) -> tuple[Tensor, Tensor]:
    """Texts that begin with a question, with a value somewhere in each of `PLACES`; the class
    says the first and the last of the values."""
    x = torch.randint(1, 1 + NOISE, (rows, TEXT), generator=generator)
    x[:, 0] = 0
    values = torch.randint(0, VALUES, (rows, len(SPANS)), generator=generator)
    for n, (first, last) in enumerate(SPANS):
        spots = torch.randint(first, last + 1, (rows, 1), generator=generator)
        x.scatter_(1, spots, 1 + NOISE + values[:, n : n + 1])
    return x, values[:, 0] * VALUES + values[:, -1]


def _curves(learned: list[DaTransformer]) -> Figure:
    """f of every head by distance, a panel a layer."""
    figure, axes = panels(len(learned), (4 * len(learned), 3), sharey=True)
    for n, (axis, position) in enumerate(zip(axes, learned, strict=True)):
        factors = position.factors(torch.arange(TEXT), torch.float32).detach()
        alphas = position.alpha.detach().flatten()
        curves = {
            f"head {head + 1}, alpha {float(alphas[head]):.2f}": curve.tolist()
            for head, curve in enumerate(factors)
        }
        plot(axis, curves, range(TEXT), "-", level=1, xlabel="distance", title=f"layer {n + 1}")
    axes[0].set(ylabel="factor of the score")
    return figure


REMOVED: dict[str, str] = {"none": "", "b": "b", "d": "d", "b and d": "bd", "c": "c"}


@experiment(
    "without the two terms of distance a trained model of bytes loses over 0.5 bits a byte, at "
    "least four times what it loses without the key's own term",
    members=("xl-relative",),
    minutes=4,
)
def four_terms(study: Study) -> Outcome:
    """Bits per byte of a trained model of bytes when terms of its scores are left out."""
    data = load(length=128)
    figure: Figure | None = None
    for _ in study.seeds():
        model = fitting(data, "xl-relative", width=96, layers=2, heads=4)
        study.fit(model, (data, 16), 500, lr=2e-3)
        for name, terms in REMOVED.items():
            with without(model, terms):
                limit = max(8, study.steps(128))
                study.keep(name, held_out(model, data, "bits_per_byte", limit=limit))
        study.say(f"left out: {study.latest('.2f')}")
        figure = figure or _terms(model, data.train_batch(0, 1, 7).inputs[:, :48])
    numbers = study.numbers
    whole = study.mean("none")
    lost = {name: value - whole for name, value in study.means().items()}
    sentence = (
        f"A trained model of bytes has {whole:.2f} bits per byte; left out, its terms cost "
        + ", ".join(f"{name} {lost[name]:+.2f}" for name in REMOVED if name != "none")
        + "."
    )
    worst = min(d - n for d, n in zip(numbers["b and d"], numbers["none"], strict=True))
    key = max(c - n for c, n in zip(numbers["c"], numbers["none"], strict=True))
    assert figure is not None
    return Outcome(numbers, worst > 0.5 and 4 * key < worst, sentence, {"map": figure})


@contextmanager
def without(model: Model, terms: str) -> Iterator[None]:
    """The model with some of the terms b, c and d of every layer's scores left out."""
    positions = [m for m in model.modules() if isinstance(m, XlRelative)]
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for position in positions:
            assert position.v is not None
            assert position.encode is not None
            if "c" in terms:
                position.u.zero_()
            if "d" in terms:
                position.v.zero_()
            if "b" in terms and "d" in terms:
                position.encode.weight.zero_()
            elif "b" in terms:
                position.score = _distance_alone(position)  # type: ignore[method-assign]
    try:
        yield
    finally:
        model.load_state_dict(kept)
        for position in positions:
            position.__dict__.pop("score", None)


def _distance_alone(position: XlRelative) -> Any:
    """Scores without q R: queries of zero leave v R of the two."""

    def score(products: Tensor, q: Tensor, *rest: Any) -> Tensor:
        return XlRelative.score(position, products, torch.zeros_like(q), *rest)

    return score


def _terms(model: Model, tokens: Tensor) -> Figure:
    """The four terms of the first head that leans on distance most, for one text."""
    with trace(model) as seen, torch.no_grad():
        model(tokens)
    each = torch.stack([terms[0] for terms in seen.find("terms").values()])
    spread = each[:, 1].float().flatten(2).std(-1)
    layer, head = divmod(int(spread.argmax()), spread.shape[1])
    figure, axes = panels(4, (9, 2.6))
    later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    visible = each[layer, :, head].masked_fill(later, math.nan)
    top = float(visible.nan_to_num().abs().amax())
    for axis, name, term in zip(axes, TERMS, visible, strict=True):
        image = axis.imshow(term.numpy(), cmap="RdBu_r", vmin=-top, vmax=top)
        axis.set(title=name, xlabel="key")
    axes[0].set(ylabel=f"query (layer {layer + 1}, head {head + 1})")
    figure.colorbar(image, ax=axes[-1])
    return figure


DEPTH = 8
LOSSES: dict[str, dict[str, Any]] = {
    "inner layers": {"lookahead": 0.0},
    "both": {},
    "neither": {"layer_losses": False, "lookahead": 0.0},
}


@experiment(
    "8 layers are more than 1% better in bits per byte after equal steps with losses of inner "
    "layers and of the token after the next than without, for every seed",
    members=("learned-per-layer",),
    minutes=10,
)
def inner_losses(study: Study) -> Outcome:
    """Bits per byte of a deep, narrow model after equal steps, with auxiliary losses or without."""
    data = load(length=64)
    arms = {name: ("learned-per-layer", options) for name, options in LOSSES.items()}
    sizes, limit = {"width": 64, "layers": DEPTH, "heads": 2}, max(8, study.steps(128))
    for name, model in study.models(arms, data, 16, 600, lr=2e-3, **sizes):
        study.keep(name, held_out(model, data, "bits_per_byte", limit=limit), "{:.3f}")
    numbers = study.numbers
    helped, plain = study.mean("both"), study.mean("neither")
    sentence = (
        f"{DEPTH} layers, equal steps on the standard library: {helped:.3f} bits per byte with "
        f"losses of inner layers and of the token after the next, "
        f"{study.mean('inner layers'):.3f} with the first alone, {plain:.3f} with neither."
    )
    pairs = zip(numbers["both"], numbers["neither"], strict=True)
    figure = boxes(numbers, "bits per byte")
    holds = all(a < b for a, b in pairs) and helped < 0.99 * plain
    return Outcome(numbers, holds, sentence, {"quality": figure})
