"""What a language model is asked beside its loss: decoding speed, use of context, a text."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time

import torch
import torch.nn.functional as F

from everyformer.comparison.results import Sample
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import Dataset
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate, initial_state
from everyformer.models.base import Model
from everyformer.models.build import build_model
from everyformer.models.config import ModelConfig

CONTEXTS = (64, 1024)
"""tokens read before the timed ones: short and long"""
WARM_UP, TIMED = 3, 12


@torch.inference_mode()
def decoding_times(
    config: ModelConfig,
) -> tuple[dict[str, float | None], dict[str, list[float]]]:
    """Milliseconds a token after a short and a long context, one row: medians, and quartiles.

    The first tokens are not counted. The weights are fresh (speed does not depend on them) and
    tables are made long enough. ``state`` is the size of the state at the longer context in bytes,
    None where there is no exact state and the whole text is read again.
    """
    if TASKS[config.task].pictures:
        return {}, {}
    longest = CONTEXTS[-1] + WARM_UP + TIMED + 1
    model = build_model(dataclasses.replace(config, max_length=longest)).eval()
    found: dict[str, float | None] = {}
    spread: dict[str, list[float]] = {}
    for context in CONTEXTS:
        ids = torch.randint(0, config.vocabulary, (1, context))
        state = initial_state(model, 1)
        if state is not None:
            state = model(ids, state=state).state
        times = []
        for _ in range(WARM_UP + TIMED):
            token = torch.randint(0, config.vocabulary, (1, 1))
            start = time.perf_counter()
            if state is None:
                ids = torch.cat((ids, token), 1)
                model(ids)
            else:
                state = model(token, state=state).state
            times.append(1000 * (time.perf_counter() - start))
        low, found[str(context)], high = statistics.quantiles(times[WARM_UP:], n=4)
        spread[str(context)] = [low, high]
        found["state"] = None if state is None else state.nbytes
    return found, spread


@torch.inference_mode()
def loss_by_position(model: Model, dataset: Dataset, limit: int | None) -> list[list[float]]:
    """[first position, mean loss in nats] of up to 16 stretches of a window: context used."""
    total = torch.zeros(dataset.length, dtype=torch.float64)
    count = torch.zeros(dataset.length, dtype=torch.float64)
    for batch in dataset.validation_batches(16, limit):
        logits = model(batch.inputs, mask=batch.mask).logits
        losses = F.cross_entropy(
            logits.transpose(1, 2).float(), batch.targets, reduction="none"
        ).double()
        scored, width = batch.targets != -100, batch.targets.shape[1]
        total[:width] += losses.sum(0)
        count[:width] += scored.sum(0)
    edges = torch.linspace(0, dataset.length, min(16, dataset.length) + 1).round().long().tolist()
    stretches = []
    for a, b in itertools.pairwise(edges):
        scored_here = count[a:b].sum()
        if scored_here > 0:
            stretches.append([float(a), float(total[a:b].sum() / scored_here)])
    return stretches


def sample(model: Model, dataset: Dataset, tokens: int = 200) -> Sample | None:
    """A validation text's beginning and what the model makes of it; None without a tokenizer."""
    if dataset.tokenizer is None:
        return None
    first = next(iter(dataset.validation_batches(1, 1))).inputs[0]
    prompt = first[: max(1, dataset.length // 4)]
    room = dataset.length - prompt.numel()
    tokens_out = generate(
        model, prompt, tokens=min(tokens, room), sampling=Sampling(temperature=0.8, seed=0)
    )
    decode = dataset.tokenizer.decode
    return {"prompt": decode(prompt.tolist()), "text": decode(tokens_out[0].tolist())}
