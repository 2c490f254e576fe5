"""GTrXL: how like its input an output is at the start."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.body import create_body

GATES = ("gru", "output", "highway", "sigtanh")
BIASES = (0.0, 1.0, 2.0, 3.0, 4.0)
MEASURED = ("gru, b_g = 0", "gru, b_g = 2", "no gate (TrXL-I)", "post-norm")
"""arms whose gradients are recorded"""


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
    arms |= {"no gate (TrXL-I)": {"gate": "residual"}, "post-norm": {"residual": "post"}}
    study.order([*arms, *(f"{arm}, own token" for arm in MEASURED)])
    for arm, options in study.each(arms.items()):
        body = create_body("gtrxl", width=64, layers=12, heads=4, **options)
        x = torch.randn(4, 32, 64).requires_grad_()
        y, _ = body(x)
        study.keep(arm, float(F.cosine_similarity(x, y, dim=-1).mean().detach()))
        (gradient,) = torch.autograd.grad((y[:, -1] @ torch.randn(64)).sum(), x)
        if arm in MEASURED:
            share = gradient[:, -1].square().sum() / gradient.square().sum()
            study.keep(f"{arm}, own token", float(share))
    sentence = (
        "Twelve layers at the start: an output's own token has [gru, b_g = 2, own token|.0%] of "
        "its gradient with GRU gates and b_g = 2, and [no gate (TrXL-I), own token|.0%] without "
        "gates (post-norm: [post-norm, own token|.0%], b_g = 0: [gru, b_g = 0, own token|.0%]). "
        "That is not the identity: output and input have a cosine of [gru, b_g = 2|.2f] (no gates: "
        "[no gate (TrXL-I)|.2f], post-norm: [post-norm|.2f]), with b_g = 4 of [gru, b_g = 4|.2f]; "
        "the gate sigtanh is the nearest to it at 2, [sigtanh, b_g = 2|.2f]."
    )
    curves = {gate: study.series(gate + ", b_g = {:g}", BIASES) for gate in GATES}
    rising = all(a < b for values in curves.values() for a, b in itertools.pairwise(values[1:]))
    _, gru, bare, post = study.series("{}, own token", MEASURED)
    labels = "b_g at the start", "cosine of output and input"
    figure = Lines(curves, BIASES, labels)
    holds = min(gru, bare) > 0.9 and gru - post > 0.1 and rising
    return study.outcome(holds, sentence, bias=figure)
