"""Gradients: every parameter gets one, it is finite, and it is the derivative."""

from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.foreign import FAILURES
from sequence_laws.inputs import first, seed
from sequence_laws.subject import TRIED, Subject
from sequence_laws.verdict import Inapplicable, LawBroken, join_names


def gradients(subject: Subject) -> str:
    """Every parameter that asks for a gradient gets one, in evaluation or in training, once weights
    have left their start.

    Raises:
        LawBroken: names of parameters without, or that outputs carry none.
        Inapplicable: no parameter asks for one.
    """
    subject.require_weights()
    if not any(p.requires_grad for p in subject.model.parameters()):
        raise Inapplicable("none of its parameters asks for a gradient")
    most = max([subject.usual(), *(n for n in subject.lengths() if n <= TRIED[-1])])
    x = subject.inputs.draw(4, most)  # beyond windows and blocks
    try:
        model = differentiated(subject, x, training=False)
    except FAILURES:  # some can be differentiated in training alone
        x = subject.inputs.draw(4, subject.usual(training=True))
        model = differentiated(subject, x, training=True)
    every = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    idle = subject.idle
    checked = {n: p for n, p in every.items() if idle is None or idle.search(n) is None}
    missing = without(checked)
    if missing and not model.training and subject.lengths(training=True):
        trained = differentiated(subject, x, training=True)  # some losses are of training alone
        missing = without({n: p for n, p in trained.named_parameters() if n in missing})
    if missing:
        raise LawBroken(
            f"{len(missing)} of {len(checked)} parameters get no gradient: {join_names(missing)}",
            subject.code(
                subject.inputs.code(4, x.shape[1]),
                f"{subject.call_code('x')}.square().sum().backward()",
                "print([n for n, p in model.named_parameters() if p.grad is None])",
                gradients=True,
            ),
        )
    rest = len(every) - len(checked)
    others = f"; {rest} {subject.idles}" if rest else ""
    return f"{len(checked)} parameters get a gradient{others}"


def without(weights: dict[str, nn.Parameter]) -> list[str]:
    """Names of weights that have no gradient."""
    return [n for n, p in weights.items() if p.grad is None or not p.grad.any()]


def differentiated(subject: Subject, x: Tensor, *, training: bool) -> nn.Module:
    """A model whose weights have left their start, with gradients of all that it gives."""
    model = subject.copy(training=training)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for weight in model.parameters():  # zeros at the start would hide what is behind them
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.add_(0.02 * noise.to(weight))
    with subject.exactly():
        seed(0)
        result = subject.call(model, subject.widened(x))
        every = _tensors(result) or [first(result)]  # of a record
        parts = [part for part in every if part.requires_grad]
        if not parts:
            raise LawBroken(
                "its outputs carry no gradient, as behind torch.no_grad() or detach()",
                subject.code(
                    subject.inputs.code(*x.shape[:2]),
                    f"print({subject.call_code('x')}.requires_grad)  # False",
                    gradients=True,
                ),
            )
        torch.autograd.backward([(part * part.detach().cos()).sum() for part in parts])
    return model


def _tensors(result: Any) -> list[Tensor]:
    """All tensors of numbers in what a model gives."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    if hasattr(result, "items"):
        return [t for _, part in result.items() for t in _tensors(part)]
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in _tensors(part)]
    return []
