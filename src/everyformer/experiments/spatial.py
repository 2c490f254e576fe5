"""gMLP and aMLP: what the spatial matrix learns, and what it cannot align."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.experiments.base import Outcome, Study, accuracy, experiment, load
from everyformer.experiments.figures import bars, panels, plot_matrix
from everyformer.models.build import create_model

SYMBOLS, LENGTH = 8, 24


@experiment(
    "the learned W of the first layer is Toeplitz (R^2 > 0.85) on a shift-invariant task that "
    "is solved",
    members=("gmlp",),
    minutes=1,
)
def toeplitz(study: Study) -> Outcome:
    """y_t = (2 x_(t-1) + x_(t+2)) mod 8: the same rule everywhere, so W should be Toeplitz."""
    study.order(("accuracy", "Toeplitz R^2"))
    kept: Tensor | None = None
    for _ in study.seeds():
        model = _tagger()
        study.keep("R^2 at the start", toeplitz_share(_scored(_first(model))))
        losses = study.fit(model, _shifted, 600, loss_of=_token_loss)
        generator = torch.Generator().manual_seed(11)
        inputs, targets = _shifted(generator)
        found = _token_logits(model, inputs).argmax(-1)
        scored = targets != -100
        study.keep("accuracy", float((found == targets)[scored].float().mean()))
        explained = toeplitz_share(_scored(_first(model)))
        study.keep("Toeplitz R^2", explained)
        kept = _first(model) if kept is None else kept
        study.say(f"loss {losses[-1]:.3f}, R^2 {explained:.3f}")
    numbers = study.numbers
    assert kept is not None
    diagonals = diagonal_means(_scored(kept))
    order = sorted(diagonals, key=lambda n: -abs(diagonals[n]))[:2]
    share, solved = min(numbers["Toeplitz R^2"]), min(numbers["accuracy"])
    sentence = (
        f"After training, diagonal means explain at least {share:.3f} of the variance of W in the "
        "first layer among the scored positions (at the start "
        f"{study.mean('R^2 at the start'):.2f}); accuracy is at least "
        f"{solved:.1%}; the largest diagonals read offsets {order[0]:+d} and {order[1]:+d}."
    )
    figure, [axis] = panels(size=(4, 3.4))
    labels = {"xlabel": "input position", "ylabel": "output position"}
    figure.colorbar(plot_matrix(axis, kept, title="learned W, layer 0", **labels), ax=axis)
    return Outcome(numbers, share > 0.85 and solved > 0.95, sentence, {"matrix": figure})


def toeplitz_share(matrix: Tensor) -> float:
    """Share of the variance of the entries that the means of the diagonals explain."""
    n = matrix.shape[0]
    means = diagonal_means(matrix)
    at = torch.arange(n)
    fitted = torch.tensor([[means[int(j - i)] for j in at] for i in at])
    total = (matrix - matrix.mean()).square().sum()
    return float(1 - (matrix - fitted).square().sum() / total)


def _scored(matrix: Tensor) -> Tensor:
    """Rows and columns 1 to L - 3: the positions whose targets are scored."""
    return matrix[1:-2, 1:-2]


def diagonal_means(matrix: Tensor) -> dict[int, float]:
    """Mean of each diagonal by its offset: input position minus output position."""
    n = matrix.shape[0]
    return {k: float(matrix.diagonal(k).mean()) for k in range(-n + 1, n)}


@experiment(
    "aMLP recalls at least 20 points more associations than gMLP", members=("amlp",), minutes=6
)
def alignment(study: Study) -> Outcome:
    """Associative recall: pairs stand elsewhere in every text, so a static matrix cannot align."""
    data = load(source="recall", length=32, symbols=32, pairs=8)
    arms = {"gmlp": {}, "amlp": {"attention_dim": 32}}
    for name, model in study.models(arms, data, 64, 1500, lr=2e-3, width=64, layers=3):
        study.keep(name, accuracy(model, data), "{:.1%}")
    static, tiny = study.means().values()
    sentence = (
        f"With 8 associations gMLP recalls {static:.1%} of the values and aMLP, with one tiny head "
        f"of 32 channels a layer, {tiny:.1%}."
    )
    figure = bars(study.means(), colours=("C0", "C1"), ylabel="values recalled", ylim=(0, 1))
    return Outcome(study.numbers, tiny > static + 0.2, sentence, {"recall": figure})


def _tagger() -> torch.nn.Module:
    """Bidirectional gMLP; logits at every position are read by `_token_logits`."""
    return create_model(
        "gmlp", "classify-text", width=48, layers=2, vocabulary=SYMBOLS, classes=SYMBOLS,
        max_length=LENGTH,
    )  # fmt: skip


def _token_logits(model: torch.nn.Module, inputs: Tensor) -> Tensor:
    parts: Any = model
    logits: Tensor = parts.pool.head(parts.stack(parts.embedding(inputs)).y)
    return logits


def _token_loss(model: torch.nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = _token_logits(model, inputs)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _shifted(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, SYMBOLS, (64, LENGTH), generator=generator)
    y = (2 * x.roll(1, 1) + x.roll(-2, 1)) % SYMBOLS
    y[:, :1] = -100
    y[:, -2:] = -100
    return x, y


def _first(model: torch.nn.Module) -> Tensor:
    parts: Any = model
    matrix: Tensor = parts.stack.blocks[0].mixer.matrix(LENGTH)[0].detach()
    return matrix
