"""The last line of a verb: what ran, the time of a token, and the share of its limit."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from everyformer.cli.parsing import say
from everyformer.generation.quantised import made_anew
from everyformer.lab.bench.limits import account
from everyformer.training.evaluate import evaluate

if TYPE_CHECKING:
    from everyformer.data.dataset import Dataset
    from everyformer.generation.sampling import TokenStream
    from everyformer.models.base import Model


def say_written(drawn: TokenStream, length: int) -> None:
    """The engine, the time of a token and the share of its limit, by a token more after texts of
    ``length`` tokens."""
    if not drawn.times:
        return
    model, state, device = drawn.model, drawn.state, next(drawn.model.parameters()).device
    length = min(length, model.longest or length)
    rows = drawn.rows if state is None else len(state.num_tokens)
    read = torch.zeros(rows or 1, length, dtype=torch.long, device=device)
    if state is not None:
        read, past = read[:, :1], read[:, 1:]
        if rows == 0 or state.num_tokens.max() == model.longest:
            # all texts ended, or no further token fits
            state = model(past, state=model.init_state(len(past)), last=1).state
    computing, choosing = map(median, zip(*drawn.times, strict=True))
    say(
        account(
            lambda: model(read, state=state, last=1), computing + choosing, outside=choosing,
            compiled=drawn.compiled, spared=made_anew(model), device=device.type,
        )
    )  # fmt: skip


def say_evaluated(model: Model, dataset: Dataset, batch: int, precision: str) -> None:
    """Likewise of an evaluation of texts, by a batch again."""
    run = partial(
        evaluate, model, dataset, batch=batch, limit=batch, precision=precision, remember=False
    )
    started = time.perf_counter()
    found = run()
    seconds = time.perf_counter() - started
    assert found is not None
    kind, tokens = next(model.parameters()).device.type, found["scored"]
    say(account(run, seconds / tokens, tokens=tokens, device=kind))
