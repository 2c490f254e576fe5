"""Typed configs: one dataclass is the source for Python, flags, help, files and documentation.

`to_dict` and `from_dict` are exact inverses over JSON and TOML; an unknown key is an error with a
suggestion and a wrong type says what was expected. `field_docs` reads the string literal under
each field, so that a field's meaning is written once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from everyformer.core.errors import ConfigError, nearest

C = TypeVar("C")


def to_dict(config: Any) -> Any:
    """Nested dataclasses and tuples as dictionaries and lists of plain values."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, dict):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_dict(value) for value in config]
    return config


def from_dict(cls: type[C], values: dict[str, Any], where: str = "", base: C | None = None) -> C:
    """Build ``cls`` from nested plain values; missing keys keep ``base``'s value or the default.

    Raises:
        ConfigError: unknown key (nearest offered), wrong type, missing required field.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where or cls.__name__} must be a table of options, not {values!r}")
    hints = get_type_hints(cls)
    names = {f.name for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            raise ConfigError(f"unknown option '{where}{key}'; {nearest(key, names)}")
    given = {}
    for key, value in values.items():
        inner = getattr(base, key, None) if base is not None else None
        given[key] = _convert(hints[key], value, f"{where}{key}", inner)
    try:
        return cls(**given) if base is None else dataclasses.replace(base, **given)  # type: ignore[type-var]
    except TypeError as error:
        raise ConfigError(f"{where or cls.__name__}: {error}") from error


def _convert(kind: Any, value: Any, where: str, base: Any = None) -> Any:
    """``value`` as ``kind``, exactly; the only widening is int -> float and list -> tuple."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        if base is not None and dataclasses.is_dataclass(base):
            return from_dict(type(base), value, where + ".", base)
        return value
    if origin in (Union, types.UnionType):
        for choice in arguments:
            try:
                return _convert(choice, value, where, base)
            except ConfigError:
                continue
        raise _mismatch(where, kind, value)
    if origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(
            f"'{where}' must be one of {', '.join(map(repr, arguments))}, not {value!r}; "
            f"{nearest(str(value), map(str, arguments))}"
        )
    if dataclasses.is_dataclass(kind):
        chosen = type(base) if base is not None else kind
        return from_dict(typing.cast(type, chosen), value, where + ".", base)
    if origin is tuple and isinstance(value, list | tuple):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_convert(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(arguments) == len(value):
            pairs = zip(arguments, value, strict=True)
            return tuple(_convert(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(pairs))
    elif origin is dict and isinstance(value, dict):
        return {k: _convert(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif kind is type(None):
        if value is None:
            return None
    elif isinstance(kind, type) and type(value) is kind:
        return value
    raise _mismatch(where, kind, value)


def _mismatch(where: str, kind: Any, value: Any) -> ConfigError:
    name = getattr(kind, "__name__", None) if get_origin(kind) is None else None
    expected = name or str(kind).replace("typing.", "")
    return ConfigError(f"'{where}' must be {expected}, not {value!r} ({type(value).__name__})")


def field_docs(cls: type) -> dict[str, str]:
    """The explaining string under each field of a dataclass, base classes included."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner is object or not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs
