"""The likelihood of a text's tokens, by a model and by the neighbours that it finds in a store.

The text is read once and each token's neighbours are searched once, at the largest k: the others
are prefixes of them. Which k, T and lambda are good is then a matter of a few numbers a token.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.core.devices import widest
from everyformer.core.modules import evaluating
from everyformer.data.batch import IGNORED
from everyformer.data.text import TextDataset
from everyformer.models.knn_lm import KnnLanguageModel, log_probabilities, weights


class Likelihoods(NamedTuple):
    """Log-probabilities of the N scored targets of a text, float64, on the CPU."""

    of_model: Tensor
    """(N,)"""
    of_neighbours: Tensor
    """(N, K, T), of each k and temperature"""


@torch.no_grad()
def likelihoods(
    reading: KnnLanguageModel,
    dataset: TextDataset,
    ks: Sequence[int],
    temperatures: Sequence[float],
    *,
    batch: int = 16,
    limit: int | None = None,
) -> Likelihoods:
    """Read the held-out part of ``dataset``, or ``limit`` of its windows, ``batch`` at a time."""
    options = replace(reading.options, k=max(ks))
    reading = KnnLanguageModel(reading.model, reading.reader, options, reading.tap)
    device = next(reading.parameters()).device
    last, parts = torch.tensor(ks, device=device) - 1, []
    with evaluating(reading):
        for part in (windows.to(device) for windows in dataset.validation_batches(batch, limit)):
            out, real, near = reading.look_up(part.inputs, mask=part.mask)
            scored = part.targets[real] != IGNORED
            goals = part.targets[real][scored, None]
            logs = log_probabilities(out.logits[real][scored]).gather(-1, goals)[:, 0]
            distances, right = near.distances[scored], near.values[scored] == goals
            known = []
            for temperature in temperatures:
                w = weights(distances, replace(options, temperature=temperature)).to(widest(device))
                known.append((w * right).cumsum(-1)[:, last] / w.cumsum(-1)[:, last])
            each = logs, torch.stack(known, -1).log().to(logs.dtype)
            parts.append([t.cpu().double() for t in each])
    return Likelihoods(*map(torch.cat, zip(*parts, strict=True)))
