"""Saving: the model from its file, read into one that differs."""

import copy
import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path

from sequence_laws.foreign import FAILURES, cut
from sequence_laws.inputs import seed
from sequence_laws.subject import Subject
from sequence_laws.targets import arguments, sized
from sequence_laws.verdict import Inapplicable, LawBroken, join_names


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
