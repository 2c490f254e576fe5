"""Where the norm stands: why the Transformer as published needs a warm-up of the learning rate.

post:  x = norm(x + f(x))      at the start gradients are largest in the last layers, at any depth L
pre:   x = x + f(norm(x))      at the start those of the last layers fall like 1/sqrt(L)

Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", arXiv
2002.04745: full rates at the first step are too large for the former and not for the latter.
"""

from __future__ import annotations

import math
import tempfile
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from everyformer.blocks.block import Block
from everyformer.core.errors import DivergedError
from everyformer.core.mask import Mask
from everyformer.data.dataset import Dataset
from everyformer.experiments.base import Outcome, Study, experiment, finished, load, mean
from everyformer.experiments.figures import panels, plot
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
"""of all steps; behind it, or without it from the first step on, the rate is constant"""
ARMS = {
    "post": ("post", 0.0),
    "post, warm-up": ("post", WARM_UP),
    "pre": ("pre", 0.0),
    "pre, warm-up": ("pre", WARM_UP),
}
"""arm -> where the norm stands, part of the steps that the warm-up takes"""
STALLED, TRAINED = 0.9, 0.5
"""times the loss of guessing: a run that stays above has learnt nothing, one below the task"""

DEPTHS = (2, 4, 8, 16)
STARTS = 4
"""models a seed whose gradients are averaged"""
WIRINGS = ("post", "pre")


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
    losses: dict[tuple[str, float], list[float]] = {}
    curves: dict[tuple[str, float], list[list[float]]] = {}
    gradients: dict[tuple[str, int], list[list[float]]] = {}
    for seed in study.seeds():
        for wiring in WIRINGS:
            for depth in DEPTHS:
                found = gradient_norms(data, wiring, depth, seed)
                gradients.setdefault((wiring, depth), []).append(found)
        for arm in ARMS:
            for rate in RATES:
                loss, curve = trained(data, arm, rate, steps, seed)
                losses.setdefault((arm, rate), []).append(loss)
                curves.setdefault((arm, rate), []).append(curve)
            listed = ", ".join(f"{losses[arm, rate][-1]:.2f} at {rate:g}" for rate in RATES)
            study.say(f"{arm}: {listed} (guessing: {guess:.2f})")
    numbers = {f"loss {arm}, lr {rate:g}": values for (arm, rate), values in losses.items()}
    for wiring in WIRINGS:
        deepest = gradients[wiring, DEPTHS[-1]]
        ratio = [layers[-1] / layers[0] for layers in deepest]
        numbers[f"gradient {wiring}, last layer over first, L={DEPTHS[-1]}"] = ratio
        numbers[f"gradient {wiring}, last layer, exponent of L"] = [
            exponent([gradients[wiring, depth][seed][-1] for depth in DEPTHS])
            for seed in range(study.setting.seeds)
        ]
    stalling = stalling_rate(losses, guess)
    at = RATES[-1] if stalling is None else stalling
    listed = ", ".join(f"{arm} {mean(losses[arm, at]):.2f}" for arm in ARMS)
    slopes = {w: mean(numbers[f"gradient {w}, last layer, exponent of L"]) for w in WIRINGS}
    ratios = {
        w: mean(numbers[f"gradient {w}, last layer over first, L={DEPTHS[-1]}"]) for w in WIRINGS
    }
    sentence = (
        f"{LAYERS} + {LAYERS} layers of width 64 that learn to copy for {steps} steps at a "
        f"learning rate of {at:g} end with a loss of: {listed} (guessing: {guess:.2f}). Before the "
        f"first step the gradient of the last layer's feed-forward goes with the number of layers "
        f"as L^{slopes['post']:.2f} post-norm and as L^{slopes['pre']:.2f} pre-norm; with "
        f"{DEPTHS[-1]} layers it is {ratios['post']:.1f} and {ratios['pre']:.1f} times the first "
        f"layer's."
    )
    others = [arm for arm in ARMS if arm != "post"]
    alone = stalling is not None and all(
        loss < TRAINED * guess for arm in others for loss in losses[arm, at]
    )
    spread = ratios["post"] > 2 and ratios["pre"] < 1
    fades = slopes["pre"] < -0.3 and slopes["post"] > -0.1
    figures = {"training": training_figure(losses, curves, at, guess)}
    figures["gradients"] = gradient_figure(gradients)
    return Outcome(numbers, alone and spread and fades, sentence, figures)


def make_model(data: Dataset, wiring: str, layers: int, seed: int) -> Model:
    """The Transformer with the 2017 choices but for the norm's place, dropout and smoothing."""
    torch.manual_seed(seed)
    return create_model(
        "transformer", "seq2seq", width=64, layers=layers, heads=4, vocabulary=data.vocabulary,
        max_length=data.length + 2, wiring=wiring, dropout=0.0, embedding_dropout=0.0,
        label_smoothing=0.0, **data.target_ends,
    )  # fmt: skip


def trained(
    data: Dataset, arm: str, rate: float, steps: int, seed: int
) -> tuple[float, list[float]]:
    """Held-out loss in nats a token, and the losses of all steps, by Adam as published.

    A run whose loss or gradient is no longer a number counts as one that guesses.
    """
    wiring, warm_up = ARMS[arm]
    model = make_model(data, wiring, LAYERS, seed)
    config = TrainingConfig(
        steps=steps, batch=BATCH, lr=rate, schedule="constant", warmup=warm_up, min_lr_ratio=0.0,
        weight_decay=0.0, betas=(0.9, 0.98), eps=1e-9, clip=None, evaluate_every=None,
        checkpoint_every=None, log_every=1, seed=seed,
    )  # fmt: skip
    loss = math.log(data.vocabulary)
    with tempfile.TemporaryDirectory() as folder, RunDirectory(folder) as run:
        try:
            found = finished(train(model, data, config, run, show=False)).evaluation
            assert found is not None
            loss = found["loss"]
        except DivergedError:
            pass
        rows = read_metrics(run.metrics)
    return loss, [row["loss"] for row in rows if "loss" in row]


def stalling_rate(losses: dict[tuple[str, float], list[float]], guess: float) -> float | None:
    """The lowest rate at which post-norm without warm-up learns nothing, whatever the seed."""
    stalls = (r for r in RATES if all(loss > STALLED * guess for loss in losses["post", r]))
    return next(stalls, None)


def gradient_norms(data: Dataset, wiring: str, layers: int, seed: int) -> list[float]:
    """Norms of the gradients to the second feed-forward matrix, one a decoder layer.

    Mean over `STARTS` untrained models, each with a batch of its own.
    """
    sums = torch.zeros(layers, dtype=torch.float64)
    for start in range(STARTS):
        model = make_model(data, wiring, layers, STARTS * seed + start)
        batch = data.train_batch(start, BATCH, seed)
        mask = None if batch.keep is None else Mask(keep=batch.keep)
        loss = model(batch.inputs, targets=batch.targets, mask=mask).loss
        assert loss is not None
        loss.backward()
        for n, block in enumerate(model.stack.blocks):
            assert isinstance(block, Block)
            assert block.feedforward is not None
            gradient = block.feedforward.down.weight.grad
            assert gradient is not None
            sums[n] += gradient.norm()
    averages: list[float] = (sums / STARTS).tolist()
    return averages


def exponent(values: list[float]) -> float:
    """a of the best c L^a through ``values`` at the depths L of `DEPTHS`."""
    return float(np.polyfit(np.log(DEPTHS), np.log(values), 1)[0])


def training_figure(
    losses: dict[tuple[str, float], list[float]],
    curves: dict[tuple[str, float], list[list[float]]],
    at: float,
    guess: float,
) -> Figure:
    """Loss by step at the rate ``at``, and held-out loss by learning rate."""
    figure, [left, right] = panels(2, (7.5, 3.4))
    both: dict[str, Any] = {"level": guess, "ylim": (0, 1.4 * guess)}
    training = {arm: curves[arm, at] for arm in ARMS}
    plot(left, training, smooth=10, title=f"learning rate {at:g}", **both)
    final = {arm: [mean(losses[arm, rate]) for rate in RATES] for arm in ARMS}
    labels: dict[str, Any] = {"xlabel": "learning rate", "ylabel": "held-out loss (nats)"}
    plot(right, final, RATES, ticks=True, xscale="log", **labels, **both)
    return figure


def gradient_figure(gradients: dict[tuple[str, int], list[list[float]]]) -> Figure:
    """Gradient norms before the first step: by layer of the deepest models, and by depth."""
    figure, [left, right] = panels(2, (7.5, 3.2))
    deepest = DEPTHS[-1]
    layers = {w: np.mean(gradients[w, deepest], axis=0) for w in WIRINGS}
    labels: dict[str, Any] = {"xlabel": f"layer of {deepest}", "ylabel": "gradient at the start"}
    plot(left, layers, range(1, deepest + 1), ylim=(0, None), **labels)
    left.set_xticks([1, *DEPTHS])
    last = {w: [mean([run[-1] for run in gradients[w, d]]) for d in DEPTHS] for w in WIRINGS}
    last["1/sqrt(L)"] = [last["pre"][0] * (DEPTHS[0] / depth) ** 0.5 for depth in DEPTHS]
    labels = {"xlabel": "layers L", "ylabel": "last layer's gradient", "ylim": (0, None)}
    plot(right, last, DEPTHS, **labels)
    right.set_xticks(DEPTHS)
    return figure
