"""Causality: an output depends on its own and earlier inputs alone.

Tried in three ways, which find different faults: by changing what comes later, which also finds
discrete choices (sorting, hashing, routing), by leaving it out, which finds what depends on how
much follows, and by gradients (`later_gradients`), which also find what is too small or saturated
to be seen in one change, and see every place of a long text. In evaluation at lengths around
blocks and windows. In training, with a mask that says that all is real, and in every other way in
which the model computes the same, outputs are compared with those: where they are equal, nothing
else is computed, and where they are not, as with dropout that is no part of torch's, all inputs are
changed there, too.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import cuts
from sequence_laws.later_gradients import MANY, gradient, gradients
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken

BATCH = 2**20
"""numbers that a batch may give: rows of it are looked at together"""
LONG = 320
"""inputs of a text beyond blocks of usual sizes"""
ENDS = (33, 65, 128, 256, *range(-8, 0))
"""where a long text is cut: behind usual sizes, and by every remainder of a block of 8"""
ROWS = 4
"""of which outputs are compared, so that discrete choices fall in several ways"""


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
    every, first, looks = list[Condition](), subject, 0
    for way, model in subject.implementations:
        # ways differ in how pairs are masked, which the longest input of each mode shows
        every = longest(every) if every else list(conditions(model))
        first = first if looks else model
        for condition in every:
            look(first, model, condition._replace(way=way))
            looks += 1
    for how in longest(every):
        if how.training and dropouts(first):
            changes(first, how, places(how.length))
    detail = f"{looks} looks: every later input changed or left out, in evaluation"
    detail += " and training" * subject.doubles
    length = far(subject)
    longs = [length] if length else []
    shorts = [n for n in subject.lengths() if n <= MANY + 1][-1:] if subject.strict else []
    told: bool | None = None
    try:
        for length in [*shorts, *longs] or subject.lengths()[-1:]:
            told = gradients(subject, length)
        detail += f"; by gradients at length {length}" if told is not None else ""
    except LawBroken:
        raise
    except FAILURES as error:  # some cannot be differentiated in evaluation
        told, detail = None, f"{detail}; no gradients: {describe(error)}"
    for length in longs or subject.lengths()[-1:]:
        left_out(subject, Condition(length), subject.bound(subject.inputs.draw(1, length)), ENDS)
    for length in longs:
        some = places(length) if told else range(length - 1)
        changes(subject, Condition(length), some)
        detail += f"; {len(some)} places of {length} inputs changed"
    return detail


def look(first: Subject, model: Subject, how: Condition) -> None:
    """All later inputs changed, or left out, of a model under a condition; where its outputs are
    those of the ``first`` way in evaluation, the look at that was one at this."""
    plain = model is first and not how.training and not how.masked
    if plain or not equal(first, model, how):
        changes(model, how)
    if not how.training and not how.masked:
        left_out(model, how, first.bound(model.inputs.draw(1, how.length)))


def equal(first: Subject, model: Subject, how: Condition) -> bool:
    """Whether some rows give what they give the ``first`` way in evaluation, without dropout."""
    x = model.inputs.draw(ROWS, how.length)
    padding_mask = torch.ones(x.shape[:2], dtype=torch.bool) if how.masked else None
    try:
        with undropped(model) if how.training else contextlib.nullcontext():
            y = model.exact(x, padding_mask, training=how.training)
        off = (y - first.exact(x)).abs().max()
    except FAILURES:  # a length that is refused in evaluation
        return False
    return float(off) <= first.bound(x[:1])


def dropouts(subject: Subject) -> list[nn.Module]:
    """Dropouts of torch in the model that is tried in training."""
    return [m for m in subject.fresh(True).modules() if type(m).__module__ == _DropoutNd.__module__]


@contextlib.contextmanager
def undropped(subject: Subject) -> Iterator[None]:
    """Within it dropouts of torch drop nothing."""
    parts: list[Any] = dropouts(subject)
    before = [part.p for part in parts]
    for part in parts:
        part.p = 0.0
    try:
        yield
    finally:
        for part, p in zip(parts, before, strict=True):
            part.p = p


def places(length: int) -> list[int]:
    """Positions behind which inputs are changed where not all are: some, and ends of blocks."""
    return sorted({cut - 1 for cut in cuts(length) if cut} | {*range(63, length - 1, 64)})


def far(subject: Subject) -> int | None:
    """The longest of some lengths beyond blocks of usual sizes that it takes, up to its own."""
    most = subject.max_length() or LONG
    every = sorted({most, LONG, 256, 128}, reverse=True)
    some = (n for n in every if TRIED[-1] < n <= min(most, LONG))
    return next((n for n in some if n in subject.lengths() or subject.takes(n)), None)


def glance(subject: Subject, longer: int) -> str | None:
    """Where a model sees the future at one length, of 33 inputs at most, in evaluation and in
    training, and at some places of a ``longer`` text that it takes; None where it does not, or
    cannot be asked."""
    lengths = [length for length in subject.lengths() if 1 < length <= 33]
    try:
        for training in (False, True) if lengths else ():
            changes(subject, Condition(lengths[-1], training))
        if lengths and longer > lengths[-1] and subject.takes(longer):
            changes(subject, Condition(longer), places(longer))
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


def changes(subject: Subject, how: Condition, some: Sequence[int] | None = None) -> None:
    """Change all inputs behind each position, or behind ``some``: no output up to it moves."""
    x = subject.inputs.draw(1, how.length)
    padding_mask = torch.ones(x.shape[:2], dtype=torch.bool) if how.masked else None
    bound = subject.bound(x, padding_mask, training=how.training)
    y = subject.exact(x, padding_mask, training=how.training)
    every = range(how.length - 1) if some is None else some
    for last in suspects(subject, how, x, y, bound, every):
        moved = _moved(subject, how, x, y, slice(last + 1, None))[: last + 1]
        if bool((moved > bound).any()):
            raise _broken(subject, how, x, y, bound, last, alone=some is None)


def left_out(
    subject: Subject, condition: Condition, bound: float, ends: Sequence[int] = ()
) -> None:
    """Leave out the last input, the last half, and what is behind ``ends``, of which some count
    from the end: no output before it moves."""
    length = condition.length
    x = subject.inputs.draw(1, length)
    y = subject.exact(x)
    more = (end + length * (end < 0) for end in ends)
    for last in sorted({length // 2, length - 1, *(end for end in more if 0 < end < length)} - {0}):
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


def suspects(
    subject: Subject, how: Condition, x: Tensor, y: Tensor, bound: float, every: Sequence[int]
) -> Sequence[int]:
    """Positions of ``every`` behind which a change moves an output up to them, each in a row of its
    own of one batch. A batch may have a part in that, so that each is looked at alone afterwards;
    so are all where the model takes no such batch."""
    found = list[int]()
    try:
        for lasts in torch.tensor(every).split(max(1, BATCH // y.numel())):
            later = torch.arange(how.length) > lasts[:, None]
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
        return every
    return found


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
            leaves, y = subject.differentiable(model, subject.inputs.draw(1, how.length))
            # not their sum, which a norm behind them may hold constant
            weights = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(1)).to(y)
            if not leaves or float(gradient(y[0, t] @ weights, leaves)[s]) > 0:
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
