"""Batch and packing: a row does not depend on the rows around it, a document on its row."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sequence_laws.inputs import seed
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken


def packing(subject: Subject) -> str:
    """A document in a row of several is the document alone.

    Raises:
        LawBroken: the first position that differs.
        Inapplicable: the model takes no documents; `reported`: positions that start over, which
            some libraries take for documents, do not keep them apart.
    """
    if not subject.packs:
        raise Inapplicable(subject.unpacked)
    subject.require_positions()
    length = max(n for n in subject.lengths() if n <= 33)
    first = length // 2 - 1
    if first < 1 or not (subject.takes(first) and subject.takes(length - first)):
        raise Inapplicable("it does not take rows and documents of half their length", "undecided")
    x = subject.inputs.draw(1, length)
    documents = (torch.arange(length) >= first).long()[None]
    alone = torch.cat((subject.exact(x[:, :first]), subject.exact(x[:, first:])), 1)
    bound, y = subject.bound(x), _packed(subject, x, documents)
    off = (y - alone)[0].abs().amax(-1)
    if bool((off <= bound).all()):
        return f"documents of {first} and {length - first} in a row, marked by {subject.packs}"
    other = x.clone()
    other[:, :first] = subject.inputs.other(x[:, :first])
    seen = float((_packed(subject, other, documents) - y)[0, first:].abs().max())
    if seen > bound and not subject.separates:
        raise Inapplicable(f"{subject.packs} that start over do not separate documents", "reported")
    at = int((~(off <= bound)).nonzero()[0])
    by = f"it moves by {seen:.2g} with the document before" if seen > bound else "none sees another"
    raise LawBroken(
        f"output {at} is off by {float(off[at]):.2g} from that of its document alone where two, of "
        f"{first} and {length - first}, stand in a row and are marked by {subject.packs}; {by}",
        subject.code(
            subject.inputs.code(1, length),
            f"documents = (torch.arange({length}) >= {first}).long()[None]",
            f"y = {subject.packed_code()}",
            f"alone = {subject.call_code(f'x[:, :{first}]')}, "
            f"{subject.call_code(f'x[:, {first}:]')}",
            f"print((y - torch.cat(alone, 1))[0, {at}].abs().max())  # not 0",
        ),
    )


def _packed(subject: Subject, x: Tensor, documents: Tensor) -> Tensor:
    with torch.no_grad(), subject.exactly():
        seed(0)
        wide = subject.widened(x)
        return subject.outputs(subject.packed(subject.copy(), wide, documents), x)


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
        ("with other rows", subject.exact(company)[:1], slice(0, 1)),
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
                    f"(y[:1] - {subject.call_code('x[:1]')}).abs().max(), "
                    f"(y - {subject.call_code('x.flip(0)')}.flip(0)).abs().max())  # one is not 0",
                ),
            )
    return "alone, with other rows, in another order" + in_training(subject, length)


def in_training(subject: Subject, length: int) -> str:
    """Remark on rows in training, where dropout is none: some norms mix them."""
    if not subject.doubles:
        return ""
    if not subject.takes(length, training=True):
        length = subject.usual(training=True)
    x, made = subject.inputs.draw(3, length), subject.copy(training=True)
    for module in made.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    company = x.clone()
    company[1:] = subject.inputs.other(x[1:])
    with torch.no_grad(), subject.exactly():
        wide = subject.widened(x), subject.widened(company)
        off = float((subject.run(made, wide[0]) - subject.run(made, wide[1]))[0].abs().max())
    if off <= subject.bound(x):
        return ""
    norms = [type(m).__name__ for m in made.modules() if isinstance(m, _BatchNorm)]
    by = f", by {norms[0]}" if norms else ""
    return f"; in training a row depends on its company{by}"
