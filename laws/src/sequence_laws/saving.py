"""Saving: the model from its file, read into one that differs."""

import copy
import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sequence_laws.foreign import FAILURES, cut
from sequence_laws.inputs import seed
from sequence_laws.subject import Subject
from sequence_laws.targets import arguments, sized
from sequence_laws.unsaved import unsaved
from sequence_laws.verdict import Inapplicable, LawBroken, join_names


def saving(subject: Subject) -> str:
    """Weights written by ``state_dict``, of a model that has run, and read into one that differs
    give equal outputs for another text.

    A living model is read into a copy whose weights are others, and into two other instances of
    its class, which give the same unless something is drawn when one is made.

    Raises:
        LawBroken: outputs differ, or the model does not take its own state.
    """
    subject.require_weights()
    x = subject.inputs.draw(2, subject.usual())
    made, other = subject.copy(), subject.copy()
    lines = list[str]()
    if subject.make is None:
        lines += ["import copy", "other = copy.deepcopy(model)"]
        lines += ["[p.data.add_(1) for p in other.parameters()]"]
        _stir(other)
    else:
        torch.manual_seed(1)
        other = subject.converted(subject.make()).eval()
        made_anew = [line for line in subject.build if line.startswith("model")]
        lines += ["first = model", "torch.manual_seed(1)", *made_anew]
        lines += ["model, other = first, model.double().eval()"]
    lines += [subject.inputs.code(2, x.shape[1]), "with torch.no_grad():"]
    lines += [f"    {subject.call_code('x')}  # it may keep something of what it sees first"]
    _outputs(subject, made, x)
    torch.manual_seed(1)  # or what is drawn as it is read could be what was drawn before
    try:
        other = subject.stored(made, other)
    except Exception as error:  # what a model says of its own state
        says = f"{type(error).__name__}: {cut(str(error))[:150]}"
        raise LawBroken(
            f"its own state_dict cannot be read back: {says}",
            subject.code(*lines, "other.load_state_dict(model.state_dict())"),
        ) from error
    x = subject.inputs.draw(2, x.shape[1], seed=1)
    y = _outputs(subject, made, x)
    off = float((_outputs(subject, other, x) - y).abs().max())
    if off > subject.bound(x):
        raise LawBroken(
            f"another that read the state_dict gives outputs that are off by {off:.2g}: something "
            "that outputs depend on is not in it",
            subject.code(
                *lines,
                "other.load_state_dict(model.state_dict())",
                subject.inputs.code(2, x.shape[1]).replace("manual_seed(0)", "manual_seed(1)"),
                "with torch.no_grad():",
                f"    y = {subject.call_code('x')}",
                "    model = other",
                f"    print(({subject.call_code('x')} - y).abs().max())  # not 0",
            ),
        )
    found = f"{len(made.state_dict())} tensors, read into one whose weights were others"
    return found if subject.make is not None else f"{found}; {instances(subject, made, x, y)}"


def instances(subject: Subject, made: nn.Module, x: Tensor, y: Tensor) -> str:
    """What two other instances of the class of a model show, that read its state.

    Raises:
        LawBroken: they differ.
        Inapplicable: outputs depend on tables that are not saved, and no other can be made.
    """
    held, first = unsaved(made), _another(subject.model, 1)
    try:
        one = _read(subject, made, first, x)
    except FAILURES:  # whatever it wants
        before = {name: table.clone() for name, table in held.items()}
        _move([*held.values()])
        moved = float((_outputs(subject, made, x) - y).abs().max())
        for name, table in held.items():
            table.data.copy_(before[name])
        if moved > subject.bound(x):
            raise Inapplicable(
                f"outputs depend on {join_names([*held])}, which it does not save, and no other "
                "instance can be made to see whether that is drawn: name what makes it, as "
                "file.py:factory",
                "undecided",
            ) from None
        return "no other instance can be made, which would show what is drawn with one"
    if float((one - y).abs().max()) <= subject.bound(x):
        if held:
            return f"{join_names(sorted(held))}, which it does not save, taken for constant"
        return "and into another instance"
    second = _another(subject.model, 2)
    off = float((_read(subject, made, second, x) - one).abs().max())
    if off > subject.bound(x):
        values, others = _values(first), _values(second)
        drawn = [name for name, value in values.items() if value != others.get(name, value)]
        what = join_names(sorted(drawn)) or "something"
        raise LawBroken(
            f"two others that read the state_dict give outputs that differ by {off:.2g}: {what}, "
            "drawn when one is made, that outputs depend on is not in it",
            subject.code(
                subject.inputs.code(2, x.shape[1]),
                f"known = {{word: vars(model)[word] for word in {_kept_words(subject.model)}}}",
                "others = []",
                "for seed in (1, 2):",
                "    torch.manual_seed(seed)",
                f"    other = type(model)(**known{_sizes_code(subject.model)}).double().eval()",
                "    other.load_state_dict(model.state_dict())",
                "    others.append(other)",
                "with torch.no_grad():",
                "    model = others[0]",
                f"    y = {subject.call_code('x')}",
                "    model = others[1]",
                f"    print(({subject.call_code('x')} - y).abs().max())  # not 0",
            ),
        )
    return "another instance, of the arguments that it keeps, computes otherwise: not compared"


def _read(subject: Subject, made: nn.Module, other: nn.Module, x: Tensor) -> Tensor:
    """Outputs of another instance that read the state of the first."""
    return _outputs(subject, subject.stored(made, subject.converted(other).eval()), x)


def _outputs(subject: Subject, model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), subject.exactly():
        return subject.run(model, subject.widened(x))


def _kept_words(model: nn.Module) -> list[str]:
    """Arguments of a model's class that it has under their names."""
    held = vars(model)
    return [w for w in arguments(type(model)) if w in held and not isinstance(held[w], Tensor)]


def _factory(model: nn.Module) -> functools.partial[nn.Module]:
    """What makes another instance of a model's class, of the arguments that it keeps."""
    words = _kept_words(model)
    return functools.partial(type(model), **copy.deepcopy({w: vars(model)[w] for w in words}))


def _sizes_code(model: nn.Module) -> str:
    """The Python of the other arguments, small sizes."""
    return "".join(f", {w}={v!r}" for w, v in sized("", _factory(model)).items())


def _another(model: nn.Module, number: int) -> nn.Module:
    """Another instance of a model's class, of arguments that the model has under their names, else
    small sizes; an empty one where it wants others."""
    try:
        seed(number)
        factory = _factory(model)
        return factory(**sized(type(model).__name__, factory))
    except FAILURES:  # whatever it wants
        return nn.Module()


def _values(model: nn.Module) -> dict[str, str]:
    """What a model holds and does not save, as text: tables, arrays and numbers, by name."""
    plain = {
        f"{prefix}.{name}".lstrip("."): repr(value)
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and "object at 0x" not in repr(value)
    }
    return {name: str(table.tolist()) for name, table in unsaved(model).items()} | {
        name: text for name, text in plain.items() if "tensor(" not in text
    }


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
