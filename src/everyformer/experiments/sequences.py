"""The Transformer as published, on tasks that a target solves exactly or not at all."""

from __future__ import annotations

from typing import Any

import torch

from everyformer.core.mask import Mask
from everyformer.data.dataset import Dataset
from everyformer.experiments.base import Outcome, Study, experiment, load
from everyformer.experiments.figures import bars
from everyformer.generation.beam import beam_search
from everyformer.generation.config import BeamConfig
from everyformer.models.base import Model
from everyformer.models.build import create_model

TASKS = ("copy", "reverse", "sort")


@experiment(
    "over 95% of sequences of 10 to 20 symbols are copied, reversed and sorted without a fault",
    members=("transformer",),
    minutes=20,
)
def sequences(study: Study) -> Outcome:
    """10 to 20 symbols copied, reversed and sorted; counted are targets right in every token."""
    for name in study.each(TASKS):
        data = load("seq2seq", source=name, length=24, symbols=16)
        model = create_model(
            "transformer", "seq2seq", width=64, layers=2, heads=4, vocabulary=data.vocabulary,
            max_length=data.length + 2, dropout=0.0, embedding_dropout=0.0, **data.target_ends,
        )  # fmt: skip
        how: dict[str, Any] = {"warmup": 0.1, "weight_decay": 0.01, "checkpoint_every": None}
        study.train(model, data, 1500, batch=64, lr=2e-3, **how)
        study.keep(name, exact_matches(model, data), "{:.1%} exact")
    shares = study.means()
    sentence = "Targets right in every token: " + ", ".join(
        f"{name} {share:.1%}" for name, share in shares.items()
    )
    figure = bars(shares, ylabel="exact matches", ylim=(0, 1))
    return Outcome(study.numbers, min(shares.values()) > 0.95, f"{sentence}.", {"exact": figure})


@torch.no_grad()
def exact_matches(model: Model, data: Dataset) -> float:
    """Share of held-out targets that greedy decoding gives in every token."""
    right, total = 0, 0
    for batch in data.validation_batches(64, 256):
        mask = None if batch.keep is None else Mask(keep=batch.keep)
        found = beam_search(model, batch.inputs, mask, BeamConfig(beam=1, extra=4))
        for targets, [best, *_] in zip(batch.targets.tolist(), found, strict=True):
            wanted = [token for token in targets if token != -100][:-1]
            right += best.ended and list(best.tokens) == wanted
            total += 1
    return right / total
