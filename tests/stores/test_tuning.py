"""What makes a text likely, from one reading of it: an evaluation with those very options."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.data.text import TextDataset
from everyformer.genes.retrieval import KnnOptions
from everyformer.models.knn_lm import KnnLanguageModel, Neighbours, mixed
from everyformer.stores.tuning import likelihoods
from everyformer.training.evaluate import evaluate

DRAW = torch.Generator().manual_seed(0)
KS, TEMPERATURES, WEIGHTS = (1, 4, 9), (0.5, 3.0), (0.0, 0.3, 1.0)


class Near:
    """A store in memory, searched by brute force; it remembers what it is asked."""

    def __init__(self, width: int, vocabulary: int, count: int = 60) -> None:
        self.keys = torch.randn(count, width, generator=DRAW).double()
        self.values = torch.randint(0, vocabulary, (count,), generator=DRAW)
        self.asked: list[tuple[int, int]] = []

    def read(self, queries: Tensor, k: int) -> Neighbours:
        self.asked.append((len(queries), k))
        best = (queries[:, None].double() - self.keys[None]).square().sum(-1).sort(-1)
        return Neighbours(best.values[:, :k], self.values[best.indices[:, :k]])


@pytest.mark.parametrize("distance", ["squared", "root"])
def test_losses_are_those_of_evaluations_and_the_text_is_read_once(distance: Any) -> None:
    """53 tokens in windows of 10, of which the last reaches back."""
    torch.manual_seed(0)
    made: Any = ef.create_model("rope", width=8, heads=2, layers=1, vocabulary=5, max_length=16)
    reader, tokens = Near(8, 5), np.random.default_rng(0).integers(0, 5, 53)
    reading = KnnLanguageModel(made.double(), reader, KnnOptions(k=2, distance=distance))
    text = TextDataset(
        name="t", task="lm", kind="text", vocabulary=5, length=10, split="", fingerprint="",
        train=tokens, validation=tokens,
    )  # fmt: skip
    of_model, of_neighbours = likelihoods(reading, text, KS, TEMPERATURES, batch=2)
    assert reader.asked == [(20, 9), (20, 9), (20, 9)]
    assert of_neighbours.shape == (len(of_model), 3, 2) == (52, 3, 2)
    assert reading.training
    for (i, k), (j, t), w in itertools.product(enumerate(KS), enumerate(TEMPERATURES), WEIGHTS):
        loss = -float(mixed(of_model, of_neighbours[:, i, j], w).mean())
        found = evaluate(
            KnnLanguageModel(reading.model, reader, KnnOptions(k, w, t, distance)), text, batch=3
        )
        assert loss == (
            math.inf if math.isinf(found["loss"]) else pytest.approx(found["loss"], rel=1e-9)
        )
