"""Streaming: what a cache carries from piece to piece gives what one pass gives."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sequence_laws.inputs import seed
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken


def streaming(subject: Subject) -> str:
    """Any split of a text into pieces, one input at a time; half-way rows in another order, rows
    that start over, and inputs that are taken back.

    Raises:
        LawBroken: the first position that differs from one pass.
        Inapplicable: the model offers no cache.
    """
    if not subject.streams:
        raise Inapplicable("it offers no cache")
    if not subject.causal:
        raise Inapplicable("it reads both ways: nothing can be given before all is read")
    subject.require_positions()
    lengths = [length for length in subject.lengths() if length >= 5]
    tried = 0
    for length in {lengths[0], lengths[-1]} if lengths else ():
        for cuts in splits(length):
            pieces(subject, length, cuts)
            tried += 1
    if not tried:
        raise Inapplicable("it takes no length from 5 to 65", "undecided")
    short = lengths[0]
    more = reordered(subject, short), again(subject, short), taken_back(subject, short, lengths[-1])
    return f"{tried} splits, of one input at a time and more; {'; '.join(filter(None, more))}"


def splits(length: int) -> list[tuple[int, ...]]:
    """Ends of pieces: one input at a time, two pieces, uneven ones, and a long one first."""
    half, third = length // 2, max(1, length // 3)
    return [
        tuple(range(length + 1)),
        (0, half, length),
        (0, 1, third + 1, length - 1, length),
        (0, length - 1, length),
    ]


def fed(subject: Subject, x: Tensor, cuts: tuple[int, ...], cache: Any = None) -> list[Tensor]:
    """Outputs of each piece in float64."""
    model, outputs = subject.copy(), []
    with torch.no_grad(), subject.exactly():
        for start, end in pairwise(cuts):
            seed(0)
            y, cache = subject.feed(model, x[:, start:end], cache)
            if y.shape[:2] != (len(x), end - start):
                raise LawBroken(
                    f"{end - start} inputs behind {start} give outputs of {tuple(y.shape)}: "
                    f"expected {end - start} of them for each of {len(x)} rows"
                )
            outputs.append(y.flatten(2))
    return outputs


def pieces(subject: Subject, length: int, cuts: tuple[int, ...]) -> None:
    """One split equals one pass."""
    x = subject.inputs.draw(2, length)
    x = subject.widened(x)
    y, bound = subject.exact(x), subject.bound(subject.inputs.draw(2, length))
    off = (torch.cat(fed(subject, x, cuts), 1) - y).abs().amax((0, 2))
    if not bool((off <= bound).all()):
        at = int((~(off <= bound)).nonzero()[0])
        raise LawBroken(
            f"output {at} is off by {float(off[at]):.2g} when the {length} inputs come in pieces "
            f"that end at {', '.join(map(str, cuts[1:][:6]))}{' ...' if len(cuts) > 7 else ''} "
            f"(outputs reach {float(y.abs().max()):.2g}, rounding {bound:.0e})",
            subject.code(
                subject.inputs.code(2, length),
                *subject.feed_code(),
                "cache, pieces = None, []",
                f"cuts = {'range(' + str(length + 1) + ')' if len(cuts) > length else cuts}",
                "for start, end in zip(cuts, cuts[1:]):",
                "    y, cache = feed(x[:, start:end], cache)",
                "    pieces.append(y)",
                f"print((torch.cat(pieces, 1) - {subject.call_code('x')})[:, {at}].abs().max())",
            ),
        )


def reordered(subject: Subject, length: int) -> str:
    """Rows that change places half-way (as beams do) go on as the rows that they are now."""
    # as many as hardly any other dimension of a cache
    x, rows, half = subject.inputs.draw(5, length), torch.tensor([2, 0, 0, 4, 1]), length // 2
    x = subject.widened(x)
    model = subject.copy()
    with torch.no_grad(), subject.exactly():
        _, cache = subject.feed(model, x[:, :half], None)
        try:
            cache = subject.rows_of(cache, rows)
        except Inapplicable as reason:
            return str(reason)
        y, _ = subject.feed(model, x[rows][:, half:], cache)
    expected = subject.exact(x[rows])[:, half:]
    off = float((y.flatten(2) - expected).abs().max())
    if not off <= subject.bound(subject.inputs.draw(5, length)):
        raise LawBroken(
            f"after its rows were put in the order {rows.tolist()} at {half} of {length} inputs, "
            f"the cache gives outputs that are off by {off:.2g}",
            subject.code(
                subject.inputs.code(5, length),
                f"rows = torch.tensor({rows.tolist()})",
                *subject.feed_code(),
                f"_, cache = feed(x[:, :{half}], None)",
                *subject.rows_code(cache),
                f"y, _ = feed(x[rows][:, {half}:], cache)",
                f"print((y - {subject.call_code('x[rows]')}[:, {half}:]).abs().max())  # not 0",
            ),
        )
    return "rows in another order half-way"


def again(subject: Subject, length: int) -> str:
    """A row that starts over forgets, its neighbour continues, and a cache counts what it saw."""
    x, half = subject.inputs.draw(2, length), length // 2
    wide, model, rows = subject.widened(x), subject.copy(), torch.tensor([True, False])
    with torch.no_grad(), subject.exactly():
        _, cache = subject.feed(model, wide[:, :half], None)
        seen = subject.counted(cache)
        if seen not in ([], [half, half]):
            raise LawBroken(f"after {half} inputs the cache has seen {seen}, as it says")
        try:
            cache = subject.reset(cache, rows)
        except Inapplicable:
            return ""
        y, _ = subject.feed(model, wide[:, half:], cache)
    again = subject.exact(x[:1, half:]), subject.exact(x[1:])[:, half:]
    for row, expected in enumerate(again):
        off = float((y.flatten(2)[row] - expected[0]).abs().max())
        if not off <= subject.bound(x):
            words = "continues next to one that starts over" if row else "starts over"
            raise LawBroken(f"a row that {words} behind {half} inputs is off by {off:.2g}")
    return "rows that start over"


def taken_back(subject: Subject, *lengths: int) -> str:
    """Inputs that are cut off again (as rejected drafts are) leave no trace in the cache."""
    for length in lengths:
        x, half = subject.inputs.draw(2, length), length // 2
        draft = subject.inputs.other(x)[:, half : half + 3]
        wide = [subject.widened(t) for t in (x, draft)]
        model = subject.copy()
        with torch.no_grad(), subject.exactly():
            _, cache = subject.feed(model, wide[0][:, :half], None)
            try:
                cache = subject.take_back(model, wide[1], cache)
            except Inapplicable as reason:
                return str(reason)
            y, _ = subject.feed(model, wide[0][:, half:], cache)
        off = (y.flatten(2) - subject.exact(x)[:, half:]).abs().amax((0, 2))
        if not bool((off <= subject.bound(x)).all()):
            at = int((~(off <= subject.bound(x))).nonzero()[0])
            raise LawBroken(
                f"output {half + at} is off by {float(off[at]):.2g} after {draft.shape[1]} inputs "
                f"behind {half} were taken back with crop (length {length})",
                subject.code(
                    subject.inputs.code(2, length),
                    f"other = {subject.inputs.other_code()}",
                    *subject.feed_code(),
                    f"_, cache = feed(x[:, :{half}], None)",
                    *subject.record_code(),
                    f"_, cache = feed(other[:, {half}:{half + 3}], cache)",
                    f"cache.crop(-{draft.shape[1]})",
                    f"y, _ = feed(x[:, {half}:], cache)",
                    f"print((y - {subject.call_code('x')}[:, {half}:])[:, {at}].abs().max())",
                ),
            )
    return "inputs taken back"
