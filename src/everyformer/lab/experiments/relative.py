"""Relative positions: what vectors by distance, factors of distance and XL's four terms carry.

And, for the tables before every layer, what their paper's losses of inner layers are worth.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from everyformer.core.trace import trace
from everyformer.genes.positions.da_transformer import DaTransformer
from everyformer.genes.positions.xl_relative import TERMS, XlRelative
from everyformer.lab.experiments.figures import Bars, Lines, Matrices
from everyformer.lab.experiments.measures import held_out, joined, load, model_for, scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model

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
    sizes: dict[str, Any] = {
        "width": 48, "layers": 1, "heads": 4, "vocabulary": SYMBOLS, "max_length": LENGTH,
    }  # fmt: skip
    study.measure(
        ARMS, shifted, 600, lambda model: scored_accuracy(model, *study.fresh(shifted, 99)),
        "{:.2f}", member="shaw", task="mlm", **sizes,
    )  # fmt: skip
    numbers = study.numbers
    blind = max(max(numbers[f"clip {k}"]) for k in CLIPS if k <= SHIFT)
    long = [*(f"clip {k}" for k in CLIPS if k > SHIFT), "clip 8, keys alone"]
    solved = min(min(numbers[name]) for name in long)
    sentence = (
        f"Accuracy on the token {SHIFT} places before, by the largest distance with a vector, the "
        f"last for all that is farther (guessing: {1 / SYMBOLS:.2f}): {study.joined('.2f')}."
    )
    figure = Bars(numbers, "accuracy", top=1)
    return study.outcome(blind < 0.5 and solved > 0.99, sentence, clip=figure)


def shifted(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random symbols, and for each the one `SHIFT` places before; the first are not scored."""
    x = torch.randint(0, SYMBOLS, (64, LENGTH), generator=generator)
    y = x.roll(SHIFT, 1)
    y[:, :SHIFT] = -100
    return x, y


TEXT, NOISE, VALUES = 32, 8, 4
"""tokens of a text, symbols that fill it, and symbols that may be asked for"""
SPANS = ((1, 4), (10, 14), (15, 19), (25, 31))
"""places of the values: one asked for, two in the way, one asked for"""


@experiment(
    "from alpha = 0 in all heads, a question after the nearest and the farthest of four values "
    "makes a head below -0.1 and one above 0.1 in every model; accuracy over 80% of sixteen "
    "classes, under 40% without positions",
    members=("da-transformer",),
    minutes=5,
)
def near_and_far(study: Study) -> Outcome:
    """The first token must tell the nearest and the farthest of four values: sixteen classes."""
    arms: dict[str, tuple[str, dict[str, Any]]] = {
        "da-transformer": ("da-transformer", {"spread": 0.0, "distance_scale": 8.0}),
        "no position": ("attention", {"position": None}),
    }
    study.order(arms)
    first: DaTransformer | None = None
    sizes: dict[str, Any] = {
        "width": 48, "layers": 1, "heads": 4, "classes": VALUES**2, "max_length": TEXT,
        "vocabulary": 1 + NOISE + VALUES, "pooling": "first", "task": "classify-text",
    }  # fmt: skip
    for name, model in study.models(arms, valued, 1500, **sizes):
        study.keep(name, scored_accuracy(model, *study.fresh(valued, 99, 1024)), "{:.2f}")
        for layer in (part for part in model.modules() if isinstance(part, DaTransformer)):
            study.keep("smallest alpha", float(layer.alpha.detach().min()))
            study.keep("largest alpha", float(layer.alpha.detach().max()))
            first = first or layer
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
    assert first is not None
    factors = first.factors(torch.arange(TEXT), torch.float32).tolist()
    alphas = first.alpha.flatten().tolist()
    curves = {f"head {n}, alpha {a:.2f}": factors[n - 1] for n, a in enumerate(alphas, 1)}
    labels = "distance", "factor of the score"
    figure = Lines(curves, range(TEXT), labels, "-", levels={"none": 1}, title="layer 1")
    return study.outcome(holds, sentence, curves=figure)


def valued(generator: torch.Generator, rows: int = 64) -> tuple[Tensor, Tensor]:
    """Texts that begin with a question, with a value somewhere in each of `SPANS`; the class
    says the first and the last of the values."""
    x = torch.randint(1, 1 + NOISE, (rows, TEXT), generator=generator)
    x[:, 0] = 0
    values = torch.randint(0, VALUES, (rows, len(SPANS)), generator=generator)
    for n, (first, last) in enumerate(SPANS):
        spots = torch.randint(first, last + 1, (rows, 1), generator=generator)
        x.scatter_(1, spots, 1 + NOISE + values[:, n : n + 1])
    return x, values[:, 0] * VALUES + values[:, -1]


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
    maps: list[dict[str, Tensor]] = []
    for _ in study.seeds():
        model = model_for(data, "xl-relative", width=96, layers=2, heads=4)
        study.fit(model, (data, 16), 500, lr=2e-3)
        for name, terms in REMOVED.items():
            with without(model, terms):
                limit = max(8, study.steps(128))
                study.keep(name, held_out(model, data, "bits_per_byte", limit=limit))
        study.say(f"left out: {study.latest('.2f')}")
        maps.append(terms_map(model, data.train_batch(0, 1, 7).inputs[:, :48]))
    whole, *others = study.means().items()
    costs = joined({name: value - whole[1] for name, value in others}, "+.2f")
    sentence = (
        f"A trained model of bytes has [none|.2f] bits per byte; left out, its terms cost {costs}."
    )
    whole_of, both, key = (study.numbers[name] for name in ("none", "b and d", "c"))
    worst = min(a - b for a, b in zip(both, whole_of, strict=True))
    dearest = max(a - b for a, b in zip(key, whole_of, strict=True))
    figure = Matrices(maps[0], ("key", "query"))
    return study.outcome(worst > 0.5 and 4 * dearest < worst, sentence, map=figure)


@contextmanager
def without(model: Model, terms: str) -> Iterator[None]:
    """The model with some of the terms b, c and d of every layer's scores left out."""
    positions: list[Any] = [part for part in model.modules() if isinstance(part, XlRelative)]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for position in positions:
            if "c" in terms:
                position.u.zero_()
            if "d" in terms:
                position.v.zero_()
            if "b" in terms and "d" in terms:
                position.encode.weight.zero_()
            elif "b" in terms:
                position.score = functools.partial(_distance_alone, position)
    try:
        yield
    finally:
        model.load_state_dict(weights)
        for position in positions:
            position.__dict__.pop("score", None)


def _distance_alone(position: XlRelative, products: Tensor, q: Tensor, *rest: Any) -> Tensor:
    """Scores without q R: queries of zero leave v R of the two."""
    return XlRelative.score(position, products, torch.zeros_like(q), *rest)


def terms_map(model: Model, tokens: Tensor) -> dict[str, Tensor]:
    """The four terms of the first head that leans on distance most, for one text."""
    with trace(model) as traced, torch.no_grad():
        model(tokens)
    each = torch.stack([terms[0] for terms in traced.find("terms").values()])
    spread = each[:, 1].float().flatten(2).std(-1)
    layer, head = divmod(int(spread.argmax()), spread.shape[1])
    later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    visible = each[layer, :, head].masked_fill(later, math.nan)
    where = f" (layer {layer + 1}, head {head + 1})"
    return {name + where: term for name, term in zip(TERMS, visible, strict=True)}


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
    sizes: dict[str, Any] = {"width": 64, "layers": DEPTH, "heads": 2, "lr": 2e-3}
    limit = max(8, study.steps(128))
    study.measure(
        LOSSES, (data, 16), 600, lambda model: held_out(model, data, "bits_per_byte", limit=limit),
        "{:.3f}", member="learned-per-layer", **sizes,
    )  # fmt: skip
    sentence = (
        f"{DEPTH} layers, equal steps on the standard library: [both|.3f] bits per byte with "
        "losses of inner layers and of the token after the next, [inner layers|.3f] with the first "
        "alone, [neither|.3f] with neither."
    )
    pairs = zip(study.numbers["both"], study.numbers["neither"], strict=True)
    better = study.mean("both") < 0.99 * study.mean("neither")
    figure = Bars(study.numbers, "bits per byte", near=True)
    return study.outcome(better and all(a < b for a, b in pairs), sentence, quality=figure)
