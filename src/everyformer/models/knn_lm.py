"""kNN-LM: what followed the nearest contexts of a store is mixed into what a model predicts.

    q = f(x_<t),   N = k nearest keys of the store by d(k_i, q)
    p_kNN(y) = sum over i in N of [v_i = y] softmax_i(-d_i / T)
    p(y) = lambda p_kNN(y) + (1 - lambda) p_LM(y)

f is what the feed-forward of the last layer reads, behind its norm (`ffn-input:-1`); keys are f of
the contexts in the stored texts, values the tokens that came next. d is the squared distance, its
root, or 1 - cos. Nothing is trained.

Cost: a search a token and O(k + V).

Source: Khandelwal et al. 2020, arXiv 1911.00172, sections 2 and 3; T from later work (1 there).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.core.subset import gather_rows
from everyformer.engines.softmax.attention import weights_of
from everyformer.genes.retrieval import K, KnnOptions
from everyformer.models.language import LanguageModel, last_of, total_loss

EM_ROUNDS, EM_CHANGE = 200, 1e-6
STARTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""weights, as far as they are allowed, that the one that EM finds must not be worse than"""


class Neighbours(NamedTuple):
    """The neighbours of queries (N, width), nearest first."""

    distances: Tensor
    """(N, k): squared, or 1 - cos"""
    values: Tensor
    """(N, k) int64, the tokens that followed them"""


class Reader(Protocol):
    """A store with its index, as `KnnLanguageModel` reads it."""

    def read(self, queries: Tensor, k: int) -> Neighbours:
        """The nearest keys."""


class LookedUp(NamedTuple):
    """A pass of the model alone, and what a store has for it."""

    out: ModelOutput
    """of the model, with the tap; where the last tokens are requested, logits of those"""
    real: Tensor
    """(B, L) bool: tokens that are no padding, in whose order there are N queries"""
    neighbours: Neighbours
    """the neighbours of those"""


class ReadingModel(nn.Module):
    """Base of models that read a store with a language model, and are otherwise that model."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.config = model, model.config
        self.train(model.training)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model, as far as this has none of the name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


class KnnLanguageModel(ReadingModel):
    """A causal language model that reads a store; called as the model is.

    Its logits are logarithms of the mixed probabilities. In training it is the model alone.

    Args:
        tap: where keys come from (`everyformer.core.taps`).
    """

    def __init__(
        self, model: LanguageModel, reader: Reader, options: KnnOptions, tap: str = "ffn-input:-1"
    ) -> None:
        super().__init__(model)
        self.reader, self.options, self.tap = reader, options, tap

    @property
    def why_infinite(self) -> str | None:
        """The cause of an infinite loss, where the store is."""
        if self.options.weight != 1:
            return None
        return (
            "with lambda 1 the neighbours alone predict, so a token that none of them has gets the "
            "probability 0: give a weight below 1 (--retrieval.weight of train, --knn.weight "
            "with --store)"
        )

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        last: int | None = None,
    ) -> ModelOutput:
        """`LanguageModel.forward` with neighbours; where nothing is predicted the model alone."""
        if self.training or self.options.lambda_ == 0:
            return self.model(inputs, targets=targets, mask=mask, state=state, taps=taps, last=last)
        out, real, result = self.look_up(inputs, mask=mask, state=state, taps=taps, last=last)
        goals = targets
        if last is not None and targets is not None:
            goals = targets.gather(1, last_of(inputs, last, mask))
        logs = log_probabilities(out.logits)
        known = neighbour_probabilities(result, self.config.vocabulary, self.options).to(logs.dtype)
        mixed = logs.index_put((real,), mix(logs[real], known, self.options.lambda_))
        loss, losses = total_loss(mixed, goals, {}, self.config)
        inside = {tap: out.taps[tap] for tap in taps}
        return ModelOutput(mixed, loss, losses, out.state, taps=inside)

    def look_up(
        self,
        inputs: Tensor,
        *,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        last: int | None = None,
    ) -> LookedUp:
        """The model alone, and the neighbours of every token that is no padding."""
        expected = taps if self.tap in taps else (*taps, self.tap)
        out = self.model(inputs, mask=mask, state=state, taps=expected, last=last)
        queries = out.taps[self.tap]
        real = torch.ones(inputs.shape, dtype=torch.bool, device=inputs.device)
        real = real if mask is None or mask.padding_mask is None else mask.padding_mask
        at = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
        if last is not None:
            at = last_of(inputs, last, mask)
            queries = gather_rows(queries, at)
        predicted = real.gather(1, at)
        result = self.reader.read(queries[predicted].float(), self.options.k or K)
        return LookedUp(out, predicted, result)


def log_probabilities(logits: Tensor) -> Tensor:
    """log p_LM, in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def weights(distances: Tensor, options: KnnOptions) -> Tensor:
    """softmax_i(-d_i / T) of distances (N, k); a query without neighbours has zeros."""
    d = distances.sqrt() if options.distance == "root" else distances
    return weights_of(-d / options.divisor)


def neighbour_probabilities(neighbours: Neighbours, vocabulary: int, options: KnnOptions) -> Tensor:
    """p_kNN (N, V)."""
    w = weights(neighbours.distances, options)
    return w.new_zeros(len(w), vocabulary).scatter_add(1, neighbours.values, w)


def mixed(of_model: Tensor, of_neighbours: Tensor, weight: float) -> Tensor:
    """log p from log p_LM and log p_kNN; exact where lambda is 0 or 1."""
    if weight in (0, 1):
        return of_neighbours if weight else of_model
    return torch.logaddexp(math.log(weight) + of_neighbours, math.log1p(-weight) + of_model)


def mix(of_model: Tensor, of_neighbours: Tensor, weight: float) -> Tensor:
    """log p from log p_LM and p_kNN (N, V); a query without neighbours has the model alone."""
    known = of_neighbours.any(-1, keepdim=True)
    return torch.where(known, mixed(of_model, of_neighbours.log(), weight), of_model)


def highest_weight(tokens: int) -> float:
    """The largest lambda that so many ``tokens`` can speak for, n / (n + 1).

    It is the best one of a text of n tokens that only neighbours know and one more that none of
    them has. Below it a token that no neighbour has costs at most log(n + 1) more than by the model
    alone, where at 1 it costs infinitely much; on the n tokens themselves that is worth less than
    one nat, all of them together.
    """
    return tokens / (tokens + 1)


def best_weight(of_model: Tensor, of_neighbours: Tensor) -> float:
    """The lambda that makes targets most likely, from their log p_LM and log p_kNN (N,), by EM.

    Each round it becomes the mean share of p_kNN in p, from 0.5 on, of those tokens that either of
    the two finds possible. It is at most `highest_weight`; where it does not come to the best of 0,
    1/4, 1/2, 3/4 and that one (the ends are no places where it could begin), that is taken.
    """
    most = highest_weight(len(of_model))
    possible = torch.maximum(of_model, of_neighbours) > -math.inf
    of_model, of_neighbours = (of[possible].cpu().double() for of in (of_model, of_neighbours))
    if not len(of_model):
        return 0.0
    weight = torch.tensor(0.5, dtype=torch.float64)
    for _ in range(EM_ROUNDS):
        # what p_kNN has of p, from odds, which are never 0 / 0
        share = (weight.logit() + of_neighbours - of_model).sigmoid().mean()
        change, weight = abs(share - weight), share
        if change < EM_CHANGE:
            break

    def loss(candidate: float) -> float:
        return -float(mixed(of_model, of_neighbours, candidate).mean())

    return min((min(candidate, most) for candidate in (float(weight), *STARTS)), key=loss)
