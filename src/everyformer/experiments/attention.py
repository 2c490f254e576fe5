"""Softmax attention: why 1/sqrt(D), and why attention at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from everyformer.core.outputs import ModelOutput
from everyformer.experiments.base import Outcome, Study, accuracy, experiment, fitting, load, mean
from everyformer.experiments.figures import lines, panels, plot
from everyformer.functional import attention

DIMENSIONS = (4, 16, 64, 256, 1024)


@experiment(
    "without 1/sqrt(D) the entropy of the weights falls below 30% from D=4 to D=1024 and the "
    "gradient below 30% of the scaled one; with it the entropy keeps over 90%",
    members=("attention",),
    minutes=0.1,
)
def saturation(study: Study) -> Outcome:
    """q, k ~ N(0,1)^D: scores have variance D, so unscaled softmax becomes one-hot as D grows."""
    keys = 64
    curves: dict[bool, list[list[tuple[float, float]]]] = {True: [], False: []}
    for scaled in study.each(curves):
        found = [_entropy_and_gradient(d, keys, scaled, study.seed) for d in DIMENSIONS]
        curves[scaled].append(found)
    numbers = {
        f"{what} {name} D={DIMENSIONS[n]}": [run[n][part] for run in curves[scaled]]
        for scaled, name in ((True, "scaled"), (False, "unscaled"))
        for n in (0, -1)
        for part, what in enumerate(("entropy", "gradient"))
    }
    last = DIMENSIONS[-1]
    kept = mean(numbers[f"entropy scaled D={last}"]) / mean(numbers["entropy scaled D=4"])
    lost = mean(numbers[f"entropy unscaled D={last}"]) / mean(numbers["entropy unscaled D=4"])
    faded = mean(numbers[f"gradient unscaled D={last}"]) / mean(
        numbers[f"gradient scaled D={last}"]
    )
    sentence = (
        f"From D=4 to D={last} the entropy of a row of weights keeps {kept:.0%} of its value with "
        f"1/sqrt(D) and {lost:.0%} without; at D={last} the gradient to the scores of the median "
        f"row is {faded:.1%} of the scaled one."
    )
    figure, axes = panels(2, (7, 3))
    labels = ("entropy of a row (nats)", "gradient to a row's scores")
    for part, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        values = {
            name: [mean([run[i][part] for run in curves[scaled]]) for i in range(len(DIMENSIONS))]
            for scaled, name in ((True, "with 1/sqrt(D)"), (False, "without"))
        }
        plot(axis, values, DIMENSIONS, xscale="log", xlabel="head dimension D", ylabel=label)
    return Outcome(numbers, kept > 0.9 and lost < 0.3 and faded < 0.3, sentence, {"curves": figure})


def _entropy_and_gradient(size: int, keys: int, scaled: bool, seed: int) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 1, 64, size, generator=generator)
    k = torch.randn(1, 1, keys, size, generator=generator)
    v = torch.randn(1, 1, keys, 16, generator=generator)
    bias = torch.zeros(1, 1, 64, keys, requires_grad=True)
    scale = None if scaled else 1.0
    one_hot = torch.eye(keys)[None, None]
    weights = attention(q, k, one_hot, bias=bias.detach(), scale=scale)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean()
    # a fixed random direction, so that the loss itself does not grow with the weights
    direction = torch.randn(1, 1, 64, 16, generator=generator)
    (attention(q, k, v, bias=bias, scale=scale) * direction).sum().backward()
    assert bias.grad is not None
    return float(entropy), float(bias.grad.norm(dim=-1).median())


class LSTMModel(nn.Module):
    """The recurrent baseline: embedding, two LSTM layers, tied output."""

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
    curves: dict[str, list[list[float]]] = {"attention": [], "lstm": []}
    sizes = {}
    for name in study.each(curves):
        if name == "attention":
            model: nn.Module = fitting(data, name, width=64, layers=2, heads=2)
        else:
            model = LSTMModel(data.vocabulary, 64, 76)
        sizes[name] = sum(p.numel() for p in model.parameters())
        losses = study.fit(model, (data, 64), 1000, lr=3e-3)
        curves[name].append(losses)
        study.keep(name, accuracy(model, data), "{:.1%} of the values")
    ours, theirs = study.means().values()
    sentence = (
        f"With 8 pairs, {sizes['attention']:,} parameters of attention recall {ours:.1%} of the "
        f"values and {sizes['lstm']:,} of a two-layer LSTM {theirs:.1%}, after equal steps."
    )
    figure = lines(curves, level=math.log(data.vocabulary / 2))
    return Outcome(study.numbers, ours > 0.95 and theirs < 0.6, sentence, {"loss": figure})
