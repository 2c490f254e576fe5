"""The law `traffic`: what one step reads and writes grows with the text as the row says of what is
held.

A step reads what is held, and its time is that of the bytes it moves. Those are counted by the
operations of a step: elements of the operands that an operation reads, and of results that are no
views. Of a state that is claimed to be constant no step moves more after a long text than after a
short one; of one that grows a step moves, for each token of the past, at most `MULTIPLE` times what
the row says is held of it, and writes no copy of it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.core.member import Cost, Member
from everyformer.core.operations import Operations
from everyformer.core.state import State
from everyformer.verification.cases import Case, draw
from everyformer.verification.check import Check

LENGTHS = (1024, 8192)
"""tokens read before a step, beyond what fills all windows"""
MULTIPLE = 2.5
"""bytes that a step may move for each byte that is held of a token"""
WIDTH, HEADS = 32, 2
PIECE = 1024
"""tokens of a call, where no step is counted"""

_TAKING = {"index", "index_select", "gather", "embedding", "take"}
"""operations that read of their first operand what they give"""
_PLACING = {"index_put_", "index_copy_", "scatter_"}
"""those that write into their first operand as much as the last one holds"""
_OVERWRITING = {"copy_", "fill_", "zero_"}
"""those that do not read what they write to"""


class Step(NamedTuple):
    """Bytes of one step, and those held before it."""

    read: int
    written: int
    held: int


class Traffic(Operations):
    """Counts the bytes that operations read and write; this library's own by those within them."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.written = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace == "everyformer":  # type: ignore[attr-defined]
            keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
            with self:
                return func.redispatch(keys, *args, **(kwargs or {}))  # type: ignore[attr-defined]
        return super().__torch_dispatch__(func, types, args, kwargs)

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        name = func._schema.name.partition("::")[2]
        places = {t.untyped_storage().data_ptr() for t in given}
        views = all(t.untyped_storage().data_ptr() in places for t in made)
        if "empty" in name or (views and not func._schema.is_mutable):
            return
        if name in _PLACING:
            into, *given = given
            self.written += given[-1].numel() * into.element_size()
        else:
            self.written += sum(_bytes(t) for t in made)
        if name.endswith("_like") or name.startswith("new_"):
            return
        if name in _TAKING:
            table, *given = given
            self.read += made[0].numel() * table.element_size()
        if name in _OVERWRITING or func._schema.overload_name.endswith("out"):
            given = [t for t in given if all(t is not out for out in made)]
        self.read += sum(_bytes(t) for t in given)


def _bytes(t: Tensor) -> int:
    """Bytes of the elements of a tensor; those that a view shows twice count once."""
    steps = [(n, stride) for n, stride in zip(t.shape, t.stride(), strict=True) if stride]
    span = 1 + sum((n - 1) * stride for n, stride in steps)
    return min(t.numel(), math.prod(n for n, _ in steps), span) * t.element_size()


def traffic(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Bytes of a step, after two texts: in float32 on the CPU, of the member's defaults."""
    between(member, check, *LENGTHS)


def between(member: Member, check: Check, short: int, long: int) -> None:
    """The law between steps after ``short`` and after ``long`` tokens, beyond all windows."""
    case, grows = Case(member, {}, True), member.cost.grows
    if grows is None:
        return
    # blocks that a text is cut into are as full after both
    windows = [int(n) for n in member.cost.letters.values() if isinstance(n, int) and n > 0]
    start, period = 2 * max(windows, default=0), math.lcm(*windows)
    lengths = (start + short, start + short + -(-(long - short) // period) * period)
    more = lengths[1] - lengths[0]
    claimed = 4 * (_of_states(member.cost, lengths[1]) - _of_states(member.cost, lengths[0])) / more
    for one, two in zip(*steps(case, lengths), strict=True):
        read, written, held = ((b - a) / more for a, b in zip(one, two, strict=True))
        where = (
            f"{case}: a step reads {one.read:,} bytes and writes {one.written:,} after "
            f"{lengths[0]:,} tokens, {two.read:,} and {two.written:,} after {lengths[1]:,}"
        )
        if not grows:
            check.true(one[:2] == two[:2], f"{where}, and the state is claimed to be constant")
            continue
        moved = f"{where}: {read + written:.0f} for each token between, of which the row claims"
        check.true(read + written <= MULTIPLE * claimed, f"{moved} {claimed:.0f}")
        # of two tensors that are held, such as keys and values, no step copies one
        copied = f"{where}: {written:.0f} written for each token between, of which {held:.0f} are"
        check.true(written < held / 2, f"{copied} held: it copies the past")


def _of_states(cost: Cost, tokens: int) -> float:
    """Numbers that a layer's state holds by the row."""
    held = dataclasses.replace(cost, table="0").held(t=tokens, d=WIDTH, h=HEADS, layers=1)
    assert held is not None
    return held


def steps(case: Case, lengths: Sequence[int]) -> list[list[Step]]:
    """After each of so many tokens of one text the step that ends there and the one after it.

    The step before them is not counted: it makes ready what calls of many tokens have not.
    """
    mixer = case.mixer(torch.float32, width=WIDTH, heads=HEADS, length=lengths[-1] + 1)
    state: Any = mixer.init_state(1).reserve(lengths[-1] + 1)
    counted, read = [], 0
    with torch.no_grad():
        for length in lengths:
            while read < length - 1:
                size = min(PIECE, max(length - 2 - read, 1))
                x = draw(1, size, WIDTH, seed=read, dtype=torch.float32)
                state, read = mixer(x, state=state).state, read + size
            pair = []
            for _ in range(2):
                x = draw(1, 1, WIDTH, seed=read, dtype=torch.float32)
                held = _held(state)
                with Traffic() as moved:
                    state = mixer(x, state=state).state
                pair.append(Step(moved.read, moved.written, held))
                read += 1
            counted.append(pair)
    return counted


def _held(state: State) -> int:
    return state.nbytes
