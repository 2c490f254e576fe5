"""Batch and packing: a row does not depend on the rows around it, a document on its row."""

import functools
import itertools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import seed
from sequence_laws.padding import losses
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken


def packing(subject: Subject) -> str:
    """A document in a row of several is the document alone.

    Raises:
        LawBroken: the first position that differs.
        Inapplicable: the model takes no documents; `reported`: positions that start over, which
            some models take for documents, keep those of no row apart, or are refused.
    """
    if not subject.packs:
        raise Inapplicable(subject.unpacked)
    subject.require_positions()
    length = max((n for n in subject.lengths() if n <= 33), default=0)
    every = borders(subject, length)
    x = subject.inputs.draw(len(every), length)
    places = torch.arange(length)
    ids = torch.stack([torch.bucketize(places, torch.tensor(b), right=True) for b in every])
    bound, apart = subject.bound(x[:1]), ""
    run = functools.partial(_packed, subject, documents=ids)
    try:
        y = run(x)
    except FAILURES as error:  # some take documents of one row alone, whose ends they are told
        apart, run = f"; a row at a time: {describe(error)}", functools.partial(run, each=True)
        try:
            y = run(x)
        except FAILURES as refusal:
            if subject.separates:
                raise
            words = f"{subject.packs} that start over are refused: {describe(refusal)}"
            raise Inapplicable(words, "reported") from refusal
    offs, kept = list[Tensor](), list[int]()
    for row, starts in enumerate(every):
        parts = list(itertools.pairwise((0, *starts, length)))
        alone = torch.cat([subject.exact(x[row : row + 1, s:e]) for s, e in parts], 1)
        offs.append((y[row] - alone[0]).abs().amax(-1))
        if bool((offs[row] <= bound).all()):
            kept.append(row)
    for row in (row for row in range(len(every)) if row not in kept):
        off, starts = offs[row], every[row]
        parts = list(itertools.pairwise((0, *starts, length)))
        at = int((~(off <= bound)).nonzero()[0])
        start = max(s for s in starts if s <= max(at, starts[0]))
        seen = _sees(run, subject, x, row, start)
        by = (
            f"it moves by {seen:.2g} with the document before"
            if seen > bound
            else "none sees another"
        )
        if seen > bound and not subject.separates:
            # a row in which nothing but these positions keeps documents apart shows that they may
            told = (r for r in kept if _sees(subject.exact, subject, x, r, every[r][0]) > bound)
            if (other := next(told, None)) is None:
                words = f"{subject.packs} that start over do not separate documents"
                raise Inapplicable(words, "reported")
            by += f", while those of row {other} are kept apart"
        s, e = next(part for part in parts if at < part[1])
        raise LawBroken(
            f"output {at} of row {row} is off by {float(off[at]):.2g} from that of its document "
            f"alone where {len(parts)}, of {sizes(parts)}, stand in a row and are marked by "
            f"{subject.packs}; {by}",
            subject.code(
                subject.inputs.code(len(every), length),
                f"documents = torch.tensor({ids.tolist()})",
                f"y = {subject.packed_code()}[{row}, {at}]",
                f"alone = {subject.call_code(f'x[{row}:{row + 1}, {s}:{e}]')}",
                f"print((y - alone[0, {at - s}]).abs().max())  # not 0",
            ),
        )
    if subject.label_word:
        try:
            losses(subject, length)
        except LawBroken:  # as the law of padding says
            pass
        else:
            losses(subject, length, every[0][0])
    found = "; ".join(sizes(itertools.pairwise((0, *starts, length))) for starts in every)
    return f"documents of {found} in a row, marked by {subject.packs}{apart}"


def borders(subject: Subject, length: int) -> list[tuple[int, ...]]:
    """Where documents begin behind the first, in rows of a length: two, and three, of 16 inputs
    and of what is left, or of a third.

    Raises:
        Inapplicable: it does not take two.
    """
    taken = functools.cache(lambda n: n in subject.lengths() or subject.takes(n))

    def goes(starts: tuple[int, ...]) -> bool:
        return all(s < e and taken(e - s) for s, e in itertools.pairwise((0, *starts, length)))

    half, third = (length // 2 + 1,), (length // 3, 2 * (length // 3))
    if not goes(half):
        raise Inapplicable("it does not take rows and documents of half their length", "undecided")
    return [half, *[starts for starts in ((16, 32), third) if goes(starts)][:1]]


def sizes(parts: Iterable[tuple[int, int]]) -> str:
    """Lengths of parts of a row: 15 and 18."""
    *most, last = (str(end - start) for start, end in parts)
    return f"{', '.join(most)} and {last}"


def _sees(
    run: Callable[[Tensor], Tensor], subject: Subject, x: Tensor, row: int, start: int
) -> float:
    """By how much a row's outputs from a place on move with its inputs before it."""
    other = x.clone()
    other[row, :start] = subject.inputs.other(x[row, :start])
    return float((run(other) - run(x))[row, start:].abs().max())


def _packed(subject: Subject, x: Tensor, documents: Tensor, each: bool = False) -> Tensor:
    if each:
        pairs = zip(x.split(1), documents.split(1), strict=True)
        return torch.cat([_packed(subject, *pair) for pair in pairs])
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
    for what, y, rows in (
        ("alone", subject.exact(x[:1]), slice(0, 1)),
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
    told = many(subject, x, together, bound)
    return f"alone, in another order{told}" + in_training(subject, length)


def many(subject: Subject, x: Tensor, y: Tensor, bound: float) -> str:
    """Three rows behind 30 others give their outputs ``y``, also where these repeat one input, and
    where each row has a mask of its own and the same with three rows."""
    company, one = f"[{subject.inputs.other_code()}] * 10", "[x[:1, :1].expand_as(x[:1])] * 30"
    others = subject.inputs.other(x).repeat(10, *[1] * (x.dim() - 1))
    # of capacities, as of experts, they take one share
    same = x[:1, :1].expand(30, *x.shape[1:])
    length, sides = x.shape[1], [side for side in subject.masks if side != "holes"]
    padded = torch.arange(33)[:, None] % min(5, length)
    masks = torch.arange(length) < length - padded
    masks = masks.flip(1) if sides[:1] == ["left"] else masks
    looks = [(others, company, None), (same, one, None), *[(others, company, masks)] * bool(sides)]
    for rows, code, mask in looks:
        most = torch.cat((rows, x))
        three = y if mask is None else subject.exact(x, mask[-3:])
        off = (subject.exact(most, mask)[-3:] - three).abs().amax(-1)
        off = off if mask is None or subject.pools else off.where(mask[-3:], 0)
        if bool((off <= bound).all()):
            continue
        each = "" if mask is None else ", each with a mask of its own,"
        given = (None, None) if mask is None else ("mask", "mask[-3:]")
        program = [
            subject.inputs.code(3, length),
            f"most = torch.cat({code} + [x])",
            *[f"mask = torch.tensor({masks.int().tolist()}).bool()"] * (mask is not None),
            f"off = {subject.call_code('most', given[0])}[-3:]",
            f"off = off - {subject.call_code('x', given[1])}",
            f"print(off{'[mask[-3:]]' * (mask is not None and not subject.pools)}.abs().max())"
            "  # not 0",
        ]
        each += ", of which 30 repeat one input," * (rows is same)
        raise LawBroken(
            f"a row among 33{each} gives outputs that are off by {float(off.max()):.2g} from those "
            f"in a batch of 3 (length {length}, rounding {bound:.0e})",
            subject.code(*program),
        )
    return ", among 30 others" + " with masks" * bool(sides)


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
