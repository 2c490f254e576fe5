"""Digits that bfloat16 loses inside of a model, though its outputs keep theirs.

A model runs in float64 and in bfloat16, and what each function of torch gives is compared, call by
call. Two things are looked for that a small model with random weights hardly shows outside:

Whole numbers that are no longer told apart. bfloat16 holds all up to 256: positions that are
counted, or multiplied, in it are wrong behind. Whether that matters the model says: in float64 the
rounded numbers stand in for the right ones, and then those cut at 256; where the first changes
outputs by less than a tenth of what the second does, they are numbers of which a share matters,
as distances that only weaken, or counts that only divide.

Results without a digit, as the difference of two large numbers is, where none before has lost half
as much. Right ones stand in for all that a line of code gives: if that halves the error of the
outputs, the error was its own, and is no rounding of all. Behind a choice (of experts, of keys)
that falls otherwise in bfloat16 nothing is compared: what follows is of other inputs.
"""

import contextlib
import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken

LAST = 256
"""the whole number up to which bfloat16 holds all"""
MOST = 2**26
"""numbers that are kept for comparison, of the first calls of a model"""
LIMIT = 1e6
"""beyond which a number stands for infinity, as that of a mask"""
CHOICES = re.compile("topk|kthvalue|(arg)?(sort|max|min)$")
DRAWS = re.compile("rand|normal|bernoulli|multinomial")
EMPTY = re.compile("(new_)?empty")


class Result(NamedTuple):
    """What a call of a function gave."""

    name: str
    value: Tensor
    """in float32"""
    where: str
    """file and line of the model"""


class Calls(TorchFunctionMode):
    """Within it what functions of torch give is kept by the number of their call, if it has a
    `place`, from where a model is called; what is ``swapped`` stands in for it.

    Nothing is kept behind where random numbers are drawn, which differ by dtype.
    """

    def __init__(self, model: nn.Module, length: int, swapped: dict[int, Tensor]) -> None:
        super().__init__()
        self.length, self.swapped, self.call, self.room = length, swapped, -1, MOST
        self.kept = dict[int, Result]()
        self.chosen = dict[int, list[Tensor]]()
        self.hook = model.register_forward_pre_hook(self.start)

    def start(self, *_: Any) -> None:
        """Count from here."""
        self.call = -1
        self.kept.clear()
        self.chosen.clear()
        self.hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.call += 1
        name = getattr(func, "__name__", "")
        if DRAWS.match(name):
            self.room = 0
        if CHOICES.match(name):
            leaves = (one for one in tree_leaves(result) if isinstance(one, Tensor))
            self.chosen[self.call] = [one for one in leaves if not one.is_floating_point()]
        if not isinstance(result, Tensor) or place(result, self.length) is None:
            return result
        right = self.swapped.get(self.call)
        if right is not None and right.shape == result.shape:  # of experts more or fewer tokens
            return right.to(result)
        if result.is_floating_point() and not EMPTY.match(name):
            self.room -= result.numel()
            if self.room > 0:
                value = result.detach().to(torch.float32, copy=True)
                self.kept[self.call] = Result(name, value, _line())
        return result


def _line() -> str:
    """File and line of the code that is part of neither torch nor this package."""
    frame = sys._getframe(2)
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(("torch.", __package__)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Passes:
    """Passes of a subject over one row, with its outputs in float64 and in bfloat16."""

    def __init__(self, subject: Subject, length: int) -> None:
        self.subject, self.x = subject, subject.inputs.draw(1, length)
        self.models = {d: subject.copy(d) for d in (torch.float64, torch.bfloat16)}
        self.y, self.exact, chosen = self.run(torch.float64, {})
        self.low_y, self.low, others = self.run(torch.bfloat16, {})
        differ = (n for n, ones in chosen.items() if not _equal(ones, others.get(n, [])))
        self.end = next(differ, math.inf)
        """call of the first choice that falls otherwise"""

    def run(
        self, dtype: torch.dtype, swapped: dict[int, Tensor]
    ) -> tuple[Tensor, dict[int, Result], dict[int, list[Tensor]]]:
        """Outputs, what calls gave, and what they chose."""
        x = self.x.to(dtype) if self.x.is_floating_point() else self.x
        context = self.subject.exactly() if dtype is torch.float64 else contextlib.nullcontext()
        with torch.no_grad(), context, Calls(self.models[dtype], x.shape[1], swapped) as calls:
            y = self.subject.run(self.models[dtype], x)
        return y.double(), calls.kept, calls.chosen

    def off(self, y: Tensor, behind: int = 0) -> float:
        """By how much outputs are off, in the mean of all positions behind some."""
        errors = (y - self.y)[0].abs().median(-1).values
        return float((errors[behind:] if len(errors) > behind else errors).mean())


def lost_digits(subject: Subject, length: int) -> None:
    """Raise `LawBroken` where bfloat16 loses whole numbers, or all digits, inside of the model."""
    try:
        passes = Passes(subject, length)
    except RuntimeError:  # an operation that this device lacks in this dtype
        return
    tried, whole, before = set[str](), passes.off(passes.low_y), 0.0
    for call, one in passes.exact.items():
        low = passes.low.get(call)
        if (
            call > passes.end
            or low is None
            or low.name != one.name
            or low.value.shape != one.value.shape
        ):
            return  # bfloat16 goes another way
        if torch.equal(one.value, low.value) or one.where in tried:
            continue
        wrong = rounded(one.value, low.value, length)
        if wrong is not None and matter(passes, call, wrong):
            numbers = along(one.value, length)
            at, column = (wrong != numbers).nonzero()[0].tolist()
            raise _broken(
                subject, passes, call,
                f"in bfloat16 positions, or other whole numbers, beyond {LAST} are rounded: of "
                f"what {one.name} gives at {one.where} {int(numbers[at, column])} becomes "
                f"{int(wrong[at, column])}, which outputs behind show (length {length})",
            )  # fmt: skip
        share, without = lost(one.value, low.value, length)
        inherited, before = before >= share / 2, max(before, share * (not without))
        if without and not inherited:
            tried.add(one.where)
            right = {n: r.value for n, r in passes.exact.items() if r.where == one.where}
            rest = passes.off(passes.run(torch.bfloat16, right)[0])
            if rest < whole / 2:
                raise _broken(
                    subject, passes, call,
                    f"in bfloat16 no digit is right of what {one.name} gives at {one.where}: "
                    f"outputs are off by {whole:.2g}, and by {rest:.2g} if that alone is right "
                    f"(length {length})",
                )  # fmt: skip


def _equal(ones: list[Tensor], others: list[Tensor]) -> bool:
    same = len(ones) == len(others)
    return same and all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def place(value: Tensor, length: int) -> int | None:
    """The dimension of positions: of so many, or else of up to four times as many, as tables of
    distances have."""
    sizes = [*value.shape]
    if length in sizes:
        return 1 if sizes[1:2] == [length] else sizes.index(length)
    return next((n for n, size in enumerate(sizes) if length < size <= 4 * length), None)


def along(value: Tensor, length: int) -> Tensor:
    """(positions, columns) of what has a `place`."""
    first = value.movedim(place(value, length) or 0, 0)
    return first.reshape(len(first), -1)


def rounded(exact: Tensor, low: Tensor, length: int) -> Tensor | None:
    """What stands in for whole numbers, some beyond `LAST`, that are others; None for none."""
    one, two = along(exact, length), along(low, length)
    largest = one.abs().amax(0)
    whole = (one == one.round()).all(0) & (largest > LAST) & (largest < LIMIT)
    differ = whole & (one != two).any(0)
    return torch.where(differ, two, one) if bool(differ.any()) else None


def back(columns: Tensor, like: Tensor, length: int) -> Tensor:
    """`along` undone."""
    at = place(like, length) or 0
    return columns.view(like.movedim(at, 0).shape).movedim(0, at)


def matter(passes: Passes, call: int, wrong: Tensor) -> bool:
    """Whether rounded whole numbers change what follows `LAST`, and not much less than if all
    beyond it were the same."""
    value = passes.exact[call].value
    length = passes.x.shape[1]
    one = along(value, length)
    cut = torch.where((wrong != one).any(0), one.clamp(-LAST, LAST), one)
    moved, most = (
        passes.off(passes.run(torch.float64, {call: back(of, value, length)})[0], LAST + 1)
        for of in (wrong, cut)
    )
    return moved > passes.subject.bound(passes.x) and moved >= most / 10


def lost(exact: Tensor, low: Tensor, length: int) -> tuple[float, bool]:
    """The mean error of numbers as a share of their size, and whether it is a tenth or more in half
    of them at one position of ten."""
    one, two = along(exact, length), along(low, length)
    kept = (one.abs() < LIMIT) & (two.abs() < LIMIT)
    if not bool(kept.any()):
        return 0.0, False
    size = float(one[kept].square().mean().sqrt())
    errors = torch.where(kept, (one - two).abs(), 0.0)
    share = float(errors.mean()) / max(size, 1e-300)
    if share < 1 / 200:  # half of the numbers, at a tenth of the positions
        return share, False
    return share, float(errors.median(1).values.quantile(0.9)) >= size / 10


def _broken(subject: Subject, passes: Passes, call: int, finding: str) -> LawBroken:
    """With a program that shows the numbers of the call."""
    x = passes.x
    return LawBroken(
        finding,
        subject.code(
            "from torch.overrides import TorchFunctionMode",
            "class Calls(TorchFunctionMode):",
            "    def __torch_function__(self, function, types, args=(), kwargs=None):",
            "        given.append(function(*args, **(kwargs or {})))",
            "        return given[-1]",
            "given = []",
            "model.register_forward_pre_hook(lambda *_: given.clear())",
            subject.inputs.code(*x.shape[:2]),
            "with torch.no_grad(), Calls():",
            f"    y = {subject.call_code('x')}",
            f"right = given[{call}].double()",
            "model = model.to(torch.bfloat16)",
            *["x = x.to(torch.bfloat16)"] * x.is_floating_point(),
            "with torch.no_grad(), Calls():",
            f"    y = {subject.call_code('x')}",
            f"print(float((given[{call}] - right).abs().max()))  # not 0",
        ),
    )
