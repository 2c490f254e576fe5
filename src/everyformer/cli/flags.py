"""The flags that a dataclass of options becomes: their names, help and values.

tyro makes flags of typed fields. What is ours: explanations come from `field_docs`, names from
`names.py`, 'none' stands for no value, and names of members may stand anywhere among the flags.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from everyformer.cli.names import full_name
from everyformer.core.bounds import bounds_of
from everyformer.core.config import Choice, docs_of, field_docs, field_types, field_value, from_dict
from everyformer.core.errors import ConfigError
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.training.names import ALIASES, OTHER_NAMES
from everyformer.training.spec import RunSpec

QUOTE = "'"

POSITIONAL = {(RunSpec, "member")}
"""(class, field): words without a flag"""

_POSITIONAL = get_args(tyro.conf.Positional[int])[1]
_REPEATED = get_args(tyro.conf.UseAppendAction[int])[1]


class Refused(Exception):
    """Carries a dataclass's own refusal past tyro, which would put a box around it."""

    def __init__(self, reason: ConfigError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def flags_of(kind: type, default: Any = None, prefix: str = "") -> dict[str, Any]:
    """Every flag in full (with underscores) and the type of its value; positionals left out."""
    found: dict[str, Any] = {}
    for name, hint, value in _fields(kind, default):
        inner = _inner(hint, value)
        if inner is not None:
            found |= flags_of(inner, value, f"{prefix}{name}.")
        elif _POSITIONAL not in getattr(hint, "__metadata__", ()):
            found[f"--{_path(kind, prefix, name)}"] = hint
    return found


def _path(kind: type, prefix: str, name: str) -> str:
    """What a field is called on the command line; a choice's name as the choice itself."""
    if kind is Choice and name == "name":
        return prefix[:-1]
    return prefix + name if prefix else OTHER_NAMES.get(name, name).replace("-", "_")


def arrange(
    words: Sequence[str], flags: dict[str, Any], names: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Positional words, wherever they stood, and the flags with their values.

    A flag that takes several values ends at the next flag or at one of ``names``.
    """
    placed: list[str] = []
    rest: list[str] = []
    known, left = set(names), 0.0
    for word in words:
        if _is_flag(word):
            rest.append(word)
            left = 0 if "=" in word or word == "-h" else _takes(full_name(word), flags)
        elif left and not (left > 1 and word in known):
            rest.append(word)
            left = 0 if word in NONE else left - 1
        else:
            placed.append(word)
            left = 0
    return placed, rest


def registry(kind: type, default: Any = None) -> ConstructorRegistry:
    """How tyro reads the options ``kind``, and those inside them."""
    homes = _homes(kind, default)
    rules = ConstructorRegistry()
    rules.struct_rule(lambda info: _dataclass_rule(info, homes))
    rules.primitive_rule(_none_rule)
    return rules


def _homes(kind: type, default: Any, prefix: str = "--") -> dict[int, str]:
    """What stands before the flags of ``kind`` and of each dataclass inside it, by its default."""
    found = {id(default): prefix}
    for name, hint, value in _fields(kind, default):
        inner = _inner(hint, value)
        if inner is not None:
            found = _homes(inner, value, f"{prefix}{name}.") | found
    return found


def _dataclass_rule(info: StructTypeInfo, homes: dict[int, str]) -> StructConstructorSpec | None:
    kind = info.type
    if not dataclasses.is_dataclass(kind):
        return None
    given = info.default if isinstance(info.default, kind) else None
    home = homes.get(id(info.default), "--")
    docs = _docs(kind, given, home)
    fields = []
    for name, hint, value in _fields(kind, given):
        text = docs.get(name, "")
        alias = ALIASES.get((kind, name))
        form = tyro.conf.arg(
            name="" if kind is Choice and name == "name" else _own_name(name, home),
            aliases=None if alias is None else (alias,),
            help_behavior_hint=_hint(text, hint),
        )
        inner = _inner(hint, value)
        typed = inner if inner is not None else Annotated[hint, form]
        fields.append(StructFieldSpec(name=name, type=typed, default=value, helptext=text))  # type: ignore[arg-type]

    def make(**values: Any) -> Any:
        try:
            if given is None:
                return from_dict(kind, values, home)
            if not isinstance(given, Choice):
                known = vars(given) | vars(given).get(getattr(kind, "choices_in", None) or "", {})
                said = {name: value for name, value in values.items() if value != known[name]}
                return from_dict(kind, said, home, given)
            chosen = values.pop("name")
            return Choice(chosen, from_dict(type(given.options), values, home))
        except ConfigError as error:
            raise Refused(error) from error

    return StructConstructorSpec(instantiate=make, fields=tuple(fields))


def _own_name(name: str, home: str) -> str | None:
    """What a verb's own option is called, where it is not called like its field."""
    return OTHER_NAMES.get(name) if home == "--" else None


def _docs(kind: type, given: Any, home: str) -> dict[str, str]:
    """The explanation of every field; of a choice's name, the question that it answers."""
    if not isinstance(given, Choice):
        return field_docs(kind)
    gene = home.strip("-.")
    return {"name": GENES[gene].question, **docs_of(given.options)}


def _none_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
    if info.type is not types.NoneType:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="none",
        choices=NONE,
        instance_from_str=lambda words: None,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: ["none"],
    )


def _hint(text: str, kind: Any) -> typing.Callable[[str], str]:
    """What stands behind an explanation: which numbers are taken, and a default that says much."""
    bounds = bounds_of(kind)
    taken = [] if bounds is None else [str(bounds)]

    def hint(label: str) -> str:
        silent = label in ("", "none", "None", "False") or "(default" in text
        usual = label if label.isprintable() else ascii(label.strip(QUOTE))
        notes = "; ".join([*taken, *([] if silent else [f"default: {usual}"])])
        return f"({notes})" if notes else ""

    return hint


def _fields(kind: type, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each field's name with its annotation and the default that holds; choices one by one."""
    if isinstance(default, Choice):
        yield "name", str | None, default.name
        kind, default = type(default.options), default.options
    chosen = getattr(kind, "choices_in", None)
    for f in dataclasses.fields(kind):
        if not f.init:
            continue
        hint = field_types(kind)[f.name]
        if any(issubclass(kind, owner) and f.name == name for owner, name in POSITIONAL):
            hint = Annotated[hint, _POSITIONAL]
        if default is not None:
            value = getattr(default, f.name)
        elif f.default is f.default_factory is dataclasses.MISSING:
            value = tyro.MISSING
        else:
            value = _unsaid(kind, f.name)
        if f.name == chosen:
            yield from ((name, Choice, choice) for name, choice in value.items())
        else:
            yield f.name, hint, value


@functools.cache
def _unsaid(kind: type, name: str) -> Any:
    """`field_value`, the same object each time: by it `_homes` knows what stands before flags."""
    return field_value(kind, name)


def _inner(hint: Any, value: Any) -> type | None:
    """The dataclass that a field holds, if it holds one; of an open annotation, the value's."""
    open_ended = hint is Any or isinstance(hint, TypeVar)
    kind = type(value) if open_ended or dataclasses.is_dataclass(hint) else hint
    if value is tyro.MISSING:
        kind = hint
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def _is_flag(word: str) -> bool:
    return word == "-h" or (word.startswith("--") and len(word) > 2)


def _takes(flag: str, flags: dict[str, Any]) -> float:
    """How many words follow a flag at most: one, where nothing is known of it."""
    hint = flags.get(flag, flags.get(flag.replace("no_", "", 1)))
    if hint is None:
        return 0 if flag in ("--help", "--print_config") else 1
    while get_origin(hint) is Annotated:
        if _REPEATED in get_args(hint)[1:]:
            return 1
        hint = get_args(hint)[0]
    return _words(hint)


def _words(hint: Any) -> float:
    """How many words a value of this type has at most; where it may be none, those of the rest."""
    if hint is bool:
        return 0
    if get_origin(hint) in (types.UnionType, typing.Union):
        return max(map(_words, get_args(hint)))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return float("inf") if Ellipsis in kinds else len(kinds)
    return 1
