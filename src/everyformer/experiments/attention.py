"""Softmax attention: why 1/sqrt(D), and why attention at all."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from everyformer.core.outputs import ModelOutput
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.experiments.base import Experiment, Outcome, Setting, Trials, accuracy, mean
from everyformer.functional import attention
from everyformer.models.build import create_model

DIMENSIONS = (4, 16, 64, 256, 1024)


def saturation(setting: Setting) -> Outcome:
    """q, k ~ N(0,1)^D: scores have variance D, so unscaled softmax becomes one-hot as D grows."""
    keys = 64
    curves: dict[bool, list[list[tuple[float, float]]]] = {True: [], False: []}
    trials = Trials(setting, "saturation")
    for scaled in trials.each(curves):
        found = [_entropy_and_gradient(d, keys, scaled, trials.seed) for d in DIMENSIONS]
        curves[scaled].append(found)
    numbers = {}
    for scaled, name in ((True, "scaled"), (False, "unscaled")):
        for place, dimension in ((0, DIMENSIONS[0]), (-1, DIMENSIONS[-1])):
            runs = curves[scaled]
            numbers[f"entropy {name} D={dimension}"] = [run[place][0] for run in runs]
            numbers[f"gradient {name} D={dimension}"] = [run[place][1] for run in runs]
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
    figure = Figure(figsize=(7, 3))
    for axis, part, label in zip(
        figure.subplots(1, 2),
        (0, 1),
        ("entropy of a row (nats)", "gradient to a row's scores"),
        strict=True,
    ):
        for scaled, name in ((True, "with 1/sqrt(D)"), (False, "without")):
            points = [
                mean([run[i][part] for run in curves[scaled]]) for i in range(len(DIMENSIONS))
            ]
            axis.plot(DIMENSIONS, points, "o-", label=name)
        axis.set(xscale="log", xlabel="head dimension D", ylabel=label)
        axis.legend()
    figure.tight_layout()
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


def recall(setting: Setting) -> Outcome:
    """Key-value pairs, then the keys again: attention finds the values, an equal LSTM does not."""
    data = load_dataset(DataConfig(source="recall", length=32, symbols=32, pairs=8))
    trials = Trials(setting, "recall")
    curves: dict[str, list[list[float]]] = {"attention": [], "lstm": []}
    sizes = {}
    for name in trials.each(curves):
        model = _recall_model(name, data.vocabulary, data.length)
        sizes[name] = sum(p.numel() for p in model.parameters())
        losses = trials.fit(model, (data, 64), 1000, lr=3e-3)
        curves[name].append(losses)
        trials.keep(name, accuracy(model, data), "{:.1%} of the values")
    ours, theirs = (mean(values) for values in trials.numbers.values())
    sentence = (
        f"With 8 pairs, {sizes['attention']:,} parameters of attention recall {ours:.1%} of the "
        f"values and {sizes['lstm']:,} of a two-layer LSTM {theirs:.1%}, after equal steps."
    )
    figure = Figure(figsize=(5, 3))
    axis = figure.subplots()
    for name, runs in curves.items():
        for run in runs:
            axis.plot(run, alpha=0.6, color="C0" if name == "attention" else "C1", label=name)
    axis.axhline(math.log(data.vocabulary / 2), linestyle=":", color="grey")
    axis.set(xlabel="step", ylabel="loss (nats)")
    handles, labels = axis.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axis.legend(unique.values(), unique.keys())
    figure.tight_layout()
    return Outcome(trials.numbers, ours > 0.95 and theirs < 0.6, sentence, {"loss": figure})


def _recall_model(name: str, vocabulary: int, length: int) -> nn.Module:
    if name == "lstm":
        return LSTMModel(vocabulary, 64, 76)
    return create_model(
        "attention", width=64, layers=2, heads=2, vocabulary=vocabulary, max_length=length
    )


EXPERIMENTS = (
    Experiment(
        "saturation",
        ("attention",),
        "without 1/sqrt(D) the entropy of the weights falls below 30% from D=4 to D=1024 and the "
        "gradient below 30% of the scaled one; with it the entropy keeps over 90%",
        0.1,
        saturation,
    ),
    Experiment(
        "recall",
        ("attention",),
        "attention recalls over 95% of 8 associations where an LSTM of equal size stays below 60%",
        6,
        recall,
    ),
)
