"""Typed configs: one dataclass is the source for Python, flags, help, files and documentation.

A class of options derives from `Options`, which holds every field to its type and to the bounds
in it (`everyformer.core.bounds`), wherever the value came from. `to_dict` and `from_dict` are exact
inverses over JSON and TOML; an unknown key is an error with a suggestion, and a wrong value one
that says what was expected.
"""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from everyformer.core.bounds import Affects, Bounds, Condition
from everyformer.core.errors import ConfigError, in_quotes, nearest
from everyformer.core.former import renamed

C = TypeVar("C")

Given = tuple[dict[str, Any], str]
"""options that were given in one place, as nested plain values by field, and the place: a config
file's path, -- of a command line, nothing of Python"""


class OutOfBoundsError(ConfigError):
    """A number of the right type that its option does not take."""


class NoneWord(str):
    """The word for None in a form that has no other, as TOML: what it means is for the option to
    say, of which it may be a name."""


MISSING: Any = dataclasses.MISSING
"""stands for a value that is still to be given"""


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of all options: frozen dataclasses whose types say which values they take.

    Raises:
        ConfigError: a value is of another type, or outside the bounds of its field.
    """

    one_of: ClassVar[tuple[str, ...]] = ()
    """fields of which one is set: it replaces any other of them"""
    choices_in: ClassVar[str | None] = None
    """a field, a table of `Choice`s, whose entries are next to the other fields as plain values"""
    gone: ClassVar[dict[str, Any]] = {}
    """options of earlier versions with their defaults, which files of those may hold"""

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Plain values of these options, with those that were not given."""
        return values

    def __post_init__(self) -> None:
        for name, kind in field_types(type(self)).items():  # type: ignore[arg-type]
            if (value := getattr(self, name)) is not MISSING:
                object.__setattr__(self, name, converted(kind, value, name))
        cls: Any = type(self)
        for name, whens in conditions(cls).items():
            value, usual = getattr(self, name), field_defaults(cls)[name]
            for when in whens if to_dict(value) != to_dict(usual) else ():
                if not when.reads(other := getattr(self, when.name)):
                    raise ConfigError(
                        f"`{name}={value!r}` is read with {when} alone, and {when.name} is "
                        f"{other!r}: leave `{name}` out"
                    )


@functools.cache
def conditions(cls: type) -> dict[str, list[Condition]]:
    """The conditions under which a field is read, by the field."""
    marks = {name: get_args(kind) for name, kind in field_types(cls).items()}
    whens = {n: [one for one in mark if isinstance(one, Condition)] for n, mark in marks.items()}
    return {name: found for name, found in whens.items() if found}


@dataclasses.dataclass(frozen=True)
class NoOptions(Options):
    """Options of an alternative that has none."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several alternatives, with its options.

    As plain values the options are next to the name: ``{"name": "rope", "base": 1e6}``, or the
    name alone.
    """

    name: str | None
    """None: none of them"""
    options: Any = dataclasses.field(default_factory=dict)
    """an instance of the alternative's `Options`, or those of them that were set, by name"""

    def plain(self) -> dict[str, Any]:
        """The options that are set, as plain values by name."""
        values: dict[str, Any] = to_dict(self.options)
        return values

    def get(self, option: str, default: Any = None) -> Any:
        """The value of an option; ``default`` where it was not set."""
        if isinstance(self.options, dict):
            return self.options.get(option, default)
        return getattr(self.options, option)


def part_marked(kind: Any) -> Any:
    """The class of which a field holds some of the options, those that were given: its type is a
    table that is annotated with the class."""
    marks = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((m for m in marks if isinstance(m, type) and issubclass(m, Options)), None)


def _laid_over(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    inner = {
        name: _laid_over(base[name], value)
        for name, value in values.items()
        if isinstance(value, dict) and isinstance(base.get(name), dict)
    }
    return base | values | inner


def affects(options: type, option: str) -> str:
    """Extent of what another value of an option would change, in the words of `Affects`."""
    todo = [field_types(options)[option]]
    while todo:
        if isinstance(kind := todo.pop(), Affects):
            return kind.what
        todo += get_args(kind)
    return "weights"


@functools.cache
def field_types(cls: Any) -> dict[str, Any]:
    """The type of each field of a dataclass that its constructor takes, bounds included."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


@functools.cache
def field_defaults(cls: Any) -> dict[str, Any]:
    """The default of each field of a dataclass."""
    missing = dataclasses.MISSING
    return {
        f.name: f.default if f.default_factory is missing else f.default_factory()
        for f in dataclasses.fields(cls)
    }


def to_dict(config: Any) -> Any:
    """Nested dataclasses and tuples as dictionaries and lists of plain values."""
    if isinstance(config, Choice):
        return {"name": config.name, **config.plain()}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        return values | values.pop(getattr(config, "choices_in", None) or "", {})
    if isinstance(config, dict):
        return {key: to_dict(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_dict(value) for value in config]
    return config


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """Differences of two nested tables, as ``name: before -> after``."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        return [
            line
            for name in names
            for line in differences(before.get(name), after.get(name), f"{where}.{name}")
        ]
    return [] if before == after else [f"{where[1:]}: {before!r} -> {after!r}"]


def from_dict(cls: type[C], values: dict[str, Any], where: str = "", base: C | None = None) -> C:
    """Build ``cls`` from nested plain values; missing keys keep ``base``'s value or the default.

    Raises:
        ConfigError: unknown key (nearest offered), wrong type, missing required field.
    """
    if not isinstance(values, dict):
        named = _named(where.rstrip(".")) if where else cls.__name__
        raise ConfigError(f"{named} must be a table of options, not {values!r}")
    kinds = field_types(cls)  # type: ignore[arg-type]
    home: str | None = getattr(cls, "choices_in", None)
    table: dict[str, Choice] = {}
    if home is not None:
        values = renamed(values, warn=False)
        table = dict(field_defaults(cls)[home] if base is None else getattr(base, home))  # type: ignore[arg-type]
    known = [*(name for name in kinds if name != home), *table]
    values_of: dict[str, Any] = {}
    gone: dict[str, Any] = getattr(cls, "gone", {})
    for key, value in values.items():
        if key in gone and value == gone[key]:
            continue
        if key in gone:
            raise ConfigError(
                f"the option {_named(f'{where}{key}')} left the library: {value!r} is for an "
                f"earlier version"
            )
        if key not in known:
            raise ConfigError(
                f"unknown option {_named(f'{where}{key}')}; {nearest(str(key), known)}"
            )
        if key in table:
            table[key] = _chosen(value, f"{where}{key}", table[key])
            continue
        inner = getattr(base, key, None) if base is not None else None
        values_of[key] = converted(kinds[key], value, f"{where}{key}", inner)
    if home is not None:
        values_of[home] = table
    alone: tuple[str, ...] = getattr(cls, "one_of", ())
    if any(values_of.get(name) is not None for name in alone):
        values_of = dict.fromkeys(alone) | values_of
    try:
        return cls(**values_of) if base is None else dataclasses.replace(base, **values_of)  # type: ignore[type-var]
    except TypeError as error:
        raise ConfigError(f"{where or cls.__name__}: {error}") from error


def over(base: C, given: Iterable[Given]) -> C:
    """``base`` with the options that were given in its place, later ones before earlier.

    Raises:
        ConfigError: see `from_dict`; that of a file names it.
    """
    for values, where in given:
        try:
            base = from_dict(type(base), values, where if where == "--" else "", base)
        except ConfigError as error:
            if where in ("", "--"):
                raise
            raise ConfigError(f"{where}: {in_quotes(error)}") from error
    return base


def part_of(kind: type[C], options: Any) -> C:
    """The options of ``kind`` among those of a class that has more."""
    return kind(**{f.name: getattr(options, f.name) for f in dataclasses.fields(kind)})  # type: ignore[arg-type]


def _chosen(value: Any, where: str, base: Choice) -> Choice:
    """A choice as plain values; options of the name in ``base`` stay, and say which there are."""
    if isinstance(value, Choice):
        return value
    if value is None or isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        raise ConfigError(f"{_named(where)} must be a name or a table with one, not {value!r}")
    options = dict(value)
    name = converted(str | None, options.pop("name", base.name), f"{where}.name")
    if name == base.name and dataclasses.is_dataclass(base.options):
        kind: Any = type(base.options)
        return Choice(name, from_dict(kind, options, f"{where}.", base.options))
    return Choice(name, (base.options if name == base.name else {}) | options)


def converted(kind: Any, value: Any, where: str, base: Any = None) -> Any:
    """``value`` as ``kind``, exactly; the only widening is int -> float and list -> tuple.

    Args:
        where: the option's name, for the refusal.
        base: what the value replaces.

    Raises:
        ConfigError: another type, an unknown word, a number out of its bounds.
    """
    if isinstance(value, NoneWord) and kind is not Any:
        value = None if type(None) in _alternatives(kind) else str(value)
    origin, arguments = get_origin(kind), get_args(kind)
    if (part := part_marked(kind)) is not None:
        table: dict[str, Any] = to_dict(value)
        from_dict(part, table, f"{where}.")
        return _laid_over(base or {}, table)
    if origin is Annotated:
        value = converted(arguments[0], value, where, base)
        for bounds in arguments[1:]:
            if isinstance(bounds, Bounds) and not bounds.admit(value):
                bits = " and of 64 bits" if isinstance(value, int) and abs(value) >= 2**63 else ""
                raise OutOfBoundsError(f"{_named(where)} must be {bounds}{bits}, not {value!r}")
        return value
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        refused: ConfigError | None = None
        for choice in arguments:
            try:
                return converted(choice, value, where, base)
            except OutOfBoundsError as error:
                refused = error
            except ConfigError:
                continue
        raise refused or _mismatch(where, kind, value)
    if origin is Literal:
        # compared with their types, since True == 1
        for argument in arguments:
            if type(argument) is type(value) and argument == value:
                return argument
        raise ConfigError(
            f"{_named(where)} must be one of {', '.join(map(repr, arguments))}, not {value!r}; "
            f"{nearest(str(value), map(str, arguments))}"
        )
    if kind is Choice:
        return _chosen(value, where, base or Choice(None))
    if dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        chosen = type(base) if base is not None else kind
        return from_dict(typing.cast(type, chosen), value, where + ".", base)
    if origin is tuple and isinstance(value, list | tuple):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(converted(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(arguments) == len(value):
            pairs = zip(arguments, value, strict=True)
            return tuple(converted(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(pairs))
    elif origin is dict and isinstance(value, dict):
        return {k: converted(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    elif kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    elif kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return _as_float(value, where)
    elif origin is Callable and callable(value):
        return value
    elif kind is type(None):
        if value is None:
            return None
    elif isinstance(kind, type) and type(value) is kind:
        return value
    raise _mismatch(where, kind, value)


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types of which a value may be one, without bounds."""
    if get_origin(kind) not in (Annotated, Union, types.UnionType):
        yield kind
        return
    arguments = get_args(kind)
    for one in arguments[:1] if get_origin(kind) is Annotated else arguments:
        yield from _alternatives(one)


def _as_float(value: numbers.Real, where: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise OutOfBoundsError(f"{_named(where)} must be a finite number, not {value!r}") from error


def _mismatch(where: str, kind: Any, value: Any) -> ConfigError:
    return ConfigError(
        f"{_named(where)} must be {_words(kind)}, not {value!r} ({type(value).__name__})"
    )


def _words(kind: Any) -> str:
    """A type as it is written, without the bounds in it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(_words, arguments))
    if origin is tuple:
        return f"tuple[{', '.join('...' if a is Ellipsis else _words(a) for a in arguments)}]"
    if kind is type(None):
        return "None"
    if origin is None and isinstance(kind, type):
        return kind.__name__
    return str(kind).replace("typing.", "")


def _named(where: str) -> str:
    """An option's name as errors have it."""
    return f"`{where}`"
