"""Custom operators: a forward pass, its gradients by hand, and the shapes of both results.

Arguments are matched by name. The gradients' function may have as arguments those of the forward
pass, its results, and ``grad_x`` for the gradient of a result x; these are saved, and no others. A
result x without ``grad_x`` among them has no gradient.
"""

from collections.abc import Callable, Iterable
from inspect import signature
from types import NoneType
from typing import Any, get_args

import torch
from torch import Tensor
from torch.library import CustomOpDef
from torch.utils.flop_counter import register_flop_formula

from everyformer.engines.once import refuse
from everyformer.engines.ranges import fake

Formula = Callable[..., Any]
"""a function of some of an operator's arguments, by their names"""


def operator(
    name: str,
    forward: Callable[..., Any],
    gradients: Callable[..., tuple[Tensor, ...]],
    *,
    results: tuple[str, ...],
    inputs: tuple[str, ...],
    shapes: Formula,
    flops: tuple[Formula, Formula],
    gradient_shapes: Formula | None = None,
) -> tuple[CustomOpDef, CustomOpDef]:
    """The operators ``everyformer::name`` and, of its gradients, ``everyformer::name_backward``.

    Args:
        forward: gives the ``results``, contiguous; none is an argument or a view of one.
        gradients: gives those of the arguments ``inputs``, likewise; where one that is not the
            first is None, something of shape (0,). It is not derived again (`once`).
        shapes: the results without values.
        flops: operations of both, from arguments whose tensors are shapes.
        gradient_shapes: the gradients without values, where they are not like the ``inputs``.
    """
    parameters, read = (signature(f, eval_str=True).parameters for f in (forward, gradients))
    optional = {n for n, argument in read.items() if NoneType in get_args(argument.annotation)}
    used = [n for n in read if n in parameters or n in results]
    tensors = [n for n in used if Tensor in (read[n].annotation, *get_args(read[n].annotation))]
    numbers = [n for n in used if n not in tensors]
    arriving = [n for n in results if f"grad_{n}" in read]
    # indices are looked up once, since calls are short
    known = [*parameters, *results]
    restored = [*tensors, *numbers, *(f"grad_{n}" for n in results)]
    tensors_at, numbers_at = _indices(tensors, known), _indices(numbers, known)
    constant_at = _indices((n for n in results if n not in arriving), known)
    read_at, inputs_at = _indices(read, restored), _indices(inputs, list(parameters))
    absent_at = [(list(parameters).index(n), restored.index(n)) for n in inputs if n in optional]
    # a single result with a gradient always gets one
    zero = [n for n in arriving if f"grad_{n}" not in optional and len(arriving) > 1]
    zero_at = [_indices((f"grad_{n}", n), restored) for n in zero]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = (*inputs, *(output if isinstance(output, tuple) else (output,)))
        ctx.save_for_backward(*[values[n] for n in tensors_at])
        ctx.numbers = [values[n] for n in numbers_at]
        if constant_at:
            ctx.mark_non_differentiable(*[values[n] for n in constant_at])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, *above: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(g is None for g in above):
            return (None,) * len(parameters)
        # once: checkpoints unpack what was saved a single time
        values = [*ctx.saved_tensors, *ctx.numbers, *above]
        for gradient, result in zero_at:
            if values[gradient] is None:
                values[gradient] = torch.zeros_like(values[result])
        derivatives: list[Tensor | None] = [None] * len(parameters)
        for n, gradient in zip(inputs_at, backward(*[values[n] for n in read_at]), strict=True):
            derivatives[n] = gradient
        for n, argument in absent_at:
            if values[argument] is None:
                derivatives[n] = None
        return tuple(derivatives)

    def like_inputs(*values: Any) -> tuple[Tensor, ...]:
        known = dict(zip(read, values, strict=True))
        none = known[inputs[0]].new_empty(0)
        return tuple(none.clone() if known[n] is None else fake(known[n]) for n in inputs)

    operation = _registered(
        name, forward, _by_name(parameters, shapes), _by_name(parameters, flops[0])
    )
    fakes = like_inputs if gradient_shapes is None else _by_name(read, gradient_shapes)
    backward = _registered(f"{name}_backward", gradients, fakes, _by_name(read, flops[1]))
    operation.register_autograd(differentiate, setup_context=save)
    backward.register_autograd(refuse)
    return operation, backward


def _registered(
    name: str, function: Callable[..., Any], shapes: Formula, flops: Formula
) -> CustomOpDef:
    operation = torch.library.custom_op(f"everyformer::{name}", function, mutates_args=())
    operation.register_fake(shapes)
    register_flop_formula(getattr(torch.ops.everyformer, name))(flops)
    return operation


def _by_name(names: Iterable[str], formula: Formula) -> Formula:
    """``formula`` as a function of all arguments, whose ``names`` these are, in order."""
    indices = _indices(signature(formula).parameters, list(names))

    def chosen(*values: Any, **_: Any) -> Any:
        return formula(*(values[n] for n in indices))

    return chosen


def _indices(names: Iterable[str], among: list[str]) -> list[int]:
    return [among.index(n) for n in names]


FORMS: dict[CustomOpDef, Formula] = {}
"""Of operators in graphs that leave this library, filled by `everyformer.engines.exported`. Not in
torch's table of decompositions: with one there, torch's compiler refuses an operator wherever the
environment has a variable CI."""


def exported_as(operation: CustomOpDef) -> Callable[[Formula], Formula]:
    """Decorates the form that ``operation`` has in graphs which leave this library."""

    def keep(form: Formula) -> Formula:
        FORMS[operation] = form
        return form

    return keep


def applied(operation: CustomOpDef, *values: Any) -> Any:
    """What ``operation`` gives; in a module that torch writes as ONNX, by its form."""
    if FORMS and torch.onnx.is_in_onnx_export():
        return FORMS.get(operation, operation)(*values)
    return operation(*values)
