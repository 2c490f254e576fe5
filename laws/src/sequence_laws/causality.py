"""Causality: an output depends on its own and earlier inputs alone.

Tried in three ways, which find different faults: by changing what comes later, which also finds
discrete choices (sorting, hashing, routing), by leaving it out, which finds what depends on how
much follows, and by gradients, which also find what is too small or saturated to be seen in one
change. In evaluation and in training, where dropout draws the same
numbers; with a mask that says that all is real, where one is taken; at lengths around blocks and
windows; and, the longest of these again, in every other way in which the model computes the same.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import cuts
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken

BATCH = 2**20
"""numbers that a batch may give: rows of it are looked at together"""


LONG = 150
"""inputs of a text beyond blocks of usual sizes, at some places of which it is tried, too"""


class Condition(NamedTuple):
    """Conditions of one look."""

    length: int
    training: bool = False
    masked: bool = False
    way: str = ""

    def __str__(self) -> str:
        words = [f"length {self.length}", "in training" if self.training else "in evaluation"]
        words += ["with a mask of ones"] * self.masked + [self.way] * bool(self.way)
        return ", ".join(words)


def causality(subject: Subject) -> str:
    """No output changes, or has a gradient, by what comes later, or by how much does.

    Raises:
        LawBroken: the first output that does, what moves it and by how much.
        Inapplicable: the model does not claim it.
    """
    if not subject.causal:
        raise Inapplicable("it reads both ways")
    subject.require_positions()
    looks, every = 0, list[Condition]()
    for way, model in subject.implementations:
        # ways differ in how pairs are masked, which the longest input of each mode shows
        every = longest(every) if every else list(conditions(model))
        for condition in every:
            changes(model, condition._replace(way=way))
            if not condition.training and not condition.masked:
                left_out(model, condition._replace(way=way))
            looks += 1
    if subject.takes(LONG):
        changes(subject, Condition(LONG), [cut - 1 for cut in cuts(LONG)])
        looks += 1
    detail = f"{looks} looks: every later input changed or left out, in evaluation"
    detail += " and training" * subject.doubles
    try:
        return f"{detail}; {gradients(subject)} by gradients"
    except LawBroken:
        raise
    except FAILURES as error:  # some cannot be differentiated in evaluation
        return f"{detail}; no gradients: {describe(error)}"


def glance(subject: Subject, longer: int) -> str | None:
    """Where a model sees the future at one length, of 33 inputs at most, in evaluation and in
    training, and at some places of a ``longer`` text that it takes; None where it does not, or
    cannot be asked."""
    lengths = [length for length in subject.lengths() if 1 < length <= 33]
    try:
        for training in (False, True) if lengths else ():
            changes(subject, Condition(lengths[-1], training))
        if lengths and longer > lengths[-1] and subject.takes(longer):
            changes(subject, Condition(longer), [cut - 1 for cut in cuts(longer)])
    except LawBroken as broken:
        return broken.finding
    except Inapplicable:
        return None
    return None


def conditions(subject: Subject) -> Iterator[Condition]:
    """Three lengths that the model takes, and those around its blocks, in each mode, in order."""
    every = [length for length in subject.lengths() if 1 < length <= TRIED[-1]]
    if not every:
        raise Inapplicable("it takes no length from 2 to 65", "undecided")
    marks = {n for mark in subject.marks() for n in (mark, mark + 1, 2 * mark + 1)}
    some = {every[len(every) // 3], every[len(every) // 2], every[-1]}
    some |= marks & {*subject.lengths()}
    for length in sorted(some):
        yield Condition(length)
    if subject.masks:
        yield Condition(max(some), masked=True)
    trained = subject.lengths(training=True) if subject.doubles else []
    for length in sorted(some & {*trained}) or trained[-1:]:
        yield Condition(length, training=True)


def longest(every: Sequence[Condition]) -> list[Condition]:
    """The longest of each mode."""
    return list({(one.training, one.masked): one for one in every}.values())


def changes(subject: Subject, condition: Condition, lasts: Sequence[int] | None = None) -> None:
    """Change all inputs behind each position, or each of ``lasts``, in turn: no output up to it
    moves."""
    x = subject.inputs.draw(1, condition.length)
    padding_mask = torch.ones(x.shape[:2], dtype=torch.bool) if condition.masked else None
    bound = subject.bound(x, padding_mask, training=condition.training)
    y = subject.exact(x, padding_mask, training=condition.training)
    for last in suspects(subject, condition, x, y, bound) if lasts is None else lasts:
        moved = _moved(subject, condition, x, y, slice(last + 1, None))[: last + 1]
        if bool((moved > bound).any()):
            raise _broken(subject, condition, x, y, bound, last, alone=lasts is None)


def left_out(subject: Subject, condition: Condition) -> None:
    """Leave out the last input, and the last half: no output before it moves."""
    length = condition.length
    x = subject.inputs.draw(1, length)
    y, bound = subject.exact(x), subject.bound(x)
    for last in sorted({length // 2, length - 1} - {0}):
        try:
            shorter = subject.exact(x[:, :last])
        except Exception:  # a length that it refuses, which is another law's
            continue
        moved = (y[:, :last] - shorter)[0].abs().amax(-1)
        if bool((moved > bound).any()):
            t = int(moved.argmax())
            raise LawBroken(
                f"output {t} moves by {float(moved[t]):.2g} when inputs from {last} on are left "
                f"out (outputs reach {float(y.abs().max()):.2g}, rounding {bound:.0e}): it tells "
                f"how many follow, at {condition}{subject.assumed}",
                subject.code(
                    subject.inputs.code(1, length),
                    f"shorter = {subject.call_code(f'x[:, :{last}]')}",
                    f"y = {subject.call_code('x')}",
                    f"print(float((y[:, :{last}] - shorter)[0, {t}].abs().max()))  # not 0",
                ),
            )


def suspects(subject: Subject, how: Condition, x: Tensor, y: Tensor, bound: float) -> Sequence[int]:
    """Positions behind which a change moves an output up to them, each in a row of its own of one
    batch. A batch may have a part in that, so that each is looked at alone afterwards; so are all
    where the model takes no such batch."""
    length, found = how.length, list[int]()
    try:
        for lasts in torch.arange(length - 1).split(max(1, BATCH // y.numel())):
            later = torch.arange(length) > lasts[:, None]
            same = x.repeat(len(lasts), *[1] * (x.dim() - 1))
            behind = later if x.dim() == 2 else later[..., None]
            changed = torch.where(behind, subject.inputs.other(same), same)
            padding_mask = torch.ones_like(later) if how.masked else None
            # what is dropped in training depends on how many rows there are
            base = subject.exact(same, padding_mask, training=True) if how.training else y
            off = (
                (base - subject.exact(changed, padding_mask, training=how.training)).abs().amax(-1)
            )
            found += lasts[((off > bound) & ~later).any(1)].tolist()
    except Exception:  # whatever a model says of a batch
        return range(length - 1)
    return found


def gradients(subject: Subject) -> int:
    """The gradient of each output to later inputs is zero; how many looks that took."""
    lengths = [length for length in subject.lengths() if 1 < length <= 33]
    looks = 0
    for length in lengths[-1:]:
        x = subject.inputs.draw(1, length)
        if not subject.doubles:
            return 0
        share = subject.share(x)
        with subject.exactly():
            model = subject.copy()  # held: hooks of some do not outlive it
            leaf, y = subject.differentiable(model, x)
            if leaf is None:
                return looks
            weight = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(1))
            for t in range(length - 1):
                later = _gradient((y[0, t] * weight).sum(), leaf)
                size, at = later[t + 1 :].max(0)
                if float(size) > (0 if subject.strict else share * float(later.max())):
                    raise LawBroken(
                        f"output {t} has a gradient of {float(size):.2g} to input "
                        f"{t + 1 + int(at)} (its largest: {float(later.max()):.2g}), at length "
                        f"{length}{subject.assumed}",
                        _gradient_code(subject, length, t, t + 1 + int(at)),
                    )
        looks += 1
    return looks


def _gradient(output: Tensor, leaf: Tensor) -> Tensor:
    """(L,), the largest gradient of an output to each input."""
    (gradient,) = torch.autograd.grad(output, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros(leaf.shape[1]) if gradient is None else gradient[0].abs().amax(-1)


def _moved(subject: Subject, how: Condition, x: Tensor, y: Tensor, part: Any) -> Tensor:
    """(L,), how far outputs move when the inputs of ``part`` are others."""
    changed = x.clone()
    changed[:, part] = subject.inputs.other(x[:, part])
    padding_mask = torch.ones(x.shape[:2], dtype=torch.bool) if how.masked else None
    return (subject.exact(changed, padding_mask, training=how.training) - y)[0].abs().amax(-1)


def _broken(
    subject: Subject, how: Condition, x: Tensor, y: Tensor, bound: float, last: int, alone: bool
) -> LawBroken:
    """The first input that moves an output before it, ``alone`` if asked, or with all behind."""
    places = range(how.length if alone else 0)
    single = torch.zeros(how.length, how.length)
    for s in places:
        single[s] = _moved(subject, how, x, y, slice(s, s + 1))
    pairs = ((single > bound) & torch.ones_like(single).tril(-1).bool()).nonzero().tolist()
    if pairs:
        s, t = min(pairs, key=lambda pair: (pair[0] - pair[1], pair))
        size, part = float(single[s, t]), f"{s}:{s + 1}"
        of = how.length * (how.length - 1) // 2
        count = f"; {len(pairs)} of {of} pairs"
        by = f"input {s} is another"
    else:
        moved = _moved(subject, how, x, y, slice(last + 1, None))[: last + 1]
        size, t, s = float(moved.max()), int(moved.argmax()), last + 1
        part, count = f"{s}:", ""
        by = f"all inputs from {s} on are others"
    finding = (
        f"output {t} moves by {size:.2g} when {by} (outputs reach {float(y.abs().max()):.2g}, "
        f"rounding {bound:.0e}{count}), at {how}"
    )
    finding += _reason(subject, how, t, s) + subject.assumed
    return LawBroken(finding, _change_code(subject, how, part, t))


def _reason(subject: Subject, how: Condition, t: int, s: int) -> str:
    """Cause, as far as it can be seen."""
    norms = [m for m in subject.model.modules() if isinstance(m, _BatchNorm)]
    if how.training and norms:
        return f"; {type(norms[0]).__name__} takes its means over positions"
    try:
        with subject.exactly():
            model = subject.copy(training=how.training)
            leaf, y = subject.differentiable(model, subject.inputs.draw(1, how.length))
            if leaf is None or float(_gradient(y[0, t].sum(), leaf)[s]) > 0:
                return ""
    except FAILURES:  # some cannot be differentiated in evaluation
        return ""
    return "; no gradient flows there: a choice does it (sorting, hashing, routing)"


def _change_code(subject: Subject, how: Condition, part: str, t: int) -> str:
    padding_mask = "torch.ones(x.shape[:2], dtype=torch.bool)" if how.masked else None
    return subject.code(
        subject.inputs.code(1, how.length),
        "other = x.clone()",
        f"other[:, {part}] = ({subject.inputs.other_code()})[:, {part}]",
        "torch.manual_seed(0)",
        f"y = {subject.call_code('x', padding_mask)}",
        "torch.manual_seed(0)",
        f"moved = {subject.call_code('other', padding_mask)} - y",
        f"print(float(moved[0, {t}].abs().max()))  # not 0",
        training=how.training,
    )


def _gradient_code(subject: Subject, length: int, t: int, s: int) -> str:
    lines = [subject.inputs.code(1, length)]
    if subject.inputs.vocabulary is None:
        lines += ["x.requires_grad_()", f"y = {subject.call_code('x')}"]
    else:
        lines += [
            "table = next(m for m in model.modules() if isinstance(m, torch.nn.Embedding))",
            "kept = []",
            "table.register_forward_hook(lambda m, i, o: kept.append(o.retain_grad() or o))",
            f"y = {subject.call_code('x')}",
        ]
    leaf = "x" if subject.inputs.vocabulary is None else "kept[0]"
    lines += [f"y[0, {t}].sum().backward()", f"print({leaf}.grad[0, {s}].abs().max())  # not 0"]
    return subject.code(*lines, gradients=True)
