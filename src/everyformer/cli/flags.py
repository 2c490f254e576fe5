"""The flags that a dataclass of options becomes: their names, help and values.

tyro makes flags of typed fields. What is ours: explanations come from `field_docs`, names from
`names.py`, 'none' stands for no value, and names of members may stand anywhere among the flags.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from everyformer.core.config import Choice, field_types, from_dict, part_marked
from everyformer.core.explained import docs_of
from everyformer.core.twins import twin
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.training.names import ALIASES, OTHER_NAMES
from everyformer.training.spec import RunSpec

C = TypeVar("C")

QUOTE = "'"

POSITIONAL = {(RunSpec, "member")}
"""(class, field): words without a flag"""

_POSITIONAL = get_args(tyro.conf.Positional[int])[1]
_REPEATED = get_args(tyro.conf.UseAppendAction[int])[1]


@dataclasses.dataclass(frozen=True)
class Option:
    """A flag with its value, or words without a flag."""

    name: str
    """of the field"""
    hint: Any
    """type of the value"""
    value: Any
    """default"""
    flag: str
    """in full, with underscores"""

    @property
    def placed(self) -> bool:
        """True where words without a flag are its value."""
        return _POSITIONAL in getattr(self.hint, "__metadata__", ())


@dataclasses.dataclass(frozen=True, eq=False)
class FlagGroup:
    """Options that stand together: those of a dataclass, or of a gene's choice.

    ``values`` is an instance, whose values are the defaults; ``prefix`` stands before their names;
    of a group that is for help alone, ``shown`` has the flags that there are (None: all).
    """

    values: Any
    prefix: str = ""
    shown: Collection[str] | None = None

    def options(self) -> Iterator[tuple[str, Option | FlagGroup]]:
        """Every option, or group inside this one, by the name of its field."""
        for name, part in self._every():
            if self.shown is None:
                yield name, part
            elif isinstance(part, FlagGroup):
                if not part.flags().keys().isdisjoint(self.shown):
                    yield name, dataclasses.replace(part, shown=self.shown)
            elif part.placed or part.flag in self.shown:
                yield name, part

    def _every(self) -> Iterator[tuple[str, Option | FlagGroup]]:
        values = self.values
        if isinstance(values, Choice):
            yield "name", Option("name", str | None, values.name, f"--{self.prefix[:-1]}")
            values = values.options
        kind: Any = type(values)
        for name, hint in field_types(kind).items():
            value = getattr(values, name)
            if name == getattr(kind, "choices_in", None):
                for gene, choice in value.items():
                    yield gene, FlagGroup(choice, f"{self.prefix}{gene}.")
            elif (part := part_marked(hint)) is not None:
                yield name, FlagGroup(from_dict(part.kind, value), f"{self.prefix}{name}.")
            elif dataclasses.is_dataclass(value):
                yield name, FlagGroup(value, f"{self.prefix}{name}.")
            else:
                if any(issubclass(kind, owner) and name == field for owner, field in POSITIONAL):
                    hint = Annotated[hint, _POSITIONAL]
                called = name if self.prefix else OTHER_NAMES.get(name, name)
                yield name, Option(name, hint, value, f"--{self.prefix}{called}")

    def flags(self) -> dict[str, Option]:
        """Every option with a flag, those of groups inside this one too, by the flag."""
        flags: dict[str, Option] = {}
        for _, part in self.options():
            if isinstance(part, FlagGroup):
                flags |= part.flags()
            elif not part.placed:
                flags[part.flag] = part
        return flags

    def said(self, values: Mapping[str, Any], flags: set[str]) -> dict[str, Any]:
        """Those of all ``values`` that belong to ``flags``, and to words without one."""
        said: dict[str, Any] = {}
        for name, part in self.options():
            if isinstance(part, FlagGroup):
                if inner := part.said(values[name], flags):
                    said[name] = inner
            elif part.placed or part.flag in flags:
                said[name] = values[name]
        return said


def unset(kind: type[C]) -> C:
    """An instance with all defaults, whose required fields are still to be given."""
    needed = [
        f.name
        for f in dataclasses.fields(kind)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return kind(**dict.fromkeys(needed, tyro.MISSING))


def named_flag(word: str, flags: Mapping[str, Any]) -> str:
    """The flag that a word is, in full; of ``--no-x`` the flag that it switches off.

    A verb's own ``--batch`` goes before the short name of ``--training.batch``.
    """
    plain = "--" + word.partition("=")[0][2:].replace("-", "_")
    full = full_name(plain)
    meant = (plain, full, plain.replace("no_", "", 1), full.replace("no_", "", 1))
    return next((flag for flag in meant if flag in flags), full)


def arrange(
    words: Sequence[str], flags: Mapping[str, Option], names: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Positional words, wherever they stood, and the flags with their values.

    A flag that takes several values ends at the next flag or at one of ``names``.
    """
    placed: list[str] = []
    rest: list[str] = []
    known, left = set(names), 0.0
    for word in words:
        if is_flag(word):
            rest.append(word)
            left = 0 if "=" in word or word == "-h" else takes(word, flags)
        elif left and not (left > 1 and twin(word)[0] in known):
            rest.append(word)
            left = 0 if word in NONE else left - 1
        else:
            placed.append(word)
            left = 0
    return placed, rest


def registry() -> ConstructorRegistry:
    """Rules by which tyro reads a `FlagGroup`: as nested plain values by field."""
    rules = ConstructorRegistry()
    rules.struct_rule(_group_rule)
    rules.primitive_rule(_none_rule)
    return rules


def _group_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    group = info.default
    if not isinstance(group, FlagGroup):
        return None
    docs = _docs(group)
    fields = []
    for name, part in group.options():
        text = docs.get(name, "")
        typed: Any = FlagGroup
        if isinstance(part, Option):
            typed = Annotated[part.hint, _form(part, text, group)]
        default = part.value if isinstance(part, Option) else part
        fields.append(StructFieldSpec(name=name, type=typed, default=default, helptext=text))
    return StructConstructorSpec(instantiate=dict, fields=tuple(fields))


def _form(option: Option, text: str, group: FlagGroup) -> Any:
    """Name, short name and hint of an option, for tyro."""
    own = None if group.prefix else OTHER_NAMES.get(option.name)
    alias = ALIASES.get((type(group.values), option.name))
    return tyro.conf.arg(
        name="" if option.flag == f"--{group.prefix[:-1]}" else own,
        aliases=None if alias is None else (alias,),
        help_behavior_hint=_hint(text, option.hint),
    )


def _docs(group: FlagGroup) -> dict[str, str]:
    """The explanation of every field; of a choice's name, the question that it answers."""
    if not isinstance(group.values, Choice):
        return docs_of(group.values)
    gene = group.prefix[:-1]
    return {"name": GENES[gene].question, **docs_of(group.values.options)}


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
    """End of an explanation: which numbers are taken, and a default that says much."""
    bounds = bounds_of(kind)
    taken = [] if bounds is None else [str(bounds)]

    def hint(label: str) -> str:
        silent = label in ("", "none", "None", "False") or "(default" in text
        usual = label if label.isprintable() else ascii(label.strip(QUOTE))
        notes = "; ".join([*taken, *([] if silent else [f"default: {usual}"])])
        return f"({notes})" if notes else ""

    return hint


def is_flag(word: str) -> bool:
    return word == "-h" or (word.startswith("--") and len(word) > 2)


def without(words: Sequence[str], others: Iterable[str], flags: Mapping[str, Option]) -> list[str]:
    """``words`` less the flags that are among ``others`` too, and less their values."""
    given = {named_flag(word, flags) for word in others if is_flag(word)}
    kept: list[str] = []
    left = 0.0
    for word in words:
        if is_flag(word):
            gone = named_flag(word, flags) in given
            left = takes(word, flags) if gone and "=" not in word else 0
            kept += [] if gone else [word]
        elif left:
            left -= 1
        else:
            kept.append(word)
    return kept


def repeats(flag: str, flags: Mapping[str, Option]) -> bool:
    """True of a flag that may be given several times."""
    hint = flags[flag].hint
    return get_origin(hint) is Annotated and _REPEATED in get_args(hint)[1:]


def takes(word: str, flags: Mapping[str, Option]) -> float:
    """Number of words that follow a flag at most: one, where nothing is known of it."""
    option = flags.get(named_flag(word, flags))
    if option is None:
        return 0 if word in ("--help", "--print-config") else 1
    hint = option.hint
    while get_origin(hint) is Annotated:
        if _REPEATED in get_args(hint)[1:]:
            return 1
        hint = get_args(hint)[0]
    return _words(hint)


def _words(hint: Any) -> float:
    """Number of words of a value of this type at most; where it may be none, of the rest."""
    if hint is bool:
        return 0
    if get_origin(hint) in (types.UnionType, typing.Union):
        return max(map(_words, get_args(hint)))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return float("inf") if Ellipsis in kinds else len(kinds)
    return 1
