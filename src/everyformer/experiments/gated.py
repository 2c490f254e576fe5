"""GTrXL at the start: how like its input an output is, and whose token it depends on."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import panels, plot
from everyformer.models.body import create_body

GATES = ("gru", "output", "highway", "sigtanh")
BIASES = (0.0, 1.0, 2.0, 3.0, 4.0)
LAYERS, WIDTH, LENGTH = 12, 64, 32


@experiment(
    "in twelve layers at the start over 90% of an output's gradient is its own token's, with GRU "
    "gates whose biases are 2 as without gates, a tenth more than in post-norm layers; and with "
    "every gate that has a bias the output is the more like the input the larger that is, from 1 "
    "on",
    members=("gtrxl",),
    minutes=0.3,
)
def near_identity(study: Study) -> Outcome:
    """Twelve untrained layers: cosine of output and input, and whose token an output's gradient
    belongs to."""
    arms: dict[str, dict[str, Any]] = {
        f"{gate}, b_g = {bias:g}": {"gate": gate, "gate_bias": bias}
        for gate, bias in itertools.product(GATES, BIASES)
    }
    arms |= {"no gate (TrXL-I)": {"gate": "residual"}, "post-norm": {"wiring": "post"}}
    own: dict[str, list[float]] = {}
    for arm in study.each(arms):
        body = create_body("gtrxl", width=WIDTH, layers=LAYERS, heads=4, **arms[arm])
        x = torch.randn(4, LENGTH, WIDTH).requires_grad_()
        y, _ = body(x)
        study.keep(arm, float(F.cosine_similarity(x, y, dim=-1).mean().detach()))
        (gradient,) = torch.autograd.grad((y[:, -1] @ torch.randn(WIDTH)).sum(), x)
        share = gradient[:, -1].square().sum() / gradient.square().sum()
        own.setdefault(arm, []).append(float(share))
    cosine = study.means()
    for arm in ("gru, b_g = 0", "gru, b_g = 2", "no gate (TrXL-I)", "post-norm"):
        study.numbers[f"{arm}, own token"] = own[arm]
    curves = {gate: [cosine[f"{gate}, b_g = {bias:g}"] for bias in BIASES] for gate in GATES}
    rising = all(a < b for values in curves.values() for a, b in itertools.pairwise(values[1:]))
    gru, closed, post = (
        study.mean(f"{arm}, own token") for arm in ("gru, b_g = 2", "gru, b_g = 0", "post-norm")
    )
    bare = study.mean("no gate (TrXL-I), own token")
    sentence = (
        f"Twelve layers at the start: an output's own token has {gru:.0%} of its gradient with GRU "
        f"gates and b_g = 2, and {bare:.0%} without gates (post-norm: {post:.0%}, b_g = 0: "
        f"{closed:.0%}). That is not the identity: output and input have a cosine of "
        f"{cosine['gru, b_g = 2']:.2f} (no gates: {cosine['no gate (TrXL-I)']:.2f}, post-norm: "
        f"{cosine['post-norm']:.2f}), with b_g = 4 of {cosine['gru, b_g = 4']:.2f}; the gate "
        f"sigtanh is the nearest to it at 2, {cosine['sigtanh, b_g = 2']:.2f}."
    )
    figure, [axis] = panels(size=(4.5, 3))
    plot(axis, curves, BIASES, xlabel="b_g at the start", ylabel="cosine of output and input")
    holds = min(gru, bare) > 0.9 and gru - post > 0.1 and rising
    return Outcome(study.numbers, holds, sentence, {"bias": figure})
