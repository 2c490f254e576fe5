"""All options that there are, and the numbers among them."""

import importlib
import pkgutil
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import everyformer
from everyformer.core.bounds import bounds_of
from everyformer.core.config import Options, field_types
from everyformer.data.config import DataConfig


def all_options() -> list[type]:
    """Every class of options of the library."""
    for found in pkgutil.walk_packages(everyformer.__path__, "everyformer."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    known: list[type] = []
    todo: list[type] = [Options]
    while todo:
        todo += (below := todo.pop().__subclasses__())
        known += [cls for cls in below if cls.__module__.startswith("everyformer.")]
    # data's are composed into one class, which has them all
    parts = set(DataConfig.__mro__[1:])
    return sorted(set(known) - parts, key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


def leaves(kind: Any) -> Iterator[Any]:
    """The types of the single values in a type: bounds stay with what they bound."""
    if get_origin(kind) in (Union, types.UnionType, tuple):
        for part in get_args(kind):
            yield from leaves(part)
    elif get_origin(kind) is Annotated and get_args(kind)[0] not in (int, float):
        yield from leaves(get_args(kind)[0])
    else:
        yield kind


def numbers(classes: list[type]) -> list[tuple[type, str, Any]]:
    """Class, name and type of each option that is a number, or several."""
    return [
        (cls, name, kind)
        for cls in classes
        for name, kind in field_types(cls).items()
        if any(leaf in (int, float) or bounds_of(leaf) for leaf in leaves(kind))
    ]


def shaped(kind: Any, value: Any) -> Any:
    """``value`` in as many tuples as ``kind`` puts around its numbers."""
    if get_origin(kind) in (Union, types.UnionType):
        able = [part for part in get_args(kind) if bounds_of(part) is not None]
        return shaped(able[0], value)
    if get_origin(kind) is Annotated and get_args(kind)[0] not in (int, float):
        return shaped(get_args(kind)[0], value)
    if get_origin(kind) is not tuple:
        return value
    parts = get_args(kind)
    if len(parts) == 2 and parts[1] is Ellipsis:
        return (shaped(parts[0], value),)
    return tuple(shaped(part, value) for part in parts)
