"""Padding, batch and packing: a row does not depend on the rows and padding around it."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import seed
from sequence_laws.rounding import GAP, rounding
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken


def padding(subject: Subject) -> str:
    """Padding does not matter, whatever stands in it; a padded row is the row alone.

    Raises:
        LawBroken: the first real position that differs.
        Inapplicable: the model takes no mask; `reported`: padding on the left moves a row, since
            its positions count it (`Subject.counts_padding`).
    """
    if not subject.masks:
        raise Inapplicable(subject.unmasked)
    length = subject.usual()
    for side in subject.masks:
        contents(subject, length, side)
    found = [f"what stands in padding ({', '.join(subject.masks)}) changes nothing"]
    moved = 0.0
    if subject.takes(length - 2):
        for side in [side for side in ("right", "left") if side in subject.masks]:
            moved = alone(subject, length, side)
            found += [f"a row padded on the {side} is the row alone"] * (not moved)
        found += losses(subject, length)
    if moved:
        found.insert(0, f"padding on the left moves a row by {moved:.2g}: positions count it")
        raise Inapplicable("; ".join(found), "reported")
    return "; ".join(found)


def real(length: int, side: str) -> Tensor:
    """(2, L), True at what is real: in the second row two are padding."""
    padding_mask = torch.ones(2, length, dtype=torch.bool)
    padding = {"right": (-2, -1), "left": (0, 1), "holes": (1, length // 2)}[side]
    padding_mask[1, list(padding)] = False
    return padding_mask


def contents(subject: Subject, length: int, side: str) -> None:
    """Other inputs in the padding change nothing at real positions."""
    padding_mask, x = real(length, side), subject.inputs.draw(2, length)
    y, bound = subject.exact(x, padding_mask), subject.bound(x, padding_mask)
    changed = torch.where(
        padding_mask if x.dim() == 2 else padding_mask[..., None], x, subject.inputs.other(x)
    )
    off = (subject.exact(changed, padding_mask) - y).abs().amax(-1)
    off = off if subject.pools else off * padding_mask
    if not bool((off <= bound).all()):
        row, at = (~(off <= bound)).nonzero()[0].tolist()
        raise LawBroken(
            f"output {at} of row {row} moves by {float(off[row, at]):.2g} when other inputs stand "
            f"in its padding ({side}: {(~padding_mask[1]).nonzero()[:, 0].tolist()} of {length}), "
            f"rounding {bound:.0e}",
            subject.code(
                subject.inputs.code(2, length),
                f"padding_mask = torch.tensor({padding_mask.int().tolist()}).bool()",
                f"real = padding_mask{'' if x.dim() == 2 else '[..., None]'}",
                f"other = torch.where(real, x, {subject.inputs.other_code()})",
                f"moved = {subject.call_code('other', 'padding_mask')} - "
                f"{subject.call_code('x', 'padding_mask')}",
                f"print(moved[{row if subject.pools else f'{row}, {at}'}].abs().max())  # not 0",
            ),
        )


def alone(subject: Subject, length: int, side: str) -> float:
    """By how much padding on the left moves a row, of a model that `counts_padding`; else 0."""
    padding_mask, x = real(length, side), subject.inputs.draw(2, length)
    part = slice(None, -2) if side == "right" else slice(2, None)
    y = subject.exact(x, padding_mask)[1:, slice(None) if subject.pools else part]
    # all of it is real: said, since some count positions otherwise where nothing is said
    single = subject.exact(x[1:, part], torch.ones_like(padding_mask[1:, part]))
    off = (single - y).abs().amax((0, 2))
    bound = subject.bound(x, padding_mask)
    if bool((off <= bound).all()):
        return 0.0
    if side == "left" and subject.counts_padding:
        return float(off.max())
    at, words = int((~(off <= bound)).nonzero()[0]), "[1:, :-2]" if side == "right" else "[1:, 2:]"
    raise LawBroken(
        f"output {at} of a row with two padding inputs on the {side} is off by "
        f"{float(off[at]):.2g} from that of the row alone (length {length - 2}), rounding "
        f"{bound:.0e}",
        subject.code(
            subject.inputs.code(2, length),
            f"padding_mask = torch.tensor({padding_mask.int().tolist()}).bool()",
            f"padded = {subject.call_code('x', 'padding_mask')}"
            f"{'[1:]' if subject.pools else words}",
            f"ones = torch.ones_like(padding_mask{words})",
            f"print((padded - {subject.call_code(f'x{words}', 'ones')}).abs().max())  # not 0",
        ),
    )


def losses(subject: Subject, length: int) -> list[str]:
    """The loss of a padded batch is the mean over the targets of its rows: 4 and 2 of them."""
    padding_mask, x, short = real(length, "right"), subject.inputs.draw(2, length), length - 2
    if subject.inputs.vocabulary is None or short < 7 or subject.pools:
        return []
    labels = torch.full_like(x, -100)
    labels[0, 2:6], labels[1, 3:5] = x[0, 2:6], x[1, 3:5]

    def given(model: nn.Module, rows: slice, end: int) -> Tensor:
        part = rows, slice(end)
        seed(0)
        return subject.loss(model, x[part], labels[part], padding_mask[part]).detach()

    try:
        single = given(subject.copy(torch.float32), slice(None), length)
        with subject.exactly():
            model = subject.copy()
            whole = given(model, slice(None), length)
            one, two = given(model, slice(0, 1), length), given(model, slice(1, 2), short)
    except Inapplicable as reason:
        return [str(reason)]
    except FAILURES as error:  # labels of another shape, or of pictures
        return [f"no loss of labels (rows, positions): {describe(error)}"]
    off, bound = float((whole - (4 * one + 2 * two) / 6).abs()), GAP * rounding(single, whole)
    if off <= bound:
        return ["its loss is the mean over targets"]
    part = ("[:1]", "[1:, :-2]")
    alone = [
        subject.loss_code(f"x{p}", f"labels{p}", f"torch.ones_like(padding_mask{p})") for p in part
    ]
    raise LawBroken(
        f"the loss of a padded batch, {float(whole):.6g}, is off by {off:.2g} from the mean over "
        f"the targets of its rows alone ({float(one):.6g} of 4 and {float(two):.6g} of 2), "
        f"rounding {bound:.0e}",
        subject.code(
            subject.inputs.code(2, length),
            f"padding_mask = torch.tensor({padding_mask.int().tolist()}).bool()",
            "labels = torch.full_like(x, -100)",
            "labels[0, 2:6], labels[1, 3:5] = x[0, 2:6], x[1, 3:5]",
            f"one = {alone[0]}",
            f"two = {alone[1]}",
            f"both = {subject.loss_code('x', 'labels', 'padding_mask')}",
            "print(both - (4 * one + 2 * two) / 6)  # not 0",
        ),
    )


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
                    f"(y[:1] - {subject.call_code('x[:1]')}).abs().max())  # not 0",
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
