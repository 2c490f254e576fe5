"""`State`: everything that is carried from one call to the next.

A key-value cache, a segment memory, a compressed memory, the running sums of AFT or of linear
attention, a datastore's write buffer: each is a frozen dataclass of tensors whose first dimension
is the batch. It enters ``forward`` and a new one comes out; nothing is changed in place, so an old
state stays valid (two continuations may start from it) and the whole is a pytree that compiles.

Prefill, segment recurrence in training and one-token decoding are the same call with different
lengths. What an empty row holds is written with the field: ``field(metadata={"empty": -inf})``.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import torch
from torch import Tensor

from everyformer.core.errors import ShapeError

S = TypeVar("S", bound="State")


@dataclass_transform(frozen_default=True)
def state(cls: type[S]) -> type[S]:
    """Class decorator: makes ``cls`` a frozen dataclass that torch treats as a pytree."""
    made = dataclass(frozen=True)(cls)
    torch.export.register_dataclass(made, serialized_type_name=f"{cls.__module__}.{cls.__name__}")
    return made


class State:
    """Base of all states. Fields are tensors (batch, ...), other states, or tuples of them.

    ``num_tokens`` is the one field that all have: (batch,) int64, how many real tokens each row has
    read. It is what positions are counted from, so left-padded rows agree with unpadded ones.
    """

    num_tokens: Tensor
    cut: ClassVar[bool] = False
    """whether what it holds never was part of a graph, so that no gradient passes through it"""
    of_context: ClassVar[bool] = False
    """whether it holds a context that is read, and not the past of the tokens"""

    @property
    def position(self) -> Tensor:
        """Tokens that each batch row has seen: (batch,) int64."""
        return self.num_tokens

    @property
    def nbytes(self) -> int:
        """Bytes held by all tensors of this state."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor in this state, in field order."""
        yield from named_tensors(self).values()

    def map(self, change: Callable[[Tensor, Any], Tensor]) -> Self:
        """A state with ``change(tensor, empty_value)`` applied to every tensor."""
        return self.rebuilt(change, lambda inner: inner.map(change))

    def detach(self) -> Self:
        """The same values, cut from the graph (between training segments)."""
        return self.map(lambda t, _: t.detach() if t.requires_grad else t)

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Self:
        """Moved to ``device``; floating tensors cast to ``dtype``, indices and flags unchanged."""
        return self.map(
            lambda t, _: t.to(device=device, dtype=dtype if t.is_floating_point() else None)
        )

    def reset(self, where: Tensor) -> Self:
        """A new document or episode starts in the batch rows where ``where`` (batch,) is True."""
        check_rows(where, self.num_tokens)

        def cleared(t: Tensor, empty: Any) -> Tensor:
            rows = where.to(t.device).view(-1, *[1] * (t.dim() - 1))
            return torch.where(rows, torch.full((), empty, dtype=t.dtype, device=t.device), t)

        return self.rebuilt(cleared, lambda inner: inner.reset(where))

    def reserve(self, tokens: int) -> Self:
        """The same state; ones that grow make room for ``tokens`` more, to be read without grad."""
        return self.rebuilt(lambda t, _: t, lambda inner: inner.reserve(tokens))

    def reorder(self, index: Tensor) -> Self:
        """Batch rows picked by ``index`` (new_batch,): beam search, repeats, compaction."""
        if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
            raise ShapeError(
                f"rows are picked by their numbers, (new_batch,) int64, not by "
                f"{tuple(index.shape)} {str(index.dtype).removeprefix('torch.')}"
            )
        return self.map(lambda t, _: t.index_select(0, index.to(t.device)))

    def rebuilt(self, tensor: Callable[[Tensor, Any], Tensor], inner: Callable[[Any], Any]) -> Self:
        """A state with ``tensor(tensor, empty_value)`` for every tensor, ``inner(state)`` for every
        state in it."""

        def changed(value: Any, empty: Any) -> Any:
            if isinstance(value, Tensor):
                return tensor(value, empty)
            if isinstance(value, State):
                return inner(value)
            if isinstance(value, tuple | list):
                return type(value)(changed(part, empty) for part in value)
            return value

        parts = {
            f.name: changed(getattr(self, f.name), f.metadata.get("empty", 0))
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
        }
        return type(self)(**parts)


def named_tensors(carried: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor in a state by its path of field names and places, to be saved."""
    if isinstance(carried, Tensor):
        return {path[1:]: carried}
    if isinstance(carried, State):
        parts = [(f.name, getattr(carried, f.name)) for f in dataclasses.fields(carried)]  # type: ignore[arg-type]
    elif isinstance(carried, tuple | list):
        parts = [(str(n), part) for n, part in enumerate(carried)]
    else:
        return {}
    return {k: v for name, part in parts for k, v in named_tensors(part, f"{path}.{name}").items()}


def filled(like: Any, tensors: dict[str, Tensor]) -> Any:
    """A state of the kind of ``like``, which `init_state` gave, that holds what `named_tensors`
    gave of a later one.

    Raises:
        ShapeError: the tensors are of another mixer, model, number of rows or dtype.
    """
    for name, began in named_tensors(like).items():
        value = tensors.get(name)
        if value is None or not _grown(value, began):
            given = "nothing" if value is None else f"{tuple(value.shape)} {value.dtype}"
            raise ShapeError(
                f"these tensors are of another state: '{name}' is {given}, where this one starts "
                f"as {tuple(began.shape)} {began.dtype}"
            )
    result = refilled(like, tensors)
    if unread := sorted(set(tensors) - set(named_tensors(result))):
        raise ShapeError(
            f"these tensors are of another state: they hold '{unread[0]}', which is not in this one"
        )
    return result


FORMER_NAMES = {"keep": "padding_mask", "seen": "num_tokens"}


def present_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a state under the names of this version, which an earlier one may have written."""
    parted = ((name.rpartition("."), value) for name, value in tensors.items())
    return {a + dot + FORMER_NAMES.get(b, b): value for (a, dot, b), value in parted}


def _grown(value: Tensor, like: Tensor) -> bool:
    """True if a state that began as ``like`` may be ``value`` by now: what grows began with 0."""
    sizes = value.dim() == like.dim() and all(
        began in (0, now) for began, now in zip(like.shape, value.shape, strict=True)
    )
    return sizes and value.dtype == like.dtype


def refilled(like: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """``like`` with these tensors in place of its own, by the names of `named_tensors`."""
    if isinstance(like, State):
        parts = {
            f.name: refilled(getattr(like, f.name), tensors, f"{path}.{f.name}")
            for f in dataclasses.fields(like)  # type: ignore[arg-type]
        }
        return type(like)(**parts)
    if isinstance(like, tuple | list):
        return type(like)(refilled(part, tensors, f"{path}.{n}") for n, part in enumerate(like))
    return tensors.get(path[1:])


def innermost(carried: Any) -> Iterator[State]:
    """The states that hold something themselves, in field order."""
    if isinstance(carried, tuple | list):
        for part in carried:
            yield from innermost(part)
    elif isinstance(carried, State):
        names = [f.name for f in dataclasses.fields(carried) if f.name != "num_tokens"]  # type: ignore[arg-type]
        parts = [getattr(carried, name) for name in names]
        if any(isinstance(part, Tensor) for part in parts):
            yield carried
        else:
            yield from innermost(parts)


def check_batch(carried: State, batch: int) -> None:
    """Refuse the state of another number of rows."""
    if carried.num_tokens.shape[0] != batch:
        raise ShapeError(
            f"the state has {carried.num_tokens.shape[0]} rows and x has {batch}: make one of as "
            "many, or pick its rows with reorder()"
        )


def check_rows(where: Tensor, num_tokens: Tensor) -> None:
    """Refuse anything but one flag for each batch row of a state."""
    if isinstance(where, Tensor):
        if where.dtype == torch.bool and where.shape == num_tokens.shape:
            return
        given = f"{tuple(where.shape)} {str(where.dtype).removeprefix('torch.')}"
    else:
        given = repr(where)
    raise ShapeError(
        f"a reset takes a tensor with one bool for each of the state's {len(num_tokens)} rows, not "
        f"{given}"
    )


@state
class LayerState(State):
    """The state of a layer whose feed-forward carries something too; that of others is their
    mixer's."""

    num_tokens: Tensor
    mixer: State
    feedforward: State


@state
class StackState(State):
    """The states of the layers of a stack, first layer first."""

    num_tokens: Tensor
    layers: tuple[State, ...]
    pending: State | None = None
    """tokens that some layers have not taken in yet, where a depth fills those in when they run"""

    def rebuilt(self, tensor: Callable[[Tensor, Any], Tensor], inner: Callable[[Any], Any]) -> Self:
        new = super().rebuilt(tensor, inner)
        together = new.num_tokens is not self.num_tokens and all(
            s.num_tokens is self.num_tokens for s in self.layers
        )
        return in_step(new) if together else new


Stacked = TypeVar("Stacked", bound=StackState)


def in_step(stack: Stacked) -> Stacked:
    """The state of a stack all of whose layers have seen the same: they share what they make of it
    (`everyformer.core.shared`)."""

    def counting(part: Any) -> Any:
        if isinstance(part, tuple | list):
            return type(part)(map(counting, part))
        if not isinstance(part, State):
            return part
        same = copy.copy(part)  # and all that goes with it
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            object.__setattr__(same, field.name, counting(getattr(part, field.name)))
        object.__setattr__(same, "num_tokens", stack.num_tokens)
        return same

    layers = tuple(counting(layer) for layer in stack.layers)
    return dataclasses.replace(stack, layers=layers)
