"""The law `devices`: a member trains where the host reads no number.

``meta`` stands for every device that is not the host: its tensors have sizes and no numbers, so
that whatever asks for one, and would make another device wait, fails there.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from everyformer.core.dispatch import AllPairsWarning
from everyformer.core.mask import Mask
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS
from everyformer.core.trials import WIDTH
from everyformer.laws.verdict import LawBroken
from everyformer.verification.cases import LENGTHS, Case, cases, small_model
from everyformer.verification.check import Check

ELSEWHERE = "meta"
ROWS, LENGTH = 2, LENGTHS[-1]
WHOLE = ("seq2seq", "policy")
"""tasks whose models have more parts than others: an encoder, a state in training"""


def devices(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Forward and backward on ``meta``: of every case, with padding and without, of the halves of a
    float, and of whole models."""
    for case in cases(member):
        with _named(str(case)):
            _mixer(case, torch.float32, check)
    for half in (torch.bfloat16, torch.float16):
        with _named(f"{half}"):
            _mixer(Case(member, {}, member.can("causal")), half, check)
    for task in dict.fromkeys((member.tasks[0], *(t for t in WHOLE if t in member.tasks))):
        with _named(task):
            _model(member, task, check)


def _mixer(case: Case, dtype: torch.dtype, check: Check) -> None:
    mixer = case.mixer(torch.float32).to(ELSEWHERE, dtype).train()
    x = torch.empty(ROWS, LENGTH, WIDTH, device=ELSEWHERE, dtype=dtype, requires_grad=True)
    masks: list[Mask | None] = [None]
    if case.member.can("padding"):
        keep = torch.empty(ROWS, LENGTH, device=ELSEWHERE, dtype=torch.bool)
        masks.append(Mask(keep=keep))

    for mask in masks:
        out = mixer(x, mask=mask)
        sum(out.losses.values(), out.y.sum()).backward()
    check.true(x.grad is not None, f"{case}: no gradient comes to x")


def _model(member: Member, task: str, check: Check) -> None:
    dropout = {} if TASKS[task].interacts else {"dropout": 0.1}
    model, inputs, targets = small_model(member, task, **dropout)
    extra = {
        name: each.to(ELSEWHERE) if isinstance(each, Tensor) else each
        for name, each in model.extra_inputs(inputs).items()
    }
    model, inputs, targets = model.to(ELSEWHERE), inputs.to(ELSEWHERE), targets.to(ELSEWHERE)
    model(inputs, targets=targets, **extra).loss.backward()
    learns = any(weight.grad is not None for weight in model.parameters())
    check.true(learns, f"{task}: no weight has a gradient")


@contextmanager
def _named(where: str) -> Iterator[None]:
    """A block whose failures say where: torch names operations alone. That all pairs are computed
    where nobody knows which are needed is no failure."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AllPairsWarning)
            yield
    except (RuntimeError, NotImplementedError) as error:
        reason, _, _ = str(error).partition("\n")
        raise LawBroken(f"{where} on {ELSEWHERE}: {reason}") from error
