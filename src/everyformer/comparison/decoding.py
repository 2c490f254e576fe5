"""Beside the loss of a language model: decoding speed, use of context, a text."""

import dataclasses
import itertools
import statistics
import time

import torch
import torch.nn.functional as F

from everyformer.comparison.results import Sample
from everyformer.core.state import State
from everyformer.data.dataset import Dataset
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate, initial_state
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model
from everyformer.models.build import build_model

CONTEXTS = (64, 1024)
"""tokens read before the timed ones: short and long"""
WARM_UP, TIMED = 2, 4
POSITION_SEQUENCES = 64
"""validation sequences whose loss is reported by position"""
SAMPLE_TOKENS, PROMPT_SHARE = 200, 0.25
"""of a sample: tokens that are written, and the part of a window that they go on from"""


@torch.inference_mode()
def decoding_times(config: ModelConfig) -> tuple[dict[str, float], int | None]:
    """Seconds a token after a short and a long context, one row: medians of a few tokens.

    The first tokens are not counted. The weights are fresh (speed does not depend on them) and
    tables are made long enough. The second number is the size of the state after the longer context
    in bytes, None where there is no exact state and the whole text is read again.
    """
    longest = CONTEXTS[-1] + WARM_UP + TIMED + 1
    model = build_model(dataclasses.replace(config, max_length=longest)).eval()
    seconds_by_context: dict[str, float] = {}
    state: State | None = None
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
            times.append(time.perf_counter() - start)
        seconds_by_context[str(context)] = statistics.median(times[WARM_UP:])
    return seconds_by_context, None if state is None else state.nbytes


@torch.inference_mode()
def loss_by_position(model: Model, dataset: Dataset) -> list[list[float]]:
    """[first position, mean loss in nats] of up to 16 stretches of a window: context used."""
    total = torch.zeros(dataset.length, dtype=torch.float64)
    count = torch.zeros(dataset.length, dtype=torch.float64)
    for batch in dataset.validation_batches(16, POSITION_SEQUENCES):
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


def sample(model: Model, dataset: Dataset) -> Sample | None:
    """A validation text's beginning and what the model makes of it; None without a tokenizer."""
    if dataset.tokenizer is None:
        return None
    first = next(iter(dataset.validation_batches(1, 1))).inputs[0]
    prompt = first[: max(1, int(dataset.length * PROMPT_SHARE))]
    room = dataset.length - prompt.numel()
    tokens_out = generate(
        model, prompt, tokens=min(SAMPLE_TOKENS, room), sampling=Sampling(temperature=0.8, seed=0)
    )
    decode = dataset.tokenizer.decode
    return {"prompt": decode(prompt.tolist()), "text": decode(tokens_out[0].tolist())}
