"""CALM on text: three confidences and the best exits there are, and whether promises are kept.

A byte model of 6 layers learns to predict from every one; then a classifier learns with all else as
it is. Agreement is with the model's own last layer, on held-out text that is read as it is; for the
promise texts are written freely at every threshold.

Source: Schuster et al. 2022, arXiv 2207.07061.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.tally import tallied
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.exits.calibration import Calibration, drawn_prompts
from everyformer.exits.learn_then_test import Guarantee
from everyformer.exits.resplits import resplit
from everyformer.experiments.base import Outcome, Study, experiment, fitting, load
from everyformer.experiments.figures import panels
from everyformer.genes.depth._exit_targets import first_agreeing
from everyformer.genes.depth._exits import exit_of, leaving_at, set_threshold
from everyformer.models.base import Model

LAYERS, LENGTH, BATCH = 6, 128, 8
CONFIDENCES = ("softmax-difference", "saturation", "classifier")
THRESHOLDS: dict[str, tuple[float, ...]] = {
    "softmax-difference": (0.95, 0.9, 0.8, 0.6, 0.4, 0.2),
    "saturation": (0.995, 0.99, 0.98, 0.96, 0.93, 0.9),
    "classifier": (0.95, 0.9, 0.8, 0.7, 0.6, 0.5),
}
TESTED = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
PROMISE = Guarantee(0.1, 0.05)
DEPTH, BETTER = 4.0, 0.02
WINDOWS, PROMPTS, TOKENS = 32, 240, 16


@experiment(
    f"at {DEPTH:g} of {LAYERS} layers a token all confidences agree with the last layer on over "
    f"{BETTER:.0%} more tokens than a fixed layer does, and of 100 splits of the prompts at most "
    f"{PROMISE.epsilon:.0%} realise more than the risk of {PROMISE.delta:g} that is allowed",
    members=("calm",),
    minutes=12,
    data="any text (default: the standard library's source)",
)
def confidence(study: Study) -> Outcome:
    """One model, its exits by four ways, and a calibration."""
    data = load("lm", source=study.source, length=LENGTH)
    for _ in study.seeds():
        sizes = {"width": 96, "layers": LAYERS, "heads": 4, "dropout": 0.0}
        model = fitting(data, "calm", embedding_dropout=0.0, position="rope", **sizes)
        study.fit(model, (data, BATCH), 1500, lr=2e-3)
        classifies = {"confidence": "classifier", "learns": "classifier"}
        judge = fitting(
            data, "calm", embedding_dropout=0.0, position="rope", depth_options=classifies, **sizes
        )
        judge.load_state_dict(model.state_dict(), strict=False)
        study.fit(judge, (data, BATCH), 300, lr=1e-2)
        agree(study, data, model, judge)
        promise(study, data, model)
        study.say(study.latest(".3f"))
    fixed = [study.mean(f"all at {n}: agree") for n in range(1, LAYERS + 1)]
    curves = {
        kind: [(study.mean(f"{kind} {t:g}: layers"), study.mean(f"{kind} {t:g}: agree"))
               for t in THRESHOLDS[kind]]
        for kind in CONFIDENCES
    }  # fmt: skip
    there = {
        kind: float(np.interp(DEPTH, [d for d, _ in sorted(curve)], [a for _, a in sorted(curve)]))
        for kind, curve in curves.items()
    }
    one = float(np.interp(DEPTH, np.arange(1, LAYERS + 1), fixed))
    worst = max(study.numbers["violations"])
    best = study.mean("oracle: layers"), study.mean("oracle: agree")
    told = ", ".join(f"{kind} {value:.1%}" for kind, value in there.items())
    sentence = (
        f"At {DEPTH:g} of {LAYERS} layers a token agrees with the last layer: {told}; where all "
        f"leave at one layer {one:.1%}. The first layer that agrees is {best[0]:.2f} on average "
        f"({best[1]:.1%}, since what left is copied). Of 100 splits {worst:.0%} at worst realised "
        f"more than {PROMISE.delta:g}; the threshold that passed leaves "
        f"{study.mean('certified: layers'):.2f} layers a token, with a risk of "
        f"{study.mean('certified: risk'):.3f}."
    )
    holds = min(there.values()) - one > BETTER and worst <= PROMISE.epsilon
    figure, [axis] = panels(size=(4.5, 3.2))
    for kind, curve in curves.items():
        axis.plot(*zip(*sorted(curve), strict=True), marker="o", markersize=3, label=kind)
    axis.plot(range(1, LAYERS + 1), fixed, color="grey", marker="o", markersize=3,
              label="all at one layer")  # fmt: skip
    axis.plot(*best, "*", color="black", label="first layer that agrees")
    axis.set(xlabel="layers on average", ylabel="agree with the last layer")
    axis.legend()
    return Outcome(study.numbers, holds, sentence, {"agreement": figure})


@torch.no_grad()
def agree(study: Study, data: Dataset, model: Model, judge: Model) -> None:
    """Keep how many tokens every way of leaving agrees on, and after how many layers."""
    batches = [batch.inputs for batch in data.validation_batches(WINDOWS, WINDOWS)]
    inputs = torch.cat(batches)
    set_threshold(model, None)
    taps = [f"block-output:{n}" for n in range(1, LAYERS)]
    out = model(inputs, taps=taps)
    streams = [out.taps[tap] for tap in taps]
    heads: Any = model.exits
    best = [heads.head(heads.norm(x, n), n).argmax(-1) for n, x in enumerate(streams, 1)]
    every = torch.stack([*best, out.logits.argmax(-1)])
    for n in range(1, LAYERS + 1):
        agreed, _ = agreed_at(model, inputs, torch.full_like(inputs, n), every[-1])
        study.keep(f"all at {n}: agree", agreed)
    agreed, depth = agreed_at(model, inputs, first_agreeing(every), every[-1])
    study.keep("oracle: layers", depth)
    study.keep("oracle: agree", agreed)
    for kind in CONFIDENCES:
        asked = judge if kind == "classifier" else model
        part = exit_of(asked)
        part.options = replace(part.options, confidence=kind, learns="layers")
        for threshold in THRESHOLDS[kind]:
            set_threshold(asked, threshold)
            with tallied() as told:
                found = asked(inputs).logits.argmax(-1)
            study.keep(f"{kind} {threshold:g}: layers", told.means()["mean_depth"])
            study.keep(f"{kind} {threshold:g}: agree", float((found == every[-1]).float().mean()))
    part = exit_of(model)
    part.options = replace(part.options, confidence=CONFIDENCES[0])


def agreed_at(model: Model, inputs: Tensor, at: Tensor, last: Tensor) -> tuple[float, float]:
    """How many tokens that leave ``at`` layers (B, L) agree with the ``last`` one, and the mean."""
    with leaving_at(model, at):
        found = model(inputs).logits.argmax(-1)
    return float((found == last).float().mean()), float(at.float().mean())


def promise(study: Study, data: Dataset, model: Model) -> None:
    """Write at every threshold, choose on halves of the prompts, and look at the others."""
    assert isinstance(data, TextDataset)
    text = np.asarray(data.validation)
    prompts = drawn_prompts([text], 32, TOKENS, PROMPTS, study.seed)
    calibration = Calibration(model, prompts, None, tokens=TOKENS, batch=48)
    losses = {threshold: calibration.losses(threshold).tolist() for threshold in TESTED}
    found = resplit(losses, PROMISE, seed=study.seed)
    assert found is not None
    study.keep("violations", found.violations)
    study.keep("certified: risk", float(found.risks.mean()))
    depths = [calibration.depths.get(t, float(LAYERS)) for t in found.thresholds.tolist()]
    study.keep("certified: layers", float(np.mean(depths)))
