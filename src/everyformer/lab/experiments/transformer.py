"""The Transformer as published: tasks solved exactly, and why it needs a warm-up of the rate.

post:  x = norm(x + f(x))      at the start gradients are largest in the last layers, at any depth L
pre:   x = x + f(norm(x))      at the start those of the last layers fall like 1/sqrt(L)

Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", arXiv
2002.04745: full rates at the first step are too large for the former and not for the latter.
"""

import math
import tempfile
from typing import Any

import numpy as np
import torch

from everyformer.core.errors import DivergedError
from everyformer.data.dataset import Dataset
from everyformer.generation.beam import beam_search
from everyformer.generation.config import BeamConfig
from everyformer.lab.experiments.figures import Bars, Lines
from everyformer.lab.experiments.measures import load, mean
from everyformer.lab.experiments.study import Outcome, Study, experiment, finished
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.training.config import TrainingConfig
from everyformer.training.logging import read_metrics
from everyformer.training.loop import train
from everyformer.training.run import RunDirectory

LAYERS, BATCH = 6, 16
"""of the encoder and as many of the decoder, as published"""
RATES = (1e-3, 2e-3, 3e-3, 4e-3)
WARM_UP = 0.25
"""of all steps; after it, or without it from the first step on, the rate is constant"""
ARMS = {
    "post": ("post", 0.0),
    "post, warm-up": ("post", WARM_UP),
    "pre": ("pre", 0.0),
    "pre, warm-up": ("pre", WARM_UP),
}
"""arm -> place of the norm, part of the steps that the warm-up takes"""
STALLED, TRAINED = 0.9, 0.5
"""times the loss of guessing: a run that stays above has learnt nothing, one below the task"""

DEPTHS = (2, 4, 8, 16)
STARTS = 4
"""models a seed whose gradients are averaged"""
RESIDUALS = ("post", "pre")
RATIO = f"last layer over first, L={DEPTHS[-1]}"


@experiment(
    "at some learning rate post-norm without warm-up keeps over 90% of the loss of guessing, "
    "where pre-norm without it and post-norm with it fall below half; the last layer's first "
    "gradient falls with depth pre-norm alone",
    members=("transformer",),
    minutes=12,
)
def norms(study: Study) -> Outcome:
    """Copying with four arms at several learning rates, and gradients before the first step."""
    data = load("seq2seq", source="copy", length=12, symbols=16)
    steps, guess = study.steps(300), math.log(data.vocabulary)
    study.order(f"loss {arm}, lr {rate:g}" for arm in ARMS for rate in RATES)
    curves: dict[tuple[str, float], list[list[float]]] = {}
    gradients: dict[tuple[str, int], list[list[float]]] = {}
    for seed in study.seeds():
        for residual in RESIDUALS:
            at_start = {depth: gradient_norms(data, residual, depth, seed) for depth in DEPTHS}
            for depth, values in at_start.items():
                gradients.setdefault((residual, depth), []).append(values)
            nearest, *_, last = at_start[DEPTHS[-1]]
            study.keep(f"gradient {residual}, {RATIO}", last / nearest)
            fitted = exponent([at_start[depth][-1] for depth in DEPTHS])
            study.keep(f"gradient {residual}, last layer, exponent of L", fitted)
        for arm in ARMS:
            for rate in RATES:
                loss, curve = trained(data, arm, rate, steps, seed)
                study.keep(f"loss {arm}, lr {rate:g}", loss)
                curves.setdefault((arm, rate), []).append(curve)
            ends = (f"{study.numbers[f'loss {arm}, lr {r:g}'][-1]:.2f} at {r:g}" for r in RATES)
            study.say(f"{arm}: {', '.join(ends)} (guessing: {guess:.2f})")
    stalling = stalling_rate(study.numbers, guess)
    at = RATES[-1] if stalling is None else stalling
    slopes = {w: study.mean(f"gradient {w}, last layer, exponent of L") for w in RESIDUALS}
    ratios = {w: study.mean(f"gradient {w}, {RATIO}") for w in RESIDUALS}
    sentence = (
        f"{LAYERS} + {LAYERS} layers of width 64 that learn to copy for {steps} steps at a "
        f"learning rate of {at:g} end with a loss of: "
        f"{study.joined('.2f', f'loss {{}}, lr {at:g}', ARMS)} (guessing: {guess:.2f}). Before the "
        f"first step the gradient of the last layer's feed-forward goes with the number of layers "
        f"as L^{slopes['post']:.2f} post-norm and as L^{slopes['pre']:.2f} pre-norm; with "
        f"{DEPTHS[-1]} layers it is {ratios['post']:.1f} and {ratios['pre']:.1f} times the first "
        f"layer's."
    )
    alone = stalling is not None and all(
        loss < TRAINED * guess
        for arm in ARMS if arm != "post"
        for loss in study.numbers[f"loss {arm}, lr {at:g}"]
    )  # fmt: skip
    spread = ratios["post"] > 2 and ratios["pre"] < 1
    fades = slopes["pre"] < -0.3 and slopes["post"] > -0.1
    guessing = {"guessing": guess}
    deepest = range(1, DEPTHS[-1] + 1)
    layers = {w: np.mean(gradients[w, DEPTHS[-1]], axis=0) for w in RESIDUALS}
    depths = {w: [mean(run[-1] for run in gradients[w, d]) for d in DEPTHS] for w in RESIDUALS}
    depths["1/sqrt(L)"] = [depths["pre"][0] * (DEPTHS[0] / depth) ** 0.5 for depth in DEPTHS]
    training = [
        Lines(
            {arm: curves[arm, at] for arm in ARMS}, smooth=10, title=f"learning rate {at:g}",
            levels=guessing, limits=(0, 1.4 * guess),
        ),
        Lines(
            {arm: study.series(f"loss {arm}, lr {{:g}}", RATES) for arm in ARMS}, RATES,
            ("learning rate", "held-out loss (nats)"), log="x", levels=guessing,
            limits=(0, 1.4 * guess),
        ),
    ]  # fmt: skip
    first = [
        Lines(layers, deepest, (f"layer of {DEPTHS[-1]}", "gradient"), limits=(0, None)),
        Lines(depths, DEPTHS, ("layers L", "last layer's gradient"), limits=(0, None)),
    ]
    holds = alone and spread and fades
    return study.outcome(holds, sentence, training=training, gradients=first)


def transformer(data: Dataset, layers: int, **options: Any) -> Model:
    """A small model of the data, without dropout."""
    return create_model(
        "transformer", "seq2seq", width=64, layers=layers, heads=4, vocabulary=data.vocabulary,
        max_length=data.length + 2, dropout=0.0, embedding_dropout=0.0, **data.target_ends,
        **options,
    )  # fmt: skip


def make_model(data: Dataset, residual: str, layers: int, seed: int) -> Model:
    """The Transformer with the 2017 choices but for the norm's place, dropout and smoothing."""
    torch.manual_seed(seed)
    return transformer(data, layers, residual=residual, label_smoothing=0.0)


def trained(
    data: Dataset, arm: str, rate: float, steps: int, seed: int
) -> tuple[float, list[float]]:
    """Held-out loss in nats a token, and the losses of all steps, by Adam as published.

    A run whose loss or gradient is no longer a number counts as one that guesses.
    """
    residual, warm_up = ARMS[arm]
    model = make_model(data, residual, LAYERS, seed)
    config = TrainingConfig(
        steps=steps, batch=BATCH, lr=rate, schedule="constant", warmup=warm_up, min_lr_ratio=0.0,
        weight_decay=0.0, betas=(0.9, 0.98), eps=1e-9, clip=None, evaluate_every=None,
        checkpoint_every=None, log_every=1, seed=seed,
    )  # fmt: skip
    loss = math.log(data.vocabulary)
    with tempfile.TemporaryDirectory() as folder, RunDirectory(folder) as run:
        try:
            result: Any = finished(train(model, data, config, run, show=False))
            loss = result.evaluation["loss"]
        except DivergedError:
            pass
        rows = read_metrics(run.metrics)
    return loss, [row["loss"] for row in rows if "loss" in row]


def stalling_rate(losses: dict[str, list[float]], guess: float) -> float | None:
    """The lowest rate at which post-norm without warm-up learns nothing, whatever the seed."""
    stalls = (rate for rate in RATES if min(losses[f"loss post, lr {rate:g}"]) > STALLED * guess)
    return next(stalls, None)


def gradient_norms(data: Dataset, residual: str, layers: int, seed: int) -> list[float]:
    """Norms of the gradients to the second feed-forward matrix, one a decoder layer.

    Mean over `STARTS` untrained models, each with a different batch.
    """
    sums = torch.zeros(layers, dtype=torch.float64)
    for start in range(STARTS):
        model: Any = make_model(data, residual, layers, STARTS * seed + start)
        batch = data.train_batch(start, BATCH, seed)
        model(batch.inputs, targets=batch.targets, mask=batch.mask).loss.backward()
        for n, block in enumerate(model.stack.blocks):
            sums[n] += block.feedforward.down.weight.grad.norm()
    averages: list[float] = (sums / STARTS).tolist()
    return averages


def exponent(values: list[float]) -> float:
    """a of the best c L^a through ``values`` at the depths L of `DEPTHS`."""
    return float(np.polyfit(np.log(DEPTHS), np.log(values), 1)[0])


@experiment(
    "over 95% of sequences of 10 to 20 symbols are copied, reversed and sorted without a fault",
    members=("transformer",),
    minutes=20,
)
def sequences(study: Study) -> Outcome:
    """10 to 20 symbols copied, reversed and sorted; counted are targets right in every token."""
    for name in study.each(("copy", "reverse", "sort")):
        data = load("seq2seq", source=name, length=24, symbols=16)
        model = transformer(data, 2)
        how: dict[str, Any] = {"warmup": 0.1, "weight_decay": 0.01, "checkpoint_every": None}
        study.train(model, data, 1500, batch=64, lr=2e-3, **how)
        study.keep(name, exact_matches(model, data), "{:.1%} exact")
    shares = study.means()
    figure = Bars(study.numbers, "exact matches", top=1)
    sentence = f"Targets right in every token: {study.joined('.1%')}."
    return study.outcome(min(shares.values()) > 0.95, sentence, exact=figure)


@torch.no_grad()
def exact_matches(model: Model, data: Dataset) -> float:
    """Share of held-out targets that greedy decoding gives in every token."""
    right = []
    for batch in data.validation_batches(64, 256):
        outputs = beam_search(model, batch.inputs, batch.mask, BeamConfig(beam=1, extra=4))
        for targets, [best, *_] in zip(batch.targets.tolist(), outputs, strict=True):
            tokens = [token for token in targets if token != -100][:-1]
            right.append(best.ended and list(best.tokens) == tokens)
    return mean(right)
