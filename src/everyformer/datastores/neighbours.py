"""Neighbours of every token of a text, their places, and their effect on its probability."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from everyformer.core.errors import UnsupportedError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.datastores.reader import StoreReader
from everyformer.datastores.store.store import Store
from everyformer.datastores.texts import TokenizedText, windows
from everyformer.models.base import evaluating
from everyformer.models.knn_lm import (
    KnnLanguageModel,
    Neighbours,
    log_probabilities,
    mix,
    neighbour_probabilities,
    weights,
)

AROUND = {"bytes": (48, 16), "chars": (48, 16)}
"""tokens of a source's text that are shown before and behind, by the tokenizer's kind"""
OTHERWISE = 12, 5
"""of tokenizers whose tokens are longer"""


@dataclass(frozen=True)
class Neighbour:
    """A row of the store, as the neighbour of a token."""

    document: str
    offset: int
    """the place in it of the token that followed, counted from 0"""
    distance: float
    weight: float
    """its share in p_kNN"""
    before: str
    """the text in front of that token"""
    token: str
    after: str
    right: bool
    """whether it is what came in the text"""


@dataclass(frozen=True)
class Explained:
    """A token of the text that was predicted, without and with the store."""

    text: str
    of_model: float
    """log p_LM"""
    of_neighbours: float
    """log p_kNN"""
    mixed: float
    """log p"""
    neighbours: list[Neighbour]
    """the nearest, nearest first"""

    @property
    def gain(self) -> float:
        """By how many nats the store made it more likely."""
        return self.mixed - self.of_model


def explain(
    reading: KnnLanguageModel, tokenizer: Tokenizer, tokens: np.ndarray, context: int, most: int
) -> list[Explained]:
    """Every token of ``tokens`` (n,) but the first, which nothing predicts.

    Args:
        context: tokens of a window, which lie side by side.
        most: neighbours of a token that are told.

    Raises:
        UnsupportedError: the model reads something else than an index of a store.
    """
    reader = reading.reader
    if not isinstance(reader, StoreReader):
        raise UnsupportedError("neighbours are told of a store that is searched by an index")
    explained: list[Explained] = []
    with evaluating(reading), torch.inference_mode():
        for window in windows(TokenizedText("", tokens), context, context):
            ids = torch.from_numpy(window.inputs.astype(np.int64))[None]
            goals = torch.from_numpy(tokens[window.first + 1 : window.end + 1].astype(np.int64))[
                None
            ]
            out, _, near = reading.look_up(ids, targets=goals)
            logs = log_probabilities(out.logits[0])
            known = neighbour_probabilities(near, logs.shape[-1], reading.options)
            known = known.to(logs.dtype)
            columns = [
                part.gather(-1, goals[0][:, None])[:, 0].tolist()
                for part in (logs, known.log(), mix(logs, known, reading.options.lambda_))
            ]
            w = weights(near.distances, reading.options)
            for n, (of_model, of_store, mixed) in enumerate(zip(*columns, strict=True)):
                goal = int(goals[0, n])
                those = Neighbours(*(part[n, :most] for part in near))
                nearest = _neighbours(reader.index.store, tokenizer, those, w[n], goal)
                text = tokenizer.decode_after(tokens[: window.first + n + 1].tolist()[-8:], [goal])
                explained.append(Explained(text, of_model, of_store, mixed, nearest))
    return explained


def _neighbours(
    store: Store, tokenizer: Tokenizer, hits: Neighbours, w: Tensor, goal: int
) -> list[Neighbour]:
    """Neighbours of one token, with the text around each."""
    names, offsets = store.document_of(hits.rows)
    numbers = store.number_of(np.asarray(hits.rows))
    before, after = AROUND.get(tokenizer.kind, OTHERWISE)
    nearest = []
    for n, row in enumerate(hits.rows.tolist()):
        if row < 0:
            break
        first = row - int(offsets[n])
        end = first + store.record.rows[numbers[n]]
        read, own, come = (
            store.values[a:b].tolist()
            for a, b in (
                (max(first, row - before), row),
                (row, row + 1),
                (row + 1, min(end, row + 1 + after)),
            )
        )
        nearest.append(
            Neighbour(
                document=str(names[n]),
                # the first token of a document follows nothing
                offset=int(offsets[n]) + 1,
                distance=float(hits.distances[n]),
                weight=float(w[n]),
                before=tokenizer.decode(read),
                token=tokenizer.decode_after(read, own),
                after=tokenizer.decode_after([*read, *own], come),
                right=own == [goal],
            )
        )
    return nearest
