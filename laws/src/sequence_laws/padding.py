"""Padding: what stands in it changes nothing, and a padded row is the row alone."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import seed
from sequence_laws.rounding import GAP, rounding
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken

LONG = 129
"""inputs of a text beyond blocks of usual sizes"""


def padding(subject: Subject) -> str:
    """Padding does not matter, whatever stands in it; a padded row is the row alone, of several
    amounts of padding, at a short and a long length; rows of nothing else leave others alone.

    Raises:
        LawBroken: the first real position that differs.
        Inapplicable: the model takes no mask; `reported`: padding on the left moves a row, since
            its positions count it (`Subject.counts_padding`), or its mask is one that is added;
            `undecided`: nothing tells, or it is not known how padding is told.
    """
    if not subject.masks:
        found = losses(subject, subject.usual()) if subject.label_word else []
        words = "; ".join([subject.unmasked, *found])
        raise Inapplicable(words, "undecided" if subject.untried else "exempt")
    length = subject.usual()
    finite = [contents(subject, length, side) for side in subject.masks]
    long = min(LONG, subject.max_length() or LONG)
    if long > TRIED[-1] and subject.takes(long):
        contents(subject, long, subject.masks[0], length)
    found = [f"what stands in padding ({', '.join(subject.masks)}) changes nothing"]
    found += ["outputs of padding itself are not finite"] * (not all(finite))
    moved, tried = {"right": 0.0, "left": 0.0}, [*shorter(subject)]
    sides = [side for side in moved if side in subject.masks]
    for whole, alone_at in tried:
        for side in sides:
            moved[side] = max(moved[side], alone(subject, whole, side, alone_at))
    if not tried and len(sides) == 2:
        moved["left"] = turned(subject, length)
        found += ["a row is the same padded on the left and on the right"] * (not moved["left"])
    found += [f"a row padded on the {s} is the row alone" for s in sides if tried and not moved[s]]
    found.append(beside_nothing(subject, length))
    found += losses(subject, length) if subject.takes(length - 2) else []
    if moved["left"]:
        found.insert(
            0, f"padding on the left moves a row by {moved['left']:.2g}: positions count it"
        )
        raise Inapplicable("; ".join(filter(None, found)), "reported")
    if subject.adds:
        found.insert(0, "its mask is added to scores: one of ones and zeros would hide nothing")
        raise Inapplicable("; ".join(filter(None, found)), "reported")
    if sides == ["left"] and not tried:
        raise Inapplicable(
            "it takes no shorter text, with which a padded row is compared", "undecided"
        )
    return "; ".join(filter(None, found))


def real(length: int, side: str) -> Tensor:
    """(2, L), True at what is real: in the second row two are padding."""
    padding_mask = torch.ones(2, length, dtype=torch.bool)
    padding = {"right": (-2, -1), "left": (0, 1), "holes": (1, length // 2)}[side]
    padding_mask[1, list(padding)] = False
    return padding_mask


def shorter(subject: Subject) -> Iterator[tuple[int, list[int]]]:
    """Lengths to which rows are padded, and those of the rows: several, since positions that are
    counted by twos, or in blocks, do not see every shift."""
    every = [n for n in subject.lengths() if n <= TRIED[-1]] or subject.lengths()
    usual, longest = subject.usual(), every[-2:][0]  # 64 rather than 65, from which 33 is odd
    if less := [n for n in every if n < usual]:
        yield usual, less[:-4:-1]
    if longest > usual and (less := [n for n in every if n < longest]):
        yield longest, less[:-3:-1]


def bound(subject: Subject, length: int) -> float:
    """The largest difference that may be rounding, at a length."""
    return subject.bound(subject.inputs.draw(2, length))


def contents(subject: Subject, length: int, side: str, known: int = 0) -> bool:
    """Other inputs in the padding change nothing at real positions: whether outputs are finite at
    the others, too. What is within the rounding of a ``known`` length asks for no other."""
    padding_mask, x = real(length, side), subject.inputs.draw(2, length)
    least = bound(subject, known or length)
    y = subject.exact(x, padding_mask)
    changed = torch.where(
        padding_mask if x.dim() == 2 else padding_mask[..., None], x, subject.inputs.other(x)
    )
    off = (subject.exact(changed, padding_mask) - y).abs().amax(-1)
    off = off if subject.pools else off.where(padding_mask, 0)
    if known and not bool((off <= least).all()):
        least = bound(subject, length)
    if not bool((off <= least).all()):
        row, at = (~(off <= least)).nonzero()[0].tolist()
        raise LawBroken(
            f"output {at} of row {row} moves by {float(off[row, at]):.2g} when other inputs stand "
            f"in its padding ({side}: {(~padding_mask[1]).nonzero()[:, 0].tolist()} of {length}), "
            f"rounding {least:.0e}",
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
    return bool(y.isfinite().all())


def alone(subject: Subject, length: int, side: str, lengths: Sequence[int]) -> float:
    """By how much padding on the left moves a row, of a model that `counts_padding`; else 0."""
    ends = torch.tensor([length, *lengths])[:, None]
    padding_mask = torch.arange(length) < ends
    padding_mask = padding_mask if side == "right" else padding_mask.flip(1)
    x, moved = subject.inputs.draw(len(ends), length), 0.0
    y, least = subject.exact(x, padding_mask), bound(subject, length)
    for row, short in enumerate(lengths, 1):
        part = slice(None, short) if side == "right" else slice(length - short, None)
        # all of it is real: said, since some count positions otherwise where nothing is said
        single = subject.exact(x[row : row + 1, part], torch.ones(1, short, dtype=torch.bool))
        padded = y[row : row + 1, slice(None) if subject.pools else part]
        off = (single - padded).abs().amax((0, 2))
        if bool((off <= least).all()):
            continue
        if side == "left" and subject.counts_padding and bool(off.isfinite().all()):
            moved = max(moved, float(off.max()))
            continue
        at, padded_by = int((~(off <= least)).nonzero()[0]), length - short
        words = f"[{row}:{row + 1}, {f':{short}' if side == 'right' else f'{padded_by}:'}]"
        count = f"{padded_by} padding inputs" if padded_by > 1 else "one padding input"
        raise LawBroken(
            f"output {at} of a row with {count} on the {side} is off by {float(off[at]):.2g} from "
            f"that of the row alone (length {short}), rounding {least:.0e}",
            subject.code(
                subject.inputs.code(len(ends), length),
                f"padding_mask = torch.arange({length}) < torch.tensor({ends.tolist()})",
                *["padding_mask = padding_mask.flip(1)"] * (side == "left"),
                f"padded = {subject.call_code('x', 'padding_mask')}"
                f"{f'[{row}:{row + 1}]' if subject.pools else words}",
                f"ones = torch.ones_like(padding_mask{words})",
                f"print((padded - {subject.call_code(f'x{words}', 'ones')}).abs().max())  # not 0",
            ),
        )
    return moved


def turned(subject: Subject, length: int) -> float:
    """By how much a row moves that is padded on the left instead of on the right, of a model that
    takes no shorter text and `counts_padding`; else 0."""
    amounts = [n for n in (1, 2, 3) if n < length]
    x, least, moved = subject.inputs.draw(2, length), bound(subject, length), 0.0
    for n in amounts:
        right = (torch.arange(length) < length - n).expand(2, -1)
        one = subject.exact(x, right)
        two = subject.exact(x.roll(n, 1), right.flip(1))
        if not subject.pools:
            one, two = one[:, :-n], two[:, n:]
        off = (one - two).abs().amax((0, 2))
        if bool((off <= least).all()):
            continue
        moved = max(moved, float(off.max()))
        if not subject.counts_padding:
            at = int((~(off <= least)).nonzero()[0])
            ends = ("", "") if subject.pools else (f"[:, :-{n}]", f"[:, {n}:]")
            raise LawBroken(
                f"output {at} of a row with {n} padding inputs on the left is off by "
                f"{float(off[at]):.2g} from that of the row padded on the right (length {length}, "
                f"the only one), rounding {least:.0e}",
                subject.code(
                    subject.inputs.code(2, length),
                    f"right = (torch.arange({length}) < {length - n}).expand(2, -1)",
                    "left, turned = right.flip(1), x.roll(" + f"{n}, 1)",
                    f"y = {subject.call_code('x', 'right')}{ends[0]}",
                    f"print(({subject.call_code('turned', 'left')}{ends[1]} - y).abs().max())"
                    "  # not 0",
                ),
            )
    return moved


def beside_nothing(subject: Subject, length: int) -> str:
    """A row beside one of nothing but padding is the row alone, and finite; words where it may not
    stand there."""
    x, padding_mask = subject.inputs.draw(2, length), torch.ones(2, length, dtype=torch.bool)
    padding_mask[1] = False
    if subject.masks == ("holes",):
        return ""
    try:
        y = subject.exact(x, padding_mask)[:1]
    except FAILURES as error:
        return f"no row of nothing but padding: {describe(error)}"
    off = (y - subject.exact(x[:1], padding_mask[:1])).abs().amax((0, 2))
    if not bool((off <= bound(subject, length)).all()):
        at = int((~(off <= bound(subject, length))).nonzero()[0])
        raise LawBroken(
            f"output {at} of a row beside one of nothing but padding is off by "
            f"{float(off[at]):.2g} from that of the row alone (length {length}), rounding "
            f"{bound(subject, length):.0e}",
            subject.code(
                subject.inputs.code(2, length),
                f"padding_mask = torch.tensor([[True], [False]]).expand(2, {length})",
                f"y = {subject.call_code('x', 'padding_mask')}[:1]",
                f"alone = {subject.call_code('x[:1]', 'padding_mask[:1]')}",
                "print((y - alone).abs().max())  # not 0",
            ),
        )
    return "rows of nothing but padding leave others alone"


def losses(subject: Subject, length: int, begins: int = 0) -> list[str]:
    """The loss of a batch, padded where a mask is taken, is the mean over the targets of its rows:
    4 and 2 of them. Of a row in which a second document ``begins``, that of its documents."""
    if subject.inputs.vocabulary is None or subject.pools or length - begins < 9 or 0 < begins < 9:
        return []
    x, told = subject.inputs.draw(1 if begins else 2, length), dict[str, Tensor]()
    what, whose = "a batch", "rows"
    cuts = [(slice(1), slice(None)), (slice(1, 2), slice(None))]
    codes = ["[:1]", "[1:]"]
    if begins:
        told = {"documents": (torch.arange(length) >= begins).long()[None]}
        what, whose = "a row of two documents", "documents"
        cuts = [(slice(1), slice(begins)), (slice(1), slice(begins, None))]
        codes = [f"[:, :{begins}]", f"[:, {begins}:]"]
    elif subject.masks:
        told, what = {"padding_mask": real(length, "right")}, "a padded batch"
        cuts[1], codes[1] = (slice(1, 2), slice(-2)), "[1:, :-2]"
    at = f"0, {begins + 3}:{begins + 5}" if begins else "1, 3:5"
    targets = f"labels[0, 2:6], labels[{at}] = x[0, 2:6], x[{at}]"

    def given(model: nn.Module, labels: Tensor, cut: Any = ..., x: Tensor = x) -> Tensor:
        more = {k: v[cut] for k, v in told.items() if cut is ... or k == "padding_mask"}
        seed(0)
        return subject.loss(model, x[cut], labels[cut], **more).detach()

    refused = ""
    for ignored in (-100, -1):  # as torch has it, and some small models of text
        labels = torch.full_like(x, ignored)
        labels[0, 2:6], labels[-1, begins + 3 : begins + 5] = (
            x[0, 2:6],
            x[-1, begins + 3 : begins + 5],
        )
        try:
            single = given(subject.copy(torch.float32), labels)
            with subject.exactly():
                model = subject.copy()
                whole, one, two = (given(model, labels, cut) for cut in (..., *cuts))
                z = x.clone()
                z[:, begins + 7 :] = subject.inputs.other(x)[:, begins + 7 :]
                other = given(model, labels, x=z)
            break
        except Inapplicable as reason:
            return [str(reason)]
        except FAILURES as error:  # labels of another shape, or of pictures
            refused = refused or f"no loss of labels (rows, positions): {describe(error)}"
    else:
        return [refused]
    least = GAP * rounding(single, whole)
    off = float((whole - (4 * one + 2 * two) / 6).abs())
    if off <= least:
        return ["its loss is the mean over targets"]
    if float((whole - one - two).abs()) <= least:
        return ["its loss is the sum over targets, not their mean"]
    # without a mask nothing but the label says what is no target: if that is how it is told
    if (not subject.masks or ignored != -100) and not (
        subject.causal and float((other - whole).abs()) <= least
    ):
        return [f"whether labels of {ignored} are none to its loss is not known"]
    alone = [f"torch.ones_like(padding_mask{code})" if subject.masks else None for code in codes]
    one_code, two_code = (
        subject.loss_code(f"x{code}", f"labels{code}", None if begins else mask)
        for code, mask in zip(codes, alone, strict=True)
    )
    mask = "padding_mask" if "padding_mask" in told else None
    raise LawBroken(
        f"the loss of {what}, {float(whole):.6g}, is off by {off:.2g} from the mean over "
        f"the targets of its {whose} alone ({float(one):.6g} of 4 and {float(two):.6g} of 2), "
        f"rounding {least:.0e}",
        subject.code(
            subject.inputs.code(len(x), length),
            *[f"{k} = torch.tensor({v.int().tolist()}).to({v.dtype})" for k, v in told.items()],
            f"labels = torch.full_like(x, {ignored})",
            targets,
            f"one = {one_code}",
            f"two = {two_code}",
            f"both = {subject.loss_code('x', 'labels', mask, bool(begins))}",
            "print(both - (4 * one + 2 * two) / 6)  # not 0",
        ),
    )
