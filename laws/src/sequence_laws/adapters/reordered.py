"""Rows of caches in another order: tensors, in containers and dataclasses, with rows in some
dimension."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from sequence_laws.inputs import seed
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable


def row_dims(subject: Subject) -> list[int | None]:
    """The dimension of each part of its cache that is rows, which caches of two and of three tell;
    [] where that cannot be said."""
    length = next((n for n in subject.lengths() if n >= 5), subject.usual())
    parts = []
    for count in (2, 3):
        with torch.no_grad(), subject.exactly():
            seed(0)
            x = subject.widened(subject.inputs.draw(count, length // 2))
            leaves = _leaves(subject.feed(subject.copy(), x, None)[1])
        parts.append([leaf.shape if isinstance(leaf, Tensor) else () for leaf in leaves])
    found: list[int | None] = []
    for two, three in zip(*parts, strict=False):
        moved = [n for n, sizes in enumerate(zip(two, three, strict=False)) if sizes == (2, 3)]
        expected = torch.Size(3 if n in moved[:1] else size for n, size in enumerate(two))
        if expected != three:
            return []
        found.append(moved[0] if moved else None)
    return found


def reordered(cache: Any, dims: Sequence[int | None], rows: Tensor) -> Any:
    """A cache with its rows as ``rows`` has them.

    Raises:
        Inapplicable: something else than tensors is in it, or ``dims`` are not those of its parts.
    """
    leaves = _leaves(cache)
    if not all(isinstance(leaf, Tensor | int | None) for leaf in leaves):
        raise Inapplicable("its cache cannot be reordered")
    pairs = [*zip(leaves, dims, strict=False)]
    known = len(leaves) == len(pairs) and any(n is not None for _, n in pairs)
    if not known or any(
        n is not None and getattr(leaf, "shape", ())[n : n + 1] != rows.shape for leaf, n in pairs
    ):
        raise Inapplicable("which dimension of its cache is rows is not known: none moved")
    every = iter(dims)
    return mapped(lambda t: t if (n := next(every)) is None else t.index_select(n, rows), cache)


def reordered_code(cache: Any, dims: Sequence[int | None]) -> list[str]:
    """The Python of it."""
    data = any(map(_is_data, tree_leaves(cache)))
    name, where = ("mapped", __name__) if data else ("tree_map", "torch.utils._pytree")
    return [
        f"from {where} import {name}",
        f"dims = iter({dims})  # of rows",
        "moved = lambda t: t if (n := next(dims)) is None else t.index_select(n, rows)",
        f"cache = {name}(moved, cache)",
    ]


def mapped(change: Callable[[Any], Any], cache: Any) -> Any:
    """A cache of containers and dataclasses with all in it changed."""

    def part(one: Any) -> Any:
        if not _is_data(one):
            return change(one)
        made = copy.copy(one)
        for field in dataclasses.fields(one):
            value = mapped(change, getattr(one, field.name))
            object.__setattr__(made, field.name, value)  # also of one that is frozen
        return made

    return tree_map(part, cache)


def _leaves(cache: Any) -> list[Any]:
    leaves: list[Any] = []
    mapped(leaves.append, cache)
    return leaves


def _is_data(part: Any) -> bool:
    return dataclasses.is_dataclass(part) and not isinstance(part, type)
