"""Gradients of outputs to later inputs, of all pairs of positions in a few backward passes.

Outputs are weighted by powers of `STEP` that fall with their position, so that the gradient of an
input is that of the first output that reads it, up to 2^-30. Which one that is shows in a second
pass, in which output t has a factor of its own besides: the ratio of both gradients is that
factor. So two backward passes tell, for a window of inputs, the first output that reads each. What
they suspect is looked at by itself, without powers.
"""

import torch
from torch import Tensor

from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken

STEP = 2.0**30
"""by which the weight of an output is that of the next"""
WINDOW = {torch.float64: 32, torch.float32: 3}
"""positions whose powers of `STEP` a dtype holds, with room for gradients"""
CLEAR = 2.0**-24
"""by which a ratio may be less than the factor of its own output: rounding is 2^-52, and what
later outputs add 2^-30"""
MANY = 32
"""suspects beyond which powers do not tell, as behind Fourier transforms, whose rounding is that
of the largest"""


def gradients(subject: Subject, length: int) -> bool | None:
    """The gradients of outputs to later inputs are zero: whether all pairs were seen, or some; None
    where nothing can be differentiated.

    Raises:
        LawBroken: an output that has a gradient to a later input.
    """
    if not subject.doubles:
        return None
    x = subject.inputs.draw(1, length)
    least = 0.0 if subject.strict else subject.share(x)
    with subject.exactly():
        model = subject.copy()  # held: hooks of some do not outlive it
        leaves, y = subject.differentiable(model, x)
    if not leaves:
        return None
    weights = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(1)).to(y)
    sums = y[0] @ weights
    exact = subject.strict and length <= MANY + 1
    found = [*range(1, length)] if exact else suspects(sums, leaves)
    for s in found[:: len(found) // MANY + 1]:
        sizes = gradient(sums[:s].sum(), leaves)
        if float(sizes[s:].max()) > least * float(sizes.max()):
            raise _broken(subject, length, sums, leaves, s + int(sizes[s:].argmax()))
    return len(found) <= MANY


def suspects(sums: Tensor, leaves: list[Tensor]) -> list[int]:
    """Inputs that an earlier output may read, of ``sums`` (L,) of each output's channels."""
    length, found, t = len(sums), list[int](), torch.arange(len(sums))
    for begin in range(0, length, wide := WINDOW.get(sums.dtype, 1)):
        end = min(begin + wide, length)
        powers = STEP ** (end - 1 - t).clamp(-1, end - begin).to(sums) * (t < end)
        factors = 1 + (t + 1 - begin).clamp(min=0).to(sums) / wide
        one, two = (_gradients((sums * w).sum(), leaves) for w in (powers, powers * factors))
        one, two = one[begin:end], two[begin:end]
        largest = one.abs().amax(1, keepdim=True)
        one, two = one / largest, two / largest
        ratio = (one * two).sum(1) / one.square().sum(1)
        clear = (ratio >= factors[begin:end] * (1 - CLEAR)) | (largest[:, 0] == 0)
        found += [begin + s for s in (~clear).nonzero()[:, 0].tolist() if begin + s > 0]
    return found


def _gradients(output: Tensor, leaves: list[Tensor]) -> Tensor:
    """(L, d), the gradient of an output to all that each input gives."""
    parts = torch.autograd.grad(output, leaves, retain_graph=True, allow_unused=True)
    pairs = zip(parts, leaves, strict=True)
    return torch.cat([torch.zeros_like(at[0]) if g is None else g[0] for g, at in pairs], -1)


def gradient(output: Tensor, leaves: list[Tensor]) -> Tensor:
    """(L,), the largest gradient of an output to each input."""
    return _gradients(output, leaves).abs().amax(-1)


def _broken(subject: Subject, length: int, sums: Tensor, leaves: list[Tensor], s: int) -> LawBroken:
    """The output before input ``s`` whose gradient to it is the largest."""
    of = torch.stack([gradient(one, leaves) for one in sums[:s]])
    t = int(of[:, s].argmax())
    return LawBroken(
        f"output {t} has a gradient of {float(of[t, s]):.2g} to input {s} (its largest: "
        f"{float(of[t].max()):.2g}), at length {length}{subject.assumed}",
        _code(subject, length, t, s),
    )


def _code(subject: Subject, length: int, t: int, s: int) -> str:
    lines, given = [subject.inputs.code(1, length)], "x.grad"
    if subject.inputs.vocabulary is None:
        lines += ["x.requires_grad_()"]
    else:
        given = "torch.cat([o.grad for o in kept], -1)"
        lines += [
            "kept = []  # what embeddings give of x",
            "keep = lambda m, i, o: kept.append(o.retain_grad() or o) if i[0].equal(x) else None",
            "for m in model.modules():",
            "    isinstance(m, torch.nn.Embedding) and m.register_forward_hook(keep)",
        ]
    lines += [
        f"{subject.call_code('x')}[0, {t}].square().sum().backward()",
        f"print({given}[0, {s}].abs().max())  # not 0",
    ]
    return subject.code(*lines, gradients=True)
