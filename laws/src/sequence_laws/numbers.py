"""Numbers: the model in other dtypes."""

import itertools

import torch
from torch import Tensor

from sequence_laws.behaviour import random
from sequence_laws.clashes import is_clash, their_lines
from sequence_laws.foreign import describe, place
from sequence_laws.lost_digits import lost_digits
from sequence_laws.rounding import computed
from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken, join_names

FAR, MANY = 1024, 2**24
"""inputs of a text, and numbers that it may give, that are computed in bfloat16"""


def numbers(subject: Subject) -> str:
    """Finite outputs, of features of 1e4 and in bfloat16 too, in which a digit is right: at three
    positions of four the median error is below a tenth of the spread of all outputs. In float32
    there are more digits than in bfloat16. A `strict` subject has all that in float16 too, with
    finite gradients, also of one input and of rows that are nothing but padding.

    bfloat16 is tried at several lengths up to the model's own, `FAR` at most, and at each behind
    the shorter ones, since it cannot tell whole numbers beyond 256.

    Raises:
        LawBroken: an output is not finite, or has no digit right in bfloat16.
    """
    subject.require_weights()
    length, found = subject.usual(), [*filter(None, [left(subject)])]
    x = subject.inputs.draw(2, length)
    if subject.inputs.vocabulary is None:
        with torch.no_grad():
            large = subject.run(subject.copy(torch.float32), 1e4 * x)
        finding = "features of 1e4 give outputs that are not finite"
        require_finite(subject, large, finding, "float32", "1e4 * x")
        found.append("finite at 1e4")
    y = subject.exact(x)
    require_finite(subject, y, "outputs are not finite", "float64")
    if subject.strict:
        found.append(extremes(subject, length))
    most = min(subject.max_length() or FAR, FAR, MANY // y.shape[-1])
    longer = sorted(n for n in {64, 256, 512, most} if length < n <= most)
    before, worst = 0, 0.0
    for end in [length, *filter(subject.takes, longer)]:
        share = digits(subject, torch.bfloat16, end, 0 if subject.pools else before)
        if share is None:
            return ", ".join([*found, "it does not run in bfloat16"])
        if not before and subject.wide is torch.float64:
            scale_window(subject, length, share)
        before, worst = end, max(worst, share)
    if subject.wide is torch.float64:
        lost_digits(
            subject, next((n for n in (320, before) if n <= before and subject.takes(n)), before)
        )
    found.append(f"bfloat16 is off by {worst:.1g} of the spread at most, to length {before}")
    return ", ".join(found)


def left(subject: Subject) -> str:
    """What is said of tensors that other laws move to float64."""
    names = join_names(subject.strays)
    return f".to() leaves {names}, outside parameters and buffers, as it is" if names else ""


def scale_window(subject: Subject, length: int, coarse: float) -> None:
    """Raise `LawBroken` where float32 has no more digits than bfloat16, of which an error is
    ``coarse``: something is computed in bfloat16 or float16 whatever is requested."""
    fine = digits(subject, torch.float32, length, 0)
    lost = fine is not None and fine > max(coarse / 16, 1e-6)
    # random numbers of its own are others in each dtype
    if lost and not random(subject, subject.inputs.draw(2, length)):
        raise LawBroken(
            f"float32 has the digits of bfloat16: its error against float64 is {fine:.1g} of the "
            f"spread, that of bfloat16 {coarse:.1g} (length {length})"
        )


def extremes(subject: Subject, length: int) -> str:
    """Outputs and gradients in three dtypes are finite: of large features, one input, and rows
    without any; and in float16 a digit is right."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    for kind, end in itertools.product(kinds, (1, length)):
        # beyond sqrt(65504) projections themselves leave float16's range
        large = 1 if subject.inputs.vocabulary else 100 if kind is torch.float16 else 1e4
        x = large * subject.inputs.draw(2, end)
        x = x.to(kind).requires_grad_() if x.is_floating_point() else x
        nothing = torch.ones(x.shape[:2], dtype=torch.bool)
        nothing[1] = False
        model = subject.copy(kind)
        for padding_mask in (None, nothing) if subject.masks else (None,):
            y = subject.run(model, x, padding_mask)
            where = f"{kind} at length {end}" + " with a row of padding" * (
                padding_mask is not None
            )
            if not torch.isfinite(y).all():
                raise LawBroken(f"outputs in {where} are not finite")
            into = [x] if x.requires_grad else [*model.parameters()]
            parts = torch.autograd.grad(y.float().sum(), into, allow_unused=True)
            if not all(torch.isfinite(part).all() for part in parts if part is not None):
                raise LawBroken(f"gradients in {where} are not finite")
    digits(subject, torch.float16, length, 0)
    return "in three dtypes, of rows of padding, with gradients"


def require_finite(subject: Subject, y: Tensor, finding: str, dtype: str, x: str = "x") -> None:
    """Raise `LawBroken` with the finding where outputs of ``x`` in a dtype are not finite."""
    if torch.isfinite(y).all():
        return
    raise LawBroken(
        finding,
        subject.code(
            f"model = model.to(torch.{dtype})",
            subject.inputs.code(*y.shape[:2]).replace("float64", dtype),
            f"print({subject.call_code(x)}.isfinite().all())  # False",
            double=False,
        ),
    )


def digits(subject: Subject, kind: torch.dtype, length: int, before: int) -> float | None:
    """Error of a dtype behind ``before`` inputs as a share of the spread; None where the model does
    not run in it on this device.

    Raises:
        LawBroken: it is a tenth or more, or not finite.
    """
    x, name = subject.inputs.draw(16 if subject.pools else 2, length), str(kind).partition(".")[2]
    y, cast = subject.exact(x), f"x.to({kind})" if x.is_floating_point() else "x"
    try:
        with torch.no_grad():
            low = subject.run(subject.copy(kind), x.to(kind) if x.is_floating_point() else x)
    except RuntimeError as error:  # but for a clash, of what this device lacks in this dtype
        if subject.mixed or not is_clash(error):
            return None
        at = f" ({lines[-1]})" if (lines := their_lines(error)) and not place(error) else ""
        raise LawBroken(
            "; ".join(filter(None, [f"in {name} it fails: {describe(error)}{at}", left(subject)])),
            subject.code(
                subject.inputs.code(len(x), length),
                f"model = model.to({kind})",
                f"{subject.call_code(cast)}  # fails",
                double=False,
            ),
        ) from error
    low = low.double()
    kept = computed(y)
    y, low = y[..., kept], low[..., kept]
    require_finite(subject, low, f"outputs in {name} are not finite", name)
    # one number a row may hardly differ from that of another
    spread = float(y.square().mean().sqrt() if y[0].numel() == 1 else y.std())
    off = float((low - y)[:, before:].abs().median(-1).values.quantile(0.75))
    lost = off >= spread / 10 and spread > subject.bound(x)
    if lost and not random(subject, x):
        raise LawBroken(
            f"in {name} no digit is right: at length {length}, behind {before}, outputs are off "
            f"by {off:.2g}, and spread by {spread:.2g}",
            subject.code(
                subject.inputs.code(len(x), length),
                f"y = {subject.call_code('x')}",
                f"model = model.to({kind})",
                f"off = ({subject.call_code(cast)} - y){f'[:, {before}:]' * (not subject.pools)}",
                "print(off.abs().median() / y.std())",
            ),
        )
    return off / max(spread, subject.bound(x))
