"""The law `traffic`: what one step reads and writes grows with the text as the row says of what is
held.

A step reads what is held, and its time is that of the bytes it moves. Those are counted by the
operations of a step: elements of the operands that an operation reads, and of results that are no
views. Where the row says that what is held is constant, no step moves more after a long text than
after a short one. Where it grows, a step moves for each token of the past at most `MULTIPLE` times
what the row says is held of it, and writes no copy of it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from everyformer.checks.cases import Case, draw
from everyformer.checks.check import Check
from everyformer.core.member import Cost, Member
from sequence_laws.operations import Counter

LENGTHS = (1024, 8192)
"""tokens read before a step, beyond what fills all windows"""
MULTIPLE = 2.0
"""bytes that a step may move for each byte that is held of a token: what is held, once, and numbers
by head and token, which at this width are many beside it"""
WIDTH, HEADS, FLOAT = 32, 2, 4
FIRST = 64
"""tokens at least that come before: room that is doubled at powers of two is not full there"""
PIECE = 1024
"""tokens of a call, where no step is counted"""


class Step(NamedTuple):
    """Bytes of one step, and those held before it."""

    read: int
    written: int
    held: int

    @property
    def moved(self) -> int:
        return self.read + self.written

    def __str__(self) -> str:
        return f"reads {self.read:,} bytes and writes {self.written:,}"


def traffic(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Bytes of steps after two texts: of float32 on the CPU, at the member's defaults."""
    between(member, check, *LENGTHS)


def between(member: Member, check: Check, short: int, long: int) -> None:
    """The law for steps after ``short`` and after ``long`` tokens, beyond all windows."""
    case, grows = Case(member, {}, True), member.cost.grows
    if grows is None:
        return
    # blocks that a text is cut into are as full after both
    windows = [n for n in member.cost.letters.values() if isinstance(n, int) and n > 0]
    start, period = max(FIRST, 2 * max(windows, default=0)), math.lcm(*windows)
    between = -(-(long - short) // period) * period
    lengths = (start + short, start + short + between)
    claims = [FLOAT * _of_states(member.cost, tokens) for tokens in lengths]
    for one, two in zip(*steps(case, lengths), strict=True):
        where = f"{case}: a step {one} after {lengths[0]:,} tokens, {two} after {lengths[1]:,}"
        if not grows:
            check.true(
                two.held <= max(one.held, claims[1]), f"{where}, of the row {claims[1]:,.0f} bytes"
            )
            # what is dropped many at a time is held for a while
            more = two.moved > one.moved * max(1, two.held / one.held)
            check.true(not more, f"{where}, and the row says that what is held is constant")
            continue
        moved, written, held = (
            (getattr(two, what) - getattr(one, what)) / between
            for what in ("moved", "written", "held")
        )
        # keys are held and values: no step writes as much as one of both
        copied = f"{where}: {written:.0f} bytes written for a token, of which {held:.0f} are held"
        check.true(written < held / 2 or written <= 0, f"{copied}: a copy of the past")
        claimed = (claims[1] - claims[0]) / between
        message = (
            f"{where}: {moved:.0f} bytes moved for a token, and the row says {claimed:.0f} held"
        )
        check.true(moved <= MULTIPLE * claimed, message)


def _of_states(cost: Cost, tokens: int) -> float:
    """Numbers that a layer's state holds by the row."""
    held = dataclasses.replace(cost, table="0").held(t=tokens, d=WIDTH, h=HEADS, layers=1)
    assert held is not None
    return held


def steps(case: Case, lengths: Sequence[int]) -> list[list[Step]]:
    """Of one text the steps that make it as long as each of ``lengths``, and those after them.

    The step before them is not counted: it makes ready what calls of many tokens have not.
    """
    mixer = case.mixer(torch.float32, width=WIDTH, heads=HEADS, length=lengths[-1] + 1)
    state: Any = mixer.init_state(1).reserve(lengths[-1] + 1)
    counted, read = [], 0
    with torch.no_grad():
        for length in lengths:
            sizes = [PIECE] * ((length - 2 - read) // PIECE)
            sizes += [length - 2 - read - sum(sizes), 1]
            for size in filter(None, sizes):
                x = draw(1, size, WIDTH, seed=read, dtype=torch.float32)
                state, read = mixer(x, state=state).state, read + size
            pair = []
            for _ in range(2):
                x = draw(1, 1, WIDTH, seed=read, dtype=torch.float32)
                held = state.nbytes
                with Counter() as of:
                    state = mixer(x, state=state).state
                pair.append(Step(of.read, of.written, held))
                read += 1
            counted.append(pair)
    return counted
