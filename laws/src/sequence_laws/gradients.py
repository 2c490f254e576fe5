"""Gradients: each parameter gets one, which is finite behind padding, and is the derivative.

Looked at in four ways: whether there is one, once weights have left their start; whether it is
that of differences (`derivatives`); whether it is finite where rows are padded, since queries that
see nothing give NaN there first; and whether float32 and other implementations give the same.
"""

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sequence_laws.derivatives import Pulled, differences, tensors
from sequence_laws.foreign import FAILURES
from sequence_laws.inputs import first, seed
from sequence_laws.padding import real
from sequence_laws.rounding import EPS32, GAP, computed, rounding
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken, join_names

MOVED = (
    "generator = torch.Generator().manual_seed(0)",
    "for p in model.parameters():",
    "    noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)",
    "    p.data += 0.02 * noise.to(p)",
)
"""the Python by which weights leave their start"""
SINGLE = " in float32"


def gradients(subject: Subject) -> str:
    """Every parameter that asks for a gradient gets one, in evaluation or in training, once weights
    have left their start; it is finite, also behind padding, it is what differences give, and
    float32 and other implementations give it, too.

    Raises:
        LawBroken: names of parameters without, or of which it is wrong, or that outputs carry none.
        Inapplicable: no parameter asks for one.
    """
    subject.require_weights()
    if not any(p.requires_grad for p in subject.model.parameters()):
        raise Inapplicable("none of its parameters asks for a gradient")
    most = max([subject.usual(), *(n for n in subject.lengths() if n <= TRIED[-1])])
    x = subject.inputs.draw(4, most)  # beyond windows and blocks
    try:
        pulled = differentiated(subject, x, training=False)
    except FAILURES:  # some can be differentiated in training alone
        x = subject.inputs.draw(4, subject.usual(training=True))
        pulled = differentiated(subject, x, training=True)
    every = pulled.gradients
    idle = subject.idle
    checked = {n: p for n, p in every.items() if idle is None or idle.search(n) is None}
    missing = without(checked)
    if missing and not pulled.model.training and subject.lengths(training=True):
        trained = differentiated(subject, x, training=True)  # some losses are of training alone
        missing = without({n: p for n, p in trained.gradients.items() if n in missing})
    if missing:
        raise LawBroken(
            f"{len(missing)} of {len(checked)} parameters get no gradient: {join_names(missing)}",
            subject.code(
                *MOVED,
                subject.inputs.code(4, x.shape[1]),
                *_backward(subject, None),
                "weights = model.named_parameters()",
                "print([n for n, p in weights if p.grad is None or not p.grad.any()])",
                gradients=True,
                training=pulled.model.training,
            ),
        )
    rest = len(every) - len(checked)
    found = [f"{len(checked)} parameters get a gradient"]
    found += [f"{rest} {subject.idles}"] * bool(rest)
    require_finite(subject, every, x, None, "")
    if subject.wide is torch.float64:
        compared = differences(subject, pulled, x, MOVED)
        found += [compared] if compared else []
        if compared is not None and not pulled.model.training and not subject.strict:
            found.append(same(subject))
    return "; ".join(filter(None, found))


def without(weights: dict[str, Tensor | None]) -> list[str]:
    """Names of weights that have no gradient."""
    return [n for n, g in weights.items() if g is None or not g.any()]


def differentiated(subject: Subject, x: Tensor, *, training: bool) -> Pulled:
    """A model whose weights have left their start, with gradients of all that it gives."""
    model = subject.copy(training=training)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for weight in model.parameters():  # zeros at the start would hide what is behind them
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.add_(0.02 * noise.to(weight))
    wide = subject.widened(x)
    wide = wide.requires_grad_() if wide.is_floating_point() else wide
    with subject.exactly():
        seed(0)
        result = subject.call(model, wide)
        every = tensors(result) or [first(result)]  # of a record
        parts = {n: part for n, part in enumerate(every) if part.requires_grad}
        if not parts:
            raise LawBroken(
                "its outputs carry no gradient, as behind torch.no_grad() or detach()",
                subject.code(
                    subject.inputs.code(*x.shape[:2]),
                    f"print({subject.call_code('x')}.requires_grad)  # False",
                    gradients=True,
                ),
            )
        weights = {n: _weights(part.detach()) for n, part in parts.items()}
        torch.autograd.backward([(part * weights[n]).sum() for n, part in parts.items()])
    return Pulled(model, wide, weights)


def _weights(y: Tensor) -> Tensor:
    """By which outputs are summed; a filler would hide the others."""
    return y.cos() * computed(y)


def same(subject: Subject) -> str:
    """Gradients of rows with padding on each side are finite, have digits in float32, and are the
    same in each implementation."""
    sides, length, found = subject.masks, subject.usual(), list[str]()
    x = subject.inputs.draw(2 * max(1, len(sides)), length)
    padding_mask = torch.cat([real(length, side) for side in sides]) if sides else None
    exact = gradient(subject, x, padding_mask)
    require_finite(subject, exact, x, padding_mask, "")
    found += [f"finite behind padding ({', '.join(sides)})"] * bool(sides)
    found += [beside_nothing(subject, length)]
    model = subject.copy(torch.float32)
    single = gradient(subject, x, padding_mask, model)
    require_digits(subject, model, exact, single, x, padding_mask)
    for way, other in subject.implementations:
        if not way:
            continue
        given = gradient(other, x, padding_mask)
        require_finite(other, given, x, padding_mask, f" with {way}")
        off = {n: float((g - exact[n]).abs().max()) for n, g in given.items()}
        wrong = [n for n, size in off.items() if size > GAP * rounding(single[n], exact[n])]
        if wrong:
            worst = max(wrong, key=lambda n: off[n])
            reaches = float(exact[worst].abs().max())
            raise LawBroken(
                f"with {way} the gradients of {join_names(wrong)} are off by up to "
                f"{off[worst]:.2g} where they reach {reaches:.2g}",
                _code(
                    subject, worst, x, padding_mask, "before, p.grad = p.grad, None",
                    *other.build[len(subject.build) :], *_backward(other, padding_mask),
                    "print((p.grad - before).abs().max())  # not 0",
                ),
            )  # fmt: skip
        found.append(f"equal with {way}")
    return ", ".join(filter(None, found))


def beside_nothing(subject: Subject, length: int) -> str:
    """What is said where a row is nothing but padding, and no loss reads it: attention that is not
    finite there passes NaN to all weights. It is no failure, since torch's own layer does that."""
    if {*subject.masks} <= {"holes"}:
        return ""
    padding_mask = torch.ones(2, length, dtype=torch.bool)
    padding_mask[1] = False
    try:
        given = gradient(subject, subject.inputs.draw(2, length), padding_mask)
    except FAILURES:  # as the law of padding says
        return ""
    wrong = [name for name, g in given.items() if not g.isfinite().all()]
    if not wrong:
        return "finite beside a row of nothing but padding"
    names = join_names(wrong)
    return f"not finite beside a row of nothing but padding, which no loss reads ({names})"


def gradient(
    subject: Subject, x: Tensor, padding_mask: Tensor | None, single: nn.Module | None = None
) -> dict[str, Tensor]:
    """Of a loss of real positions to each parameter, in `wide`, or of a ``single`` in its dtype."""
    model = subject.fresh() if single is None else single
    with subject.exactly() if single is None else contextlib.nullcontext():
        wide = x if single is not None else subject.widened(x)
        y = subject.run(model, wide, padding_mask)
        if padding_mask is not None:  # nothing is expected of a row that is padding alone
            y = y[padding_mask.any(1) if subject.pools else padding_mask]
    named = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    loss = (y * y.detach().cos()).sum()
    every = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    pairs = zip(named, every, strict=True)
    return {n: g.double() for n, g in pairs if g is not None}


def require_finite(
    subject: Subject,
    given: Mapping[str, Tensor | None],
    x: Tensor,
    padding_mask: Tensor | None,
    how: str,
) -> None:
    """Raise `LawBroken` where a gradient is not finite."""
    wrong = [n for n, g in given.items() if g is not None and not g.isfinite().all()]
    if not wrong:
        return
    where = "" if padding_mask is None else f", behind padding ({', '.join(subject.masks)})"
    raise LawBroken(
        f"the gradients of {join_names(wrong)} are not finite{how}{where} (length {x.shape[1]})",
        _code(
            subject, wrong[0], x, padding_mask, "print((~p.grad.isfinite()).sum())  # not 0",
            double=how != SINGLE,
        ),
    )  # fmt: skip


def require_digits(
    subject: Subject,
    model: nn.Module,
    exact: Mapping[str, Tensor],
    single: Mapping[str, Tensor],
    x: Tensor,
    padding_mask: Tensor | None,
) -> None:
    """Raise `LawBroken` where a gradient in float32 has no digit right: it is off by a tenth, and
    by more than rounding of what cancels in it, half-way to the largest gradient of all; of a
    ``model`` that has run, since some make weights then."""
    require_finite(subject, single, x, padding_mask, SINGLE)
    size = {n: float(p.detach().norm()) for n, p in model.named_parameters()}
    whole = max(size[n] * float(g.norm()) for n, g in exact.items())
    off = {n: float((single[n] - g).norm()) for n, g in exact.items()}
    wrong = [
        n
        for n, g in exact.items()
        if off[n] >= float(g.norm()) / 10 and size[n] * off[n] > EPS32**0.5 * whole
    ]
    if wrong:
        raise LawBroken(
            f"in float32 the gradients of {join_names(wrong)} have no digit right: that of "
            f"{wrong[0]} is off by {off[wrong[0]]:.2g} of {float(exact[wrong[0]].norm()):.2g} "
            "in float64",
            _code(
                subject, wrong[0], x, padding_mask, "before, p.grad = p.grad, None",
                "model = model.float()", "x = x.float()" * x.is_floating_point(),
                *_backward(subject, padding_mask),
                "print((p.grad - before).norm() / before.norm())  # not 0",
            ),
        )  # fmt: skip


def _backward(subject: Subject, padding_mask: Tensor | None) -> list[str]:
    """The Python of a loss of real positions, and its gradients."""
    if padding_mask is None:
        called = subject.call_code("x")
    else:
        called = subject.call_code("x", "padding_mask") + "[padding_mask]" * (not subject.pools)
    return [f"y = {called}", "(y * y.detach().cos()).sum().backward()"]


def _code(
    subject: Subject,
    name: str,
    x: Tensor,
    padding_mask: Tensor | None,
    *lines: str,
    double: bool = True,
) -> str:
    """The Python of the gradient of a parameter, and what is done with it."""
    masked = (
        []
        if padding_mask is None
        else [f"padding_mask = torch.tensor({padding_mask.int().tolist()}).bool()"]
    )
    return subject.code(
        subject.inputs.code(*x.shape[:2]),
        *["x = x.float()"] * (x.is_floating_point() and not double),
        *masked,
        *_backward(subject, padding_mask),
        f"p = model.get_parameter({name!r})",
        *filter(None, lines),
        gradients=True,
        double=double,
    )
