"""Numbers and saving: the model in other dtypes, and from a file."""

import copy
import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

from sequence_laws.foreign import FAILURES, cut
from sequence_laws.inputs import seed
from sequence_laws.subject import Subject
from sequence_laws.targets import arguments, sized
from sequence_laws.verdict import Inapplicable, LawBroken, join_names

FAR, MANY = 1024, 2**24
"""inputs of a text, and numbers that it may give, that are computed in bfloat16"""


def numbers(subject: Subject) -> str:
    """Finite outputs, of features of 1e4 and in bfloat16 too, in which a digit is right: at three
    positions of four the median error is below a tenth of the spread of all outputs. In float32
    there are more digits than in bfloat16. A `strict` subject has all that in float16 too, with
    finite gradients, also of one input and of rows that are nothing but padding.

    bfloat16 is tried at several lengths up to the model's own, `FAR` at most, and at each behind
    the shorter ones, since it cannot tell whole numbers beyond 256.

    Raises:
        LawBroken: an output is not finite, or has no digit right in bfloat16.
    """
    subject.require_weights()
    length, found = subject.usual(), []
    x = subject.inputs.draw(2, length)
    if subject.inputs.vocabulary is None:
        with torch.no_grad():
            large = subject.run(subject.copy(torch.float32), 1e4 * x)
        finding = "features of 1e4 give outputs that are not finite"
        require_finite(subject, large, finding, "float32", "1e4 * x")
        found.append("finite at 1e4")
    y = subject.exact(x)
    require_finite(subject, y, "outputs are not finite", "float64")
    if subject.strict:
        found.append(extremes(subject, length))
    most = min(subject.max_length() or FAR, FAR, MANY // y.shape[-1])
    longer = sorted(n for n in {64, 256, 512, most} if length < n <= most)
    before, worst = 0, 0.0
    for end in [length, *filter(subject.takes, longer)]:
        share = digits(subject, torch.bfloat16, end, 0 if subject.pools else before)
        if share is None:
            return ", ".join([*found, "it does not run in bfloat16"])
        if not before and subject.wide is torch.float64:
            scale_window(subject, length, share)
        before, worst = end, max(worst, share)
    found.append(f"bfloat16 is off by {worst:.1g} of the spread at most, to length {before}")
    return ", ".join(found)


def scale_window(subject: Subject, length: int, coarse: float) -> None:
    """Raise `LawBroken` where float32 has no more digits than bfloat16, of which an error is
    ``coarse``: something is computed in bfloat16 or float16 whatever is requested."""
    fine = digits(subject, torch.float32, length, 0)
    if fine is not None and fine > max(coarse / 16, 1e-6):
        raise LawBroken(
            f"float32 has the digits of bfloat16: its error against float64 is {fine:.1g} of the "
            f"spread, that of bfloat16 {coarse:.1g} (length {length})"
        )


def extremes(subject: Subject, length: int) -> str:
    """Outputs and gradients in three dtypes are finite: of large features, one input, and rows
    without any; and in float16 a digit is right."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    for kind, end in itertools.product(kinds, (1, length)):
        # beyond sqrt(65504) projections themselves leave float16's range
        large = 1 if subject.inputs.vocabulary else 100 if kind is torch.float16 else 1e4
        x = large * subject.inputs.draw(2, end)
        x = x.to(kind).requires_grad_() if x.is_floating_point() else x
        nothing = torch.ones(x.shape[:2], dtype=torch.bool)
        nothing[1] = False
        model = subject.copy(kind)
        for padding_mask in (None, nothing) if subject.masks else (None,):
            y = subject.run(model, x, padding_mask)
            where = f"{kind} at length {end}" + " with a row of padding" * (
                padding_mask is not None
            )
            if not torch.isfinite(y).all():
                raise LawBroken(f"outputs in {where} are not finite")
            into = [x] if x.requires_grad else [*model.parameters()]
            parts = torch.autograd.grad(y.float().sum(), into, allow_unused=True)
            if not all(torch.isfinite(part).all() for part in parts if part is not None):
                raise LawBroken(f"gradients in {where} are not finite")
    digits(subject, torch.float16, length, 0)
    return "in three dtypes, of rows of padding, with gradients"


def require_finite(subject: Subject, y: Tensor, finding: str, dtype: str, x: str = "x") -> None:
    """Raise `LawBroken` with the finding where outputs of ``x`` in a dtype are not finite."""
    if torch.isfinite(y).all():
        return
    raise LawBroken(
        finding,
        subject.code(
            f"model = model.to(torch.{dtype})",
            subject.inputs.code(*y.shape[:2]).replace("float64", dtype),
            f"print({subject.call_code(x)}.isfinite().all())  # False",
            double=False,
        ),
    )


def digits(subject: Subject, kind: torch.dtype, length: int, before: int) -> float | None:
    """Error of a dtype behind ``before`` inputs as a share of the spread; None where the model does
    not run in it on this device.

    Raises:
        LawBroken: it is a tenth or more, or not finite.
    """
    x, name = subject.inputs.draw(16 if subject.pools else 2, length), str(kind).partition(".")[2]
    y, cast = subject.exact(x), f"x.to({kind})" if x.is_floating_point() else "x"
    try:
        with torch.no_grad():
            low = subject.run(subject.copy(kind), x.to(kind) if x.is_floating_point() else x)
    except RuntimeError:  # an operation that this device lacks in this dtype
        return None
    low = low.double()
    require_finite(subject, low, f"outputs in {name} are not finite", name)
    # one number a row may hardly differ from that of another
    spread = float(y.square().mean().sqrt() if y[0].numel() == 1 else y.std())
    off = float((low - y)[:, before:].abs().median(-1).values.quantile(0.75))
    if off >= spread / 10 and spread > subject.bound(x):
        raise LawBroken(
            f"in {name} no digit is right: at length {length}, behind {before}, outputs are off "
            f"by {off:.2g}, and spread by {spread:.2g}",
            subject.code(
                subject.inputs.code(len(x), length),
                f"y = {subject.call_code('x')}",
                f"model = model.to({kind})",
                f"off = ({subject.call_code(cast)} - y){f'[:, {before}:]' * (not subject.pools)}",
                "print(off.abs().median() / y.std())",
            ),
        )
    return off / max(spread, subject.bound(x))


def saving(subject: Subject) -> str:
    """Weights written by ``state_dict`` and read into a model that differs give equal outputs.

    Raises:
        LawBroken: outputs differ, or the model does not take its own state.
    """
    subject.require_weights()
    x = subject.inputs.draw(2, subject.usual())
    made, other = subject.copy(), subject.copy()
    lines = [subject.inputs.code(2, x.shape[1])]
    held, drawn = dict[str, Tensor](), list[str]()
    if subject.make is None:
        lines += ["import copy", "other = copy.deepcopy(model)"]
        lines += ["[p.data.add_(1) for p in other.parameters()]"]
        held = _unsaved(made)
        others = [_unsaved(_another(subject.model, n)) for n in (1, 2)] if held else [{}, {}]
        both = held.keys() & others[0].keys() & others[1].keys()
        drawn = sorted(name for name in both if not torch.equal(*(one[name] for one in others)))
        lines += [f"print({name!r} in model.state_dict())  # False" for name in drawn]
        _stir(other)
        _move([_unsaved(other)[name] for name in drawn])
    else:
        torch.manual_seed(1)
        other = subject.converted(subject.make()).eval()
        made_anew = [line for line in subject.build if line.startswith("model")]
        lines += ["first = model", "torch.manual_seed(1)", *made_anew]
        lines += ["model, other = first, model.double().eval()"]
    try:
        other = subject.stored(made, other)
    except Exception as error:  # what a model says of its own state
        says = f"{type(error).__name__}: {cut(str(error))[:150]}"
        raise LawBroken(
            f"its own state_dict cannot be read back: {says}",
            subject.code(*lines, "other.load_state_dict(model.state_dict())"),
        ) from error
    with torch.no_grad(), subject.exactly():
        wide = subject.widened(x)
        y = subject.run(made, wide)
        off = float((subject.run(other, wide) - y).abs().max())
        unknown = [name for name in held if name not in both]
        _move([held[name] for name in unknown])
        moved = float((subject.run(made, wide) - y).abs().max())
    if off > subject.bound(x):
        what = f"{join_names(drawn)}, drawn when one is made," if drawn else "something"
        raise LawBroken(
            f"another that read the state_dict gives outputs that are off by {off:.2g}: {what} "
            "that outputs depend on is not in it",
            subject.code(
                *lines,
                "other.load_state_dict(model.state_dict())",
                f"y = {subject.call_code('x')}",
                "model = other",
                f"print(({subject.call_code('x')} - y).abs().max())  # not 0",
            ),
        )
    if moved > subject.bound(x):
        raise Inapplicable(
            f"outputs depend on {join_names(unknown)}, which it does not save, and no other "
            "instance can be made to see whether that is drawn: name what makes it, as "
            "file.py:factory",
            "undecided",
        )
    constant = (
        f"; {join_names(sorted(held))}, which it does not save, taken for constant" if held else ""
    )
    return f"{len(made.state_dict())} tensors, read into one whose weights were others{constant}"


def _another(model: nn.Module, number: int) -> nn.Module:
    """Another instance of a model's class, of arguments that the model has under their names, else
    small sizes; an empty one where it wants others."""
    kind, held = type(model), vars(model)
    words = [w for w in arguments(kind) if w in held and not isinstance(held[w], Tensor)]
    try:
        seed(number)
        factory = functools.partial(kind, **copy.deepcopy({word: held[word] for word in words}))
        return factory(**sized(kind.__name__, factory))
    except FAILURES:  # whatever it wants
        return nn.Module()


def _unsaved(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that a model holds and saves nowhere: attributes, also in lists and of modules in
    these, and buffers that are not persistent."""
    state, found = model.state_dict(keep_vars=True), dict[str, Tensor]()
    saved = {id(tensor) for tensor in state.values()}
    for prefix, module in model.named_modules():
        held = {name: value for name, value in vars(module).items() if name != "_modules"}
        for path, leaf in tree_flatten_with_path(held)[0]:
            keys = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
            name = ".".join(filter(None, [prefix, *keys[keys[0] in ("_parameters", "_buffers") :]]))
            inner = (
                dict(leaf.named_parameters(name)) if isinstance(leaf, nn.Module) else {name: leaf}
            )
            tensors = {k: t for k, t in inner.items() if isinstance(t, Tensor) and t.numel()}
            found |= {k: t for k, t in tensors.items() if id(t) not in saved and k not in state}
    return found


def _move(tables: Sequence[Tensor]) -> None:
    """Make other tables of some, in place."""
    with torch.no_grad():
        for one in tables:
            other = 2 * one + 1 if one.is_floating_point() else one.flatten().roll(1)
            one.copy_(other.view_as(one))


def _stir(model: nn.Module) -> None:
    """Move all weights, and all buffers of numbers that are no function of the configuration."""
    with torch.no_grad():
        kept = {id(t) for t in model.state_dict(keep_vars=True).values()}
        buffers = [b for b in model.buffers() if id(b) in kept and b.is_floating_point()]
        for tensor in (*model.parameters(), *buffers):
            tensor += 1.0
