"""The law `devices`: a member trains where the host reads no number and sends none.

``meta`` stands for every device that is not the host: its tensors have sizes and no numbers, so
that whatever asks for one, and would make another device wait, fails there. In a step that is not
the first nothing goes from one device to the other: constants were sent before. Under autocast, and
in half precision, no operation has floats of two dtypes where devices with numbers want one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from everyformer.checks.cases import LENGTHS, Case, cases, small_model
from everyformer.checks.casting import cast_as_on_gpus
from everyformer.checks.check import Check
from everyformer.core.dispatch import all_pairs_allowed
from everyformer.core.mask import Mask
from everyformer.core.member import Member
from everyformer.core.trials import WIDTH
from sequence_laws.operations import Operations
from sequence_laws.verdict import LawBroken

ELSEWHERE = "meta"
ROWS, LENGTH = 2, LENGTHS[-1]
OF_ONE_DTYPE = (
    *("mm", "mv", "bmm", "addmm", "addmv", "baddbmm", "convolution"),
    *("index_add", "index_copy", "index_put", "scatter_add"),
)
"""operations whose floats must be of one dtype"""
WHOLE = "seq2seq"
"""the task whose models have more parts than others, an encoder"""


def devices(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Forward and backward on ``meta``: of every case, with padding and without, under autocast, of
    the halves of a float, and of whole models."""
    for case in cases(member):
        with _named(str(case)):
            _mixer(case, torch.float32, check)
        with _named(f"{case} under autocast"):
            _cast(case, check)
    for half in (torch.bfloat16, torch.float16):
        with _named(f"{half}"):
            _mixer(Case(member, {}, member.can("causal")), half, check)
    for task in dict.fromkeys((member.tasks[0], *[WHOLE] * (WHOLE in member.tasks))):
        with _named(task):
            _model(member, task, check)


def _mixer(case: Case, dtype: torch.dtype, check: Check) -> None:
    mixer = case.mixer(torch.float32).to(ELSEWHERE, dtype).train()
    x = torch.empty(ROWS, LENGTH, WIDTH, device=ELSEWHERE, dtype=dtype, requires_grad=True)
    masks: list[Mask | None] = [None]
    if case.member.can("padding"):
        padding_mask = torch.empty(ROWS, LENGTH, device=ELSEWHERE, dtype=torch.bool)
        masks.append(Mask(padding_mask=padding_mask))

    for mask in masks:
        if dtype is torch.float32:
            with torch.no_grad():
                mixer(x, mask=mask)
        with _Apart(ELSEWHERE) if dtype is torch.float32 else _Alike():
            out = mixer(x, mask=mask)
            sum(out.losses.values(), out.y.sum()).backward()
    check.true(x.grad is not None, f"{case}: no gradient comes to x")


def _cast(case: Case, check: Check) -> None:
    """A mixer whose products are rounded, on ``x`` of float32; gradients are made outside."""
    mixer = case.mixer(torch.float32).to(ELSEWHERE).train()
    x = torch.empty(ROWS, LENGTH, WIDTH, device=ELSEWHERE, requires_grad=True)
    mask = None
    if case.member.can("padding"):
        mask = Mask(padding_mask=torch.empty(ROWS, LENGTH, device=ELSEWHERE, dtype=torch.bool))
    with _Alike():
        with cast_as_on_gpus(ELSEWHERE):
            out = mixer(x, mask=mask)
            loss = sum(out.losses.values(), out.y.sum())
        loss.backward()
    check.true(x.grad is not None, f"{case}: no gradient comes to x")


def _model(member: Member, task: str, check: Check) -> None:
    model, inputs, targets = small_model(member, task, dropout=0.1)
    extra = {
        name: each.to(ELSEWHERE) if isinstance(each, Tensor) else each
        for name, each in model.extra_inputs(inputs).items()
    }
    model, inputs, targets = model.to(ELSEWHERE), inputs.to(ELSEWHERE), targets.to(ELSEWHERE)
    model(inputs, targets=targets, **extra)
    with _Apart(ELSEWHERE):
        model(inputs, targets=targets, **extra).loss.backward()
    with _Alike():
        with cast_as_on_gpus(ELSEWHERE):
            loss = model(inputs, targets=targets, **extra).loss
        loss.backward()
    learns = any(weight.grad is not None for weight in model.parameters())
    check.true(learns, f"{task}: no weight has a gradient")


class _Apart(Operations):
    """Refuses operations with tensors on a device of this ``kind`` and on another; a single number
    of the host may go with one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        tensors = [*given, *made]
        others = [t for t in tensors if t.device.type != self.kind and t.dim()]
        if 0 < len(others) < len(tensors):
            raise LawBroken(f"{func} has {tuple(others[0].shape)} on {others[0].device}")


class _Alike(Operations):
    """Refuses operations with floats of several dtypes that devices with numbers refuse."""

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        dtypes = {t.dtype for t in given if t.is_floating_point()}
        if len(dtypes) > 1 and func.overloadpacket.__name__.rstrip("_") in OF_ONE_DTYPE:
            raise LawBroken(f"{func} has {' and '.join(sorted(map(str, dtypes)))}")


@contextmanager
def _named(where: str) -> Iterator[None]:
    """A block whose failures say where: torch names operations alone. That all pairs are computed
    where nobody knows which are needed is no failure."""
    try:
        with all_pairs_allowed():
            yield
    except (RuntimeError, NotImplementedError, LawBroken) as error:
        reason, _, _ = str(error).partition("\n")
        raise LawBroken(f"{where} on {ELSEWHERE}: {reason}") from error
