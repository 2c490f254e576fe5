"""Inputs beyond a limit: whether what is taken there can still be told apart by its position.

Positions that are clamped (``min(t, N - 1)``) or wrapped (``t % N``) give an answer to any length,
in which the order of inputs beyond N, or that of inputs N apart, is lost. An encoder and one causal
layer show that exactly: two such inputs change places, and no other output moves. Behind a causal
mask a second layer sees some order all the same, so that there only the position vectors tell, and
it is said: models that clamp on purpose, and see the order otherwise, are right.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.foreign import FAILURES
from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken

MOST = 128
"""the longest limit that is looked at"""
SURE = 1e3
"""times rounding by which an order that is seen moves outputs"""
LATER = 3
"""lengths behind a limit, and up to it, that are tried: more than one, since the last input may be
the first of a block"""


def beyond(subject: Subject) -> str:
    """What becomes of positions beyond the limit that a model says, or of its tables of positions.

    Raises:
        LawBroken: the order of inputs is not seen there, where it is within the limit.
    """
    said, found = subject.max_length(), list[str]()
    tables = {m.num_embeddings for m in subject.model.modules() if isinstance(m, nn.Embedding)}
    for limit in sorted({said or 0, *tables}):
        if not (LATER < limit <= MOST and subject.takes(limit + LATER + 1)):
            continue
        pairs = {"clamped": 1} | ({"wrapped": limit} if limit == said else {})
        try:
            for how, apart in pairs.items():
                require_order(subject, limit, how, apart)
            how = repeated(subject, limit)
        except LawBroken:
            raise
        except FAILURES:  # of one that keeps what it saw first, which is the law of determinism
            continue
        found += [f"; positions beyond {limit} are {how}"] if how else []
    return "".join(found)


def require_order(subject: Subject, limit: int, how: str, apart: int) -> None:
    """Raise `LawBroken` where two inputs of which one is beyond a limit can change places, at each
    of some lengths, and two within it cannot."""
    lengths = range(limit + 2, limit + 2 + LATER)
    pairs = [(n - 2 - apart, n - 2) for n in lengths]
    for length, pair in zip(lengths, pairs, strict=True):
        if swapped(subject, length, pair) > bound(subject, length):
            return
    for length in range(limit, limit - LATER, -1):
        pair = (length - 3, length - 2)
        if not swapped(subject, length, pair) > SURE * bound(subject, length):
            return
    at, (a, b) = lengths[0], pairs[0]
    outputs = "" if subject.pools else "[:, -1]" if subject.causal else f"[:, {b + 1}:]"
    raise LawBroken(
        f"beyond its limit of {limit} inputs it cannot tell their order (positions that are {how} "
        f"do that): no other output moves when inputs {a} and {b} of {at} change places, "
        "as it does within the limit",
        subject.code(
            subject.inputs.code(1, at),
            f"x[:, {a}] = ({subject.inputs.other_code()})[:, {b}]",
            "other = x.clone()",
            f"other[:, {a}], other[:, {b}] = x[:, {b}], x[:, {a}]",
            f"moved = ({subject.call_code('x')} - {subject.call_code('other')}){outputs}",
            f"print(float(moved.abs().max() <= {bound(subject, at):.1e}))  # not 0: none moves",
        ),
    )


def bound(subject: Subject, length: int) -> float:
    """The largest difference that may be rounding, at a length."""
    return subject.bound(subject.inputs.draw(1, length))


def swapped(subject: Subject, length: int, pair: tuple[int, int]) -> float:
    """How far outputs that have seen two different inputs move when these change places: the last
    of a causal model, else all but their own."""
    x, places = subject.inputs.draw(1, length), [*pair]
    x[:, pair[0]] = subject.inputs.other(x)[:, pair[1]]
    other = x.clone()
    other[:, places] = x[:, places[::-1]]
    off = (subject.exact(other) - subject.exact(x)).abs().amax((0, 2))
    if not subject.pools:
        off[places] = 0
        off = off[-1:] if subject.causal else off
    return float(off.max())


def repeated(subject: Subject, limit: int) -> str:
    """How positions go on behind a limit, where the first vectors that differ between equal inputs
    are all different up to it: clamped, wrapped, or "" where they are neither."""
    length = limit + LATER
    found = list[Tensor]()

    def keep(*parts: Any) -> None:
        for part in parts:
            if not found and isinstance(part, Tensor) and part.is_floating_point():
                rows = part[0] if part.dim() == 3 and len(part) == 1 else part
                if rows.dim() == 2 and len(rows) == length and not (rows == rows[0]).all():
                    found.append(rows.detach())

    model = subject.copy()
    for module in model.modules():
        module.register_forward_pre_hook(lambda _, given: keep(*given))
        module.register_forward_hook(lambda _, given, result: keep(result))
    x = subject.inputs.draw(1, 1).repeat_interleave(length, 1)
    with torch.no_grad(), subject.exactly():
        subject.run(model, subject.widened(x))
    if not found or len(found[0][:limit].unique(dim=0)) < limit:
        return ""
    rows, later = found[0], found[0][limit:]
    if torch.equal(later, rows[limit - 1].expand_as(later)):
        return f"that of input {limit - 1} (clamped)"
    return "those of the first inputs (wrapped)" if torch.equal(later, rows[:LATER]) else ""
