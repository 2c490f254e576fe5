"""Softmax attention: why 1/sqrt(D), and why attention at all."""

import math

import torch
from torch import Tensor, nn

from everyformer.core.outputs import ModelOutput
from everyformer.functional import attention
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.measures import accuracy, load, model_for
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


class LSTMModel(nn.Module):
    """Recurrent baseline: embedding, two LSTM layers, tied output."""

    def __init__(self, vocabulary: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, inputs: Tensor, *, targets: Tensor | None = None) -> ModelOutput:
        logits = self.head(self.lstm(self.embedding(inputs))[0])
        loss = None
        if targets is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return ModelOutput(logits, loss, {}, None)


@experiment(
    "attention recalls over 95% of 8 associations where an LSTM of equal size stays below 60%",
    members=("attention",),
    minutes=6,
)
def recall(study: Study) -> Outcome:
    """Key-value pairs, then the keys again: attention finds the values, an equal LSTM does not."""
    data = load(source="recall", length=32, symbols=32, pairs=8)
    sizes = {}
    for name in study.each(("attention", "lstm")):
        if name == "attention":
            model: nn.Module = model_for(data, name, width=64, layers=2, heads=2)
        else:
            model = LSTMModel(data.vocabulary, 64, 76)
        sizes[name] = sum(p.numel() for p in model.parameters())
        study.fit(model, (data, 64), 1000, arm=name)
        study.keep(name, accuracy(model, data), "{:.1%} of the values")
    sentence = (
        f"With 8 pairs, {sizes['attention']:,} parameters of attention recall [attention|.1%] of "
        f"the values and {sizes['lstm']:,} of a two-layer LSTM [lstm|.1%], after equal steps."
    )
    holds = study.mean("attention") > 0.95 and study.mean("lstm") < 0.6
    figure = Lines(study.losses, levels={"guessing a value": math.log(data.vocabulary / 2)})
    return study.outcome(holds, sentence, loss=figure)
