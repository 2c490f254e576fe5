"""Streaming: what a cache carries from piece to piece gives what one pass gives."""

from collections.abc import Iterator, Sequence

import torch

from sequence_laws import caches
from sequence_laws.behaviour import clear
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.limits import MOST
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken

LONG = 150
"""inputs of a text of which pieces are longer than rings of 64"""
Cuts = tuple[int, ...]
"""ends of pieces, from 0 on"""


def streaming(subject: Subject) -> str:
    """Any split of a text into pieces, also around windows and with a cache of a fixed size; and
    what is done with a cache between pieces (`caches`).

    Raises:
        LawBroken: the first position that differs from one pass.
        Inapplicable: the model offers no cache.
    """
    if not subject.streams:
        raise Inapplicable(subject.uncached, subject.uncached_as)
    if not subject.causal:
        raise Inapplicable("it reads both ways: nothing can be given before all is read")
    subject.require_positions()
    lengths = [length for length in subject.lengths() if length >= 5]
    if not lengths:
        raise Inapplicable("it takes no length from 5 to 65", "undecided")
    tried = [(length, splits(length)) for length in sorted({lengths[0], lengths[-1]})]
    around = [*windows(subject)]
    long = min(LONG, subject.max_length() or LONG)
    if long > TRIED[-1] and subject.takes(long):
        tried.append((long, [(0, TRIED[-1], TRIED[-1] + 1, long)]))
    for length, every in tried + around:
        pieces(subject, length, every, subject.taken)
    count = sum(len(every) for _, every in tried + around)
    found = [f"{count} splits, of one input at a time and more"]
    length, every = around[0] if around else (tried[0][0], tried[0][1][:2])
    found += [static(subject, length, every), across(subject, lengths[-1])]
    found += caches.between(subject, lengths)
    return "; ".join(filter(None, found))


def splits(length: int) -> list[Cuts]:
    """Ends of pieces: one input at a time (of a longer text the first of them, and those around
    sizes that rings and blocks have), two pieces, uneven ones, and a long one first."""
    half, third = length // 2, max(1, length // 3)
    near = {*range(9), *(n for size in (16, 32, 64) for n in (size - 1, size, size + 1))}
    return [
        tuple(sorted({n for n in near if n < length} | {length})),
        (0, half, length),
        (0, 1, third + 1, length - 1, length),
        (0, length - 1, length),
    ]


def windows(subject: Subject) -> Iterator[tuple[int, list[Cuts]]]:
    """Splits of texts that go around each window three times, in pieces of about one and of two of
    them, and by one input."""
    for mark in subject.marks():
        length = 3 * mark + 2
        if subject.takes(length):
            sizes = sorted({1, mark - 1, mark, mark + 1})
            every = [(*range(0, length, size), length) for size in sizes]
            yield length, [*every, (0, 2 * mark + 1, length), (0, 1, 2 * mark + 2, length)]


def pieces(subject: Subject, length: int, every: Sequence[Cuts], how: str = "") -> None:
    """Splits of one text equal one pass."""
    x = subject.inputs.draw(2, length)
    y, bound, wide = subject.exact(x), subject.bound(x), subject.widened(x)
    for cuts in every:
        with torch.no_grad(), subject.exactly():
            came, _ = caches.follow(subject, subject.copy(), wide, cuts)
        wrong = caches.difference(came, y, bound)
        if wrong is None:
            continue
        at, size = wrong
        raise LawBroken(
            f"output {at} is off by {size:.2g} when the {length} inputs come in pieces "
            f"that end at {', '.join(map(str, cuts[1:][:6]))}{' ...' if len(cuts) > 7 else ''}"
            f"{how} (outputs reach {float(y.abs().max()):.2g}, rounding {bound:.0e})",
            subject.code(
                subject.inputs.code(2, length),
                *subject.feed_code(),
                "cache, pieces = None, []",
                f"cuts = {f'range({length + 1})' if len(cuts) > length else cuts}",
                "for start, end in zip(cuts, cuts[1:]):",
                "    y, cache = feed(x[:, start:end], cache)",
                "    pieces.append(y)",
                f"print((torch.cat(pieces, 1) - {subject.call_code('x')})[:, {at}].abs().max())",
            ),
        )


def across(subject: Subject, longest: int) -> str:
    """A piece that crosses the limit that a model says, which may be the size of its cache, gives
    what one pass gives, if that takes as much, or an error in words.

    Raises:
        LawBroken: it gives something else, or an error that says nothing.
    """
    limit = subject.max_length()
    if limit is None or not longest <= limit <= MOST or not subject.takes(limit + 5):
        return ""
    length, cuts = limit + 5, (0, limit - 2, limit + 5)
    try:
        pieces(subject, length, [cuts], f", the last across its limit of {limit}")
    except LawBroken:
        raise
    except Inapplicable:  # of outputs that are not finite
        return ""
    except Exception as error:  # whatever a model says of a length
        if clear(error, length) or "cache" in str(error).lower():
            return f"a piece across its limit of {limit} is refused"
        raise LawBroken(
            f"7 inputs behind {limit - 2} cross its limit of {limit}, which {length} in one pass "
            f"do, too, and end in an error that names no length: {describe(error)}",
            subject.code(
                subject.inputs.code(2, length),
                *subject.feed_code(),
                f"{subject.call_code('x')}",
                f"_, cache = feed(x[:, :{limit - 2}], None)",
                f"feed(x[:, {limit - 2}:], cache)",
            ),
        ) from error
    return f"pieces across its limit of {limit}"


def static(subject: Subject, length: int, every: Sequence[Cuts]) -> str:
    """Splits with a cache of a fixed size, if there is one, or why it is refused."""
    try:
        pieces(subject.static(length), length, every, " with a static cache")
    except Inapplicable as reason:
        return str(reason)
    except LawBroken:
        raise
    except FAILURES as error:
        return f"a static cache is refused: {describe(error)}"
    return "a static cache"
