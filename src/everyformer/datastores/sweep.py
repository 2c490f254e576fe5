"""Every k, temperature and lambda of a store from one reading of a text.

The model reads the text once and each token's neighbours are searched once, at the largest k: the
others are prefixes of them. Of a token is kept what all combinations need and no more: log p_LM of
what came, and its log p_kNN for each k and temperature; so memory is 4 bytes a token and a
combination, whatever k is. Lambda is then a matter of two numbers a token.

Indexes that may miss neighbours are asked for the largest k, so their smaller k may be a little
better than if they were asked for by themselves.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.devices import widest
from everyformer.core.outputs import ModelOutput
from everyformer.data.batch import IGNORED
from everyformer.data.text import TextDataset
from everyformer.genes.retrieval import Grid, KnnOptions
from everyformer.models.knn_lm import (
    KnnLanguageModel,
    Neighbours,
    best_weight,
    highest_weight,
    log_probabilities,
    mixed,
    weights,
)
from everyformer.system.memory import check_memory
from everyformer.training.evaluate import evaluate
from everyformer.training.measures import perplexity, ratio


@dataclass(frozen=True)
class Cell:
    """One way to read the store, and what it gives."""

    k: int
    temperature: float
    weight: float
    tuned: bool
    """whether the weight was found by EM for this text (`best_weight`)"""
    loss: float
    """nats a token"""
    loss_interval: list[float] | None
    """95%, over sequences"""
    perplexity: float
    bits_per_byte: float | None


@dataclass(frozen=True)
class Sweep:
    """Cells of a grid, and the model without a store."""

    plain: dict[str, Any]
    """of the model alone (`everyformer.training.evaluate.evaluate`)"""
    cells: list[Cell]
    """in the order of k, temperature and weight; the tuned one first"""

    @property
    def tuned(self) -> list[Cell]:
        """Cells of the best weight of each k and temperature, the best first."""
        return sorted((cell for cell in self.cells if cell.tuned), key=lambda cell: cell.loss)

    def at_most(self, weight: float) -> str:
        """A sentence where ``weight`` is the largest lambda that EM may find; else empty."""
        count = self.plain["scored"]
        if weight < highest_weight(count):
            return ""
        return (
            f"lambda {weight:.9g} is the largest that {count:,} tokens can speak for, n / (n + 1): "
            "a token that no neighbour has must stay possible"
        )


def sweep(
    reading: KnnLanguageModel,
    dataset: TextDataset,
    grid: Grid,
    *,
    batch: int = 16,
    limit: int | None = None,
    precision: str = "float32",
) -> Sweep:
    """Try all of ``grid``, resolved, on the held-out part of ``dataset``.

    Args:
        batch, limit, precision: of `evaluate`.

    Raises:
        ConfigError: a k is larger than the store.
        ResourceError: there are too many tokens and combinations for the memory.
    """
    combinations = len(grid.k) * len(grid.temperature)
    count = len(dataset.validation)
    count = count if limit is None else min(count, limit * dataset.length)
    # of all batches, and when they are put together; EM computes in float64
    check_memory(
        (8.0 * combinations + 64) * count,
        f"trying {combinations} combinations of k and temperature on {count:,} tokens",
        "try fewer, or read fewer --sequences",
    )
    options = replace(reading.options, k=max(grid.k))
    scores = _Scores(KnnLanguageModel(reading.model, reading.reader, options, reading.tap), grid)
    plain = evaluate(scores, dataset, batch=batch, limit=limit, precision=precision)
    assert plain is not None
    return Sweep(plain, scores.cells(plain))


class _Scores(nn.Module):
    """The model alone, which keeps what the store says of every target that it is given."""

    def __init__(self, reading: KnnLanguageModel, grid: Grid) -> None:
        super().__init__()
        self.reading, self.grid = reading, grid
        self.config = reading.config
        self._sequences = 0
        self._scored: list[tuple[Tensor, Tensor, Tensor]] = []

    def forward(self, inputs: Tensor, *, targets: Tensor, **options: Any) -> ModelOutput:
        out, real, near = self.reading.look_up(inputs, targets=targets, **options)
        scored = targets[real] != IGNORED
        goals = targets[real][scored]
        logs = log_probabilities(out.logits[real][scored]).gather(-1, goals[:, None])[:, 0]
        near = Neighbours(*(part[scored] for part in near))
        known = by_k_and_temperature(near, goals, self.grid, self.reading.options).log()
        known = torch.where(near.rows[:, :1, None] < 0, logs[:, None, None], known.to(logs.dtype))
        row = real.nonzero()[scored, 0] + self._sequences
        self._sequences += len(inputs)
        self._scored.append((logs.cpu(), known.cpu(), row.cpu()))
        return out

    def cells(self, plain: dict[str, Any]) -> list[Cell]:
        """Cells of all combinations; ``plain`` is the evaluation of the model alone."""
        logs, known, row = (torch.cat(parts) for parts in zip(*self._scored, strict=True))
        self._scored.clear()
        logs = logs.double()
        counts = torch.bincount(row, minlength=self._sequences).double()
        cells = []
        for i, k in enumerate(self.grid.k):
            for j, temperature in enumerate(self.grid.temperature):
                neighbours = known[:, i, j].double()
                best = best_weight(logs, neighbours)
                for n, weight in enumerate((best, *self.grid.weight)):
                    losses = -mixed(logs, neighbours, weight)
                    sums = torch.zeros_like(counts).index_add_(0, row, losses)
                    measured = _measures(counts, sums, plain)
                    cells.append(Cell(k, temperature, weight, n == 0, **measured))
        return cells


def by_k_and_temperature(
    neighbours: Neighbours, goals: Tensor, grid: Grid, options: KnnOptions
) -> Tensor:
    """p_kNN of ``goals`` (N,) for each k and temperature (N, K, T); NaN without neighbours."""
    last = torch.tensor(grid.k, device=goals.device) - 1
    right = (neighbours.values == goals[:, None]) & (neighbours.rows >= 0)
    columns, wide = [], widest(goals.device)
    for temperature in grid.temperature:
        w = weights(neighbours.distances, replace(options, temperature=temperature)).to(wide)
        columns.append((w * right).cumsum(-1)[:, last] / w.cumsum(-1)[:, last])
    return torch.stack(columns, -1)


def _measures(counts: Tensor, sums: Tensor, plain: dict[str, Any]) -> dict[str, Any]:
    """Measures as of `evaluate`, from the targets and the losses of each sequence."""
    rows, n, s = float((counts > 0).sum()), float(counts.sum()), float(sums.sum())
    products = (counts * counts, sums, sums * sums, sums * counts)
    nn_, _, ss, sn = (float(product.sum()) for product in products)
    loss, interval = ratio(rows, n, nn_, s, ss, sn)
    bits = plain.get("bits_per_byte")
    return {
        "loss": loss,
        "loss_interval": interval,
        "perplexity": perplexity(loss),
        "bits_per_byte": None if bits is None else bits * loss / plain["loss"],
    }
