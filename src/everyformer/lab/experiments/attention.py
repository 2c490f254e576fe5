"""Softmax attention: why 1/sqrt(D)."""

import torch

from everyformer.functional import attention
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.study import Outcome, Study, experiment

DIMENSIONS = (4, 16, 64, 256, 1024)
KEYS = 64


@experiment(
    "without 1/sqrt(D) the entropy of the weights falls below 30% from D=4 to D=1024 and the "
    "gradient below 30% of the scaled one; with it the entropy keeps over 90%",
    members=("attention",),
    minutes=0.1,
)
def saturation(study: Study) -> Outcome:
    """q, k ~ N(0,1)^D: scores have variance D, so unscaled softmax becomes one-hot as D grows."""
    names = {"scaled": "with 1/sqrt(D)", "unscaled": "without"}
    parts = {"entropy": "entropy of a row (nats)", "gradient": "gradient to a row's scores"}
    arms, last = tuple(names), DIMENSIONS[-1]
    study.order(f"{part} {arm} D={d}" for arm in arms for d in (4, last) for part in parts)
    curves: dict[tuple[str, str], list[list[float]]] = {}
    for arm in study.each(arms):
        pairs = [entropy_and_gradient(d, arm == "scaled", study.seed) for d in DIMENSIONS]
        for part, values in zip(parts, zip(*pairs, strict=True), strict=True):
            curves.setdefault((part, arm), []).append(list(values))
            for d in (4, last):
                study.keep(f"{part} {arm} D={d}", values[DIMENSIONS.index(d)])
    m = study.means()
    entropy_left, unscaled_left = (m[f"entropy {a} D={last}"] / m[f"entropy {a} D=4"] for a in arms)
    faded = m[f"gradient unscaled D={last}"] / m[f"gradient scaled D={last}"]
    sentence = (
        f"From D=4 to D={last} the entropy of a row of weights keeps {entropy_left:.0%} of its "
        f"value with 1/sqrt(D) and {unscaled_left:.0%} without; at D={last} the gradient to the "
        f"scores of the median row is {faded:.1%} of the scaled one."
    )
    figure = [
        Lines(
            {name: curves[part, arm] for arm, name in names.items()},
            DIMENSIONS, ("head dimension D", label), log="x",
        )
        for part, label in parts.items()
    ]  # fmt: skip
    holds = entropy_left > 0.9 and unscaled_left < 0.3 and faded < 0.3
    return study.outcome(holds, sentence, curves=figure)


def entropy_and_gradient(size: int, scaled: bool, seed: int) -> tuple[float, float]:
    """Mean entropy of a row of weights, and the median row's gradient to its scores."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 1, 64, size, generator=generator)
    k = torch.randn(1, 1, KEYS, size, generator=generator)
    v = torch.randn(1, 1, KEYS, 16, generator=generator)
    bias = torch.zeros(1, 1, 64, KEYS, requires_grad=True)
    scale = None if scaled else 1.0
    weights = attention(q, k, torch.eye(KEYS)[None, None], bias=bias.detach(), scale=scale)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
    # a fixed random direction, so that the loss itself does not grow with the weights
    direction = torch.randn(1, 1, 64, 16, generator=generator)
    (attention(q, k, v, bias=bias, scale=scale) * direction).sum().backward()
    assert bias.grad is not None
    return float(entropy), float(bias.grad.norm(dim=-1).median())
