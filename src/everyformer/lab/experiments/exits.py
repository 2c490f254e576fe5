"""CALM on text: three confidences and the best exits there are, and whether promises are kept.

A byte model of 6 layers learns to predict from every one; then a classifier learns with all else as
it is. Agreement is with the model's last layer, on held-out text that is read as it is; for the
promise texts are written freely at every threshold.

Source: Schuster et al. 2022, arXiv 2207.07061.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.tally import tallied
from everyformer.data.dataset import Dataset
from everyformer.genes.depth.early_exits import exit_of, leaving_at, set_threshold
from everyformer.genes.depth.exit_targets import first_agreeing
from everyformer.lab.exits.calibration import Calibration, drawn_prompts
from everyformer.lab.exits.learn_then_test import Guarantee
from everyformer.lab.exits.resplits import resplit
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.measures import joined, load, model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model

LAYERS, BATCH = 6, 8
EVERY = range(1, LAYERS + 1)
THRESHOLDS: dict[str, tuple[float, ...]] = {
    "softmax-difference": (0.95, 0.9, 0.8, 0.6, 0.4, 0.2),
    "saturation": (0.995, 0.99, 0.98, 0.96, 0.93, 0.9),
    "classifier": (0.95, 0.9, 0.8, 0.7, 0.6, 0.5),
}
"""of each confidence"""
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
    data = load("lm", source=study.source, length=128)
    sizes: dict[str, Any] = {
        "width": 96, "layers": LAYERS, "heads": 4, "dropout": 0.0, "embedding_dropout": 0.0,
        "position": "rope",
    }  # fmt: skip
    classifies = {"confidence": "classifier", "learns": "classifier"}
    for _ in study.seeds():
        model = model_for(data, "calm", **sizes)
        study.fit(model, (data, BATCH), 1500, lr=2e-3)
        judge = model_for(data, "calm", depth_options=classifies, **sizes)
        judge.load_state_dict(model.state_dict(), strict=False)
        study.fit(judge, (data, BATCH), 300, lr=1e-2)
        agree(study, data, model, judge)
        promise(study, data, model)
        study.say(study.latest(".3f"))
    fixed = study.series("all at {}: agree", EVERY)
    curves = {}
    for kind, at in THRESHOLDS.items():
        layers, share = (study.series(f"{kind} {{:g}}: {n}", at) for n in ("layers", "agree"))
        curves[kind] = sorted(zip(layers, share, strict=True))
    there = {kind: float(np.interp(DEPTH, *np.transpose(curve))) for kind, curve in curves.items()}
    one, worst = float(np.interp(DEPTH, EVERY, fixed)), max(study.numbers["violations"])
    sentence = (
        f"At {DEPTH:g} of {LAYERS} layers a token agrees with the last layer: "
        f"{joined(there, '.1%')}; where all leave at one layer {one:.1%}. The first layer that "
        "agrees is [oracle: layers|.2f] on average ([oracle: agree|.1%], since what left is "
        f"copied). Of 100 splits {worst:.0%} at worst realised more than {PROMISE.delta:g}; the "
        "threshold that passed leaves [certified: layers|.2f] layers a token, with a risk of "
        "[certified: risk|.3f]."
    )
    drawn = {
        **{kind: np.transpose(curve).tolist() for kind, curve in curves.items()},
        "all at one layer": [list(EVERY), fixed],
        "first layer that agrees": [[study.mean("oracle: layers")], [study.mean("oracle: agree")]],
    }
    figure = Lines(
        {name: y for name, (_, y) in drawn.items()}, {name: x for name, (x, _) in drawn.items()},
        ("layers on average", "agree with the last layer"),
    )  # fmt: skip
    holds = min(there.values()) - one > BETTER and worst <= PROMISE.epsilon
    return study.outcome(holds, sentence, agreement=figure)


@torch.no_grad()
def agree(study: Study, data: Dataset, model: Model, judge: Model) -> None:
    """Keep how many tokens every way of leaving agrees on, and after how many layers."""
    inputs = torch.cat([batch.inputs for batch in data.validation_batches(WINDOWS, WINDOWS)])
    set_threshold(model, None)
    taps = [f"block-output:{n}" for n in range(1, LAYERS)]
    out = model(inputs, taps=taps)
    heads: Any = model.exits
    best = [heads.head(heads.norm(out.taps[tap], n), n).argmax(-1) for n, tap in enumerate(taps, 1)]
    last = out.logits.argmax(-1)

    def agreed_at(layers: Tensor) -> float:
        """Share of tokens that leave at these layers (B, L) and agree with the last one."""
        with leaving_at(model, layers):
            return float((model(inputs).logits.argmax(-1) == last).float().mean())

    for n in EVERY:
        study.keep(f"all at {n}: agree", agreed_at(torch.full_like(inputs, n)))
    earliest = first_agreeing(torch.stack([*best, last]))
    study.keep("oracle: layers", float(earliest.float().mean()))
    study.keep("oracle: agree", agreed_at(earliest))
    for kind, thresholds in THRESHOLDS.items():
        reader = judge if kind == "classifier" else model
        part = exit_of(reader)
        part.options = replace(part.options, confidence=kind, learns="layers")
        for threshold in thresholds:
            set_threshold(reader, threshold)
            with tallied() as tally:
                guesses = reader(inputs).logits.argmax(-1)
            study.keep(f"{kind} {threshold:g}: layers", tally.means()["mean_depth"])
            study.keep(f"{kind} {threshold:g}: agree", float((guesses == last).float().mean()))
    part = exit_of(model)
    part.options = replace(part.options, confidence=next(iter(THRESHOLDS)))


def promise(study: Study, data: Dataset, model: Model) -> None:
    """Write at every threshold, choose on halves of the prompts, and test on the others."""
    text = data.running_text
    assert text is not None
    prompts = drawn_prompts([np.asarray(text.validation)], 32, TOKENS, PROMPTS, study.seed)
    calibration = Calibration(model, prompts, None, tokens=TOKENS, batch=48)
    losses = {threshold: calibration.losses(threshold).tolist() for threshold in TESTED}
    splits = resplit(losses, PROMISE, seed=study.seed)
    assert splits is not None
    study.keep("violations", splits.violations)
    study.keep("certified: risk", float(splits.risks.mean()))
    depths = [calibration.depths.get(t, float(LAYERS)) for t in splits.thresholds.tolist()]
    study.keep("certified: layers", float(np.mean(depths)))
