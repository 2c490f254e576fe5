"""A small whole model of every member with a batch of six uneven rows, and its plain gradient."""

from typing import Any

import torch
from torch import Tensor, nn

from everyformer.checks.cases import small_model
from everyformer.data.batch import EXTRA, IGNORED, Batch
from everyformer.family import info, list_members
from everyformer.training.step import forward

ROWS = 6
STILL: dict[str, dict[str, Any]] = {
    "decision-transformer": {"attention_dropout": 0.0},
    "etc": {"summaries": {"per": "tokens"}},
    "rfa": {"redraw": None},
}
"""of members that draw otherwise: dropout of weights, sentences that are hidden"""
PAIRS = [
    (member.name, task)
    for member in list_members()
    for task in dict.fromkeys((member.tasks[0], *(t for t in ("seq2seq",) if t in member.tasks)))
]
"""members with the first of their tasks, and with an encoder where they have one"""


def model_and_batch(member: str, task: str, **more: Any) -> tuple[Any, Batch]:
    """In float64, without what is drawn; weights and rows are the same on every process."""
    torch.manual_seed(0)
    still = {"dropout": 0.0, "embedding_dropout": 0.0} | STILL.get(member, {})
    model, inputs, targets = small_model(info(member), task, **still, **more)
    extra = {k: t for k, t in model.extra_inputs(inputs).items() if k in EXTRA}
    rows = [Batch(inputs, targets, **extra)]
    for k in range(1, ROWS // 2):
        rows.append(Batch(inputs.roll(k, -1), targets.roll(k, -1), **extra))
    batch = Batch.joined(rows)
    if batch.targets.dim() == 2 and not batch.targets.is_floating_point():
        length = batch.targets.shape[1]
        late = torch.arange(length) >= length - torch.arange(ROWS)[:, None]
        batch = Batch(batch.inputs, batch.targets.masked_fill(late, IGNORED), **batch.extra)
    return model.double().train(), batch._each(lambda t: t.double() if t.is_floating_point() else t)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: w.grad for name, w in model.named_parameters() if w.grad is not None}


def plain_gradient(member: str, task: str) -> tuple[float, dict[str, Tensor]]:
    """By one plain backward pass of all rows."""
    model, batch = model_and_batch(member, task)
    torch.manual_seed(1)
    out = forward(model, batch)
    assert out.loss is not None
    out.loss.backward()
    return out.loss.item(), gradients(model)
