"""Padding, batch and packing: a row is what it is, whatever stands beside it."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from everyformer.laws.rounding import doubled
from everyformer.laws.subject import Subject
from everyformer.laws.verdict import LawBroken, NotJudged


def padding(subject: Subject) -> str:
    """What stands in the padding does not matter; a row padded on the right is the row alone.

    On the left, too, where the model is told positions or knows none but relative ones; a model
    that counts from the first column whatever is real there is `said` to.

    Raises:
        LawBroken: the first real position that differs.
        NotJudged: the model takes no mask.
    """
    if not subject.masks:
        raise NotJudged("it takes no mask")
    length = subject.usual()
    for side in subject.masks:
        contents(subject, length, side)
    said = [f"what stands in padding ({', '.join(subject.masks)}) changes nothing"]
    if subject.takes(length - 2):
        said += [alone(subject, length, s) for s in ("right", "left") if s in subject.masks]
    return "; ".join(said)


def real(length: int, side: str) -> Tensor:
    """(2, L), True at what is real: in the second row two are padding."""
    keep = torch.ones(2, length, dtype=torch.bool)
    padding = {"right": (-2, -1), "left": (0, 1), "holes": (1, length // 2)}[side]
    keep[1, list(padding)] = False
    return keep


def contents(subject: Subject, length: int, side: str) -> None:
    """Other inputs in the padding change nothing at real positions."""
    keep, x = real(length, side), subject.inputs.draw(2, length)
    y, bound = subject.exact(x, keep), subject.bound(x, keep)
    changed = torch.where(keep if x.dim() == 2 else keep[..., None], x, subject.inputs.other(x))
    off = (subject.exact(changed, keep) - y).abs().amax(-1) * keep
    if not bool((off <= bound).all()):
        row, at = (~(off <= bound)).nonzero()[0].tolist()
        raise LawBroken(
            f"output {at} of row {row} moves by {float(off[row, at]):.2g} when other inputs stand "
            f"in its padding ({side}: {(~keep[1]).nonzero()[:, 0].tolist()} of {length}), rounding "
            f"{bound:.0e}",
            subject.code(
                subject.inputs.code(2, length),
                f"keep = torch.tensor({keep.int().tolist()}).bool()",
                f"other = torch.where({'keep' if x.dim() == 2 else 'keep[..., None]'}, x, "
                f"{subject.inputs.other_code()})",
                f"moved = {subject.call_code('other', 'keep')} - {subject.call_code('x', 'keep')}",
                f"print(moved[{row}, {at}].abs().max())  # not 0",
            ),
        )


def alone(subject: Subject, length: int, side: str) -> str:
    """A padded row equals the row alone; of the left, a sentence where it does not."""
    keep, x = real(length, side), subject.inputs.draw(2, length)
    part = slice(None, -2) if side == "right" else slice(2, None)
    y = subject.exact(x, keep)[1:, part]
    # all of it is real: said, since some count positions otherwise where nothing is said
    single = subject.exact(x[1:, part], torch.ones_like(keep[1:, part]))
    off = (single - y).abs().amax((0, 2))
    bound = subject.bound(x, keep)
    if bool((off <= bound).all()):
        return f"a row padded on the {side} is the row alone"
    at = int((~(off <= bound)).nonzero()[0])
    finding = f"output {at} of a row that two padding inputs follow is off by {float(off[at]):.2g}"
    if side == "left":
        return "positions count from the first column, so that padding on the left moves a row"
    raise LawBroken(
        f"{finding} from that of the row alone (length {length - 2}), rounding {bound:.0e}",
        subject.code(
            subject.inputs.code(2, length),
            f"keep = torch.tensor({keep.int().tolist()}).bool()",
            f"padded = {subject.call_code('x', 'keep')}[1:, :-2]",
            "ones = torch.ones_like(keep[1:, :-2])",
            f"print((padded - {subject.call_code('x[1:, :-2]', 'ones')}).abs().max())  # not 0",
        ),
    )


def batch(subject: Subject) -> str:
    """A row alone equals the row in any company and at any place.

    Raises:
        LawBroken: the first row that differs.
    """
    length = subject.usual()
    x = subject.inputs.draw(3, length)
    bound, together = subject.bound(x), subject.exact(x)
    company = x.clone()
    company[1:] = subject.inputs.other(x[1:])
    for what, y, rows in (
        ("alone", subject.exact(x[:1]), slice(0, 1)),
        ("beside other rows", subject.exact(company)[:1], slice(0, 1)),
        ("in the opposite order", subject.exact(x.flip(0)).flip(0), slice(None)),
    ):
        off = (y - together[rows]).abs().amax((1, 2))
        if not bool((off <= bound).all()):
            raise LawBroken(
                f"a row {what} gives outputs that are off by {float(off.max()):.2g} from those in "
                f"a batch of 3 (length {length}, rounding {bound:.0e})",
                subject.code(
                    subject.inputs.code(3, length),
                    "other = x.clone()",
                    f"other[1:] = ({subject.inputs.other_code()})[1:]",
                    f"y = {subject.call_code('x')}",
                    f"print((y - {subject.call_code('other')})[0].abs().max(), "
                    f"(y[:1] - {subject.call_code('x[:1]')}).abs().max())  # not 0",
                ),
            )
    return "alone, beside other rows, in another order" + in_training(subject, length)


def in_training(subject: Subject, length: int) -> str:
    """What is to be said of rows in training, where dropout is none: some norms mix them."""
    if not subject.doubles:
        return ""
    x, made = subject.inputs.draw(3, length), subject.copy(training=True)
    for module in made.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    company = x.clone()
    company[1:] = subject.inputs.other(x[1:])
    with torch.no_grad(), doubled():
        wide = (x.double(), company.double()) if x.is_floating_point() else (x, company)
        off = float((subject.run(made, wide[0]) - subject.run(made, wide[1]))[0].abs().max())
    if off <= subject.bound(x):
        return ""
    norms = [type(m).__name__ for m in made.modules() if isinstance(m, _BatchNorm)]
    by = f", by {norms[0]}" if norms else ""
    return f"; in training a row depends on its company{by}"
