"""Beside the loss of a language model: what a token costs, use of context, a text."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.state import State
from everyformer.data.dataset import Dataset
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate, initial_state
from everyformer.genes.config import ModelConfig
from everyformer.lab.bench.timing import seconds_of, summary
from everyformer.lab.compare.results import Sample
from everyformer.models.base import Model
from everyformer.models.build import build_model

CONTEXTS, LONGEST = (64, 1024), 16384
"""tokens read before the timed ones where none are asked for: short and long, and up to the length
of the data's texts where that is longer, which is cut here"""
WARM_UP, TIMED = 2, 4
CHUNK = 1024
"""tokens that are read at once to fill a state"""
SLOW = 0.5
"""seconds from which on one token is timed alone, of models that read the whole text again"""
ROOM = 2**29
"""bytes of filled states that stay for further rounds; what is beyond is filled again"""
POSITION_SEQUENCES = 64
"""validation sequences whose loss is reported by position"""
SAMPLE_TOKENS, PROMPT_SHARE = 200, 0.25
"""of a sample: tokens that are written, and the part of a window that they go on from"""


def contexts(requested: Sequence[int] | None, dataset: Dataset) -> tuple[int, ...]:
    """Numbers of tokens after which one is timed, ascending; none of a task that writes no texts.

    Args:
        requested: given in a comparison's options; None: the usual ones.
    """
    if not dataset.does.continues:
        return ()
    if requested is None:
        requested = (*CONTEXTS, *([min(dataset.length, LONGEST)] * (dataset.length > CONTEXTS[-1])))
    return tuple(sorted(set(requested)))


@dataclass(frozen=True)
class Decoded:
    """The cost of a token, by the number of tokens before it, one row."""

    seconds: dict[str, float] = field(default_factory=dict)
    """median of a few tokens, the first ones not counted; of what the tables can hold"""
    state_bytes: dict[str, int] = field(default_factory=dict)
    """of the state then; none where there is no exact state and the whole text is read again"""
    longest: int | None = None
    """tokens that its tables can hold, where it has some"""


Filled = dict[tuple[str, int], State]
"""states by member and number of tokens"""


@torch.inference_mode()
def decode(
    config: ModelConfig, contexts: Sequence[int], filled: Filled, device: str = "cpu"
) -> Decoded:
    """Cost of a token after each of ``contexts`` that the model can hold.

    The weights are fresh: speed does not depend on them. Tables are as long as those that are
    trained, with room for the tokens that are timed.

    Args:
        filled: of earlier calls, which this one adds to as long as there is `ROOM`.
        device: on which it writes.
    """
    longer = (config.max_length or 0) + WARM_UP + TIMED
    model = build_model(dataclasses.replace(config, max_length=longer)).to(device).eval()
    longest = None if model.longest is None else model.longest - WARM_UP - TIMED
    seconds, sizes = {}, {}
    for context in contexts:
        if longest is None or context <= longest:
            ids = torch.randint(0, config.vocabulary, (1, context), device=device)
            state = filled.get((config.member, context)) or _fill(model, ids)
            seconds[str(context)] = _token(model, ids, state)
            if state is not None:
                sizes[str(context)] = state.nbytes
                if sum(each.nbytes for each in filled.values()) + state.nbytes <= ROOM:
                    filled[config.member, context] = state
    return Decoded(seconds, sizes, longest)


def _fill(model: Model, ids: Tensor) -> State | None:
    """The state after ``ids``; None where the model has no exact one."""
    state: State | None = initial_state(model, len(ids))
    for piece in ids.split(CHUNK, dim=1) if state is not None else ():
        state = model(piece, state=state, last=1).state
    return state


def _token(model: Model, ids: Tensor, state: State | None) -> float:
    """Median seconds of a token after ``ids``, whose state is ``state``."""
    tokens = iter(torch.randint(0, model.config.vocabulary, (WARM_UP + TIMED, 1, 1)).to(ids.device))

    def token() -> None:
        nonlocal ids, state
        if state is None:
            ids = torch.cat((ids, next(tokens)), 1)
            model(ids, last=1)
        else:
            state = model(next(tokens), state=state).state

    device = ids.device.type
    first = seconds_of(token, device)
    if first > (SLOW if state is None else math.inf):
        return first
    times = [seconds_of(token, device) for _ in range(WARM_UP - 1 + TIMED)]
    return summary(times[WARM_UP - 1 :])[0]


@torch.inference_mode()
def loss_by_position(model: Model, dataset: Dataset) -> list[list[float]]:
    """[first position, mean loss in nats] of up to 16 parts of a window: context used."""
    total = torch.zeros(dataset.length, dtype=torch.float64)
    count = torch.zeros(dataset.length, dtype=torch.float64)
    device = next(model.parameters()).device
    for batch in dataset.validation_batches(16, POSITION_SEQUENCES):
        batch = batch.to(device)
        logits = model(batch.inputs, mask=batch.mask).logits
        losses = F.cross_entropy(logits.transpose(1, 2).float(), batch.targets, reduction="none")
        scored, width = batch.targets != -100, batch.targets.shape[1]
        total[:width] += losses.cpu().double().sum(0)
        count[:width] += scored.sum(0).cpu()
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
