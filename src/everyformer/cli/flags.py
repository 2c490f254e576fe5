"""The flags that a dataclass of options becomes: their names, help and values.

tyro makes flags of typed fields. What is ours: explanations come from `field_docs`, names from
`names.py`, 'none' stands for no value, and names of members may stand anywhere among the flags.
"""

from __future__ import annotations

import dataclasses
import re
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
from everyformer.core.config import MISSING, Choice, field_types, from_dict, part_marked
from everyformer.core.explained import docs_of
from everyformer.core.seeds import twin
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.training.names import ALIASES, OTHER_NAMES
from everyformer.training.spec import RunSpec

C = TypeVar("C")

QUOTE = "'"
FLAG = re.compile(r"-h$|--.")
"""how a word begins that is a flag"""

_POSITIONAL = get_args(tyro.conf.Positional[int])[1]
_REPEATED = get_args(tyro.conf.UseAppendAction[int])[1]


@dataclasses.dataclass(frozen=True, eq=False)
class FlagGroup:
    """Options that stand together: those of a dataclass, or of a gene's choice.

    ``values`` is an instance, whose values are the defaults; ``prefix`` stands before their names;
    of a group that is for help alone, ``shown`` has the flags that there are (None: all).
    """

    values: Any
    prefix: str = ""
    shown: Collection[str] | None = None

    def options(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Every option: its field, its flag in full with underscores ('': words without one), the
        type of its value, its default; of a group inside this one that group as the default."""
        for name, flag, hint, value in self._every():
            if self.shown is None or not (flag or isinstance(value, FlagGroup)):
                yield name, flag, hint, value
            elif not isinstance(value, FlagGroup):
                if flag in self.shown:
                    yield name, flag, hint, value
            elif not value.flags().keys().isdisjoint(self.shown):
                yield name, flag, hint, dataclasses.replace(value, shown=self.shown)

    def _every(self) -> Iterator[tuple[str, str, Any, Any]]:
        values = self.values
        if isinstance(values, Choice):
            yield "name", f"--{self.prefix[:-1]}", str | None, values.name
            values = values.options
        kind: Any = type(values)
        for name, hint in field_types(kind).items():
            value, inside = getattr(values, name), f"{self.prefix}{name}."
            if name == getattr(kind, "choices_in", None):
                for gene, choice in value.items():
                    yield gene, "", hint, FlagGroup(choice, f"{self.prefix}{gene}.")
            elif (part := part_marked(hint)) is not None:
                yield name, "", hint, FlagGroup(from_dict(part, value), inside)
            elif dataclasses.is_dataclass(value):
                yield name, "", hint, FlagGroup(value, inside)
            elif kind is RunSpec and name == "member":
                yield name, "", Annotated[hint, _POSITIONAL], value
            elif _POSITIONAL in getattr(hint, "__metadata__", ()):
                yield name, "", hint, value
            else:
                called = name if self.prefix else OTHER_NAMES.get(name, name)
                yield name, f"--{self.prefix}{called}", hint, value

    def flags(self) -> dict[str, Any]:
        """The type of every flag's value, in groups inside this one too."""
        flags: dict[str, Any] = {}
        for _, flag, hint, value in self.options():
            flags |= value.flags() if isinstance(value, FlagGroup) else {flag: hint} if flag else {}
        return flags

    def given(self, values: Mapping[str, Any], flags: set[str]) -> dict[str, Any]:
        """Those of all ``values`` that belong to ``flags``, and to words without one."""
        given: dict[str, Any] = {}
        for name, flag, _, value in self.options():
            if isinstance(value, FlagGroup):
                if inner := value.given(values[name], flags):
                    given[name] = inner
            elif not flag or flag in flags:
                given[name] = values[name]
        return given


def unset(kind: type[C]) -> C:
    """An instance with all defaults, whose required fields are still to be given."""
    needed = [
        f.name
        for f in dataclasses.fields(kind)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return kind(**dict.fromkeys(needed, MISSING))


def named_flag(word: str, flags: Mapping[str, Any]) -> str:
    """The flag that a word is, in full; of ``--no-x`` the flag that it switches off.

    A verb's own ``--batch`` goes before the short name of ``--training.batch``.
    """
    plain = "--" + word.partition("=")[0][2:].replace("-", "_")
    full = full_name(plain)
    meant = (plain, full, plain.replace("no_", "", 1), full.replace("no_", "", 1))
    return next((flag for flag in meant if flag in flags), full)


def arrange(
    words: Sequence[str], flags: Mapping[str, Any], names: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Positional words, wherever they stood, and the flags with their values.

    A flag that takes several values ends at the next flag or at one of ``names``.
    """
    placed: list[str] = []
    rest: list[str] = []
    known, left = set(names), 0.0
    for word in words:
        if FLAG.match(word):
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
    for name, flag, hint, value in group.options():
        text = docs.get(name, "")
        if isinstance(value, FlagGroup):
            hint = FlagGroup
        else:
            alias = ALIASES.get((type(group.values), name))
            own = None if group.prefix else OTHER_NAMES.get(name)
            form = tyro.conf.arg(
                name="" if flag == f"--{group.prefix[:-1]}" else own,
                aliases=None if alias is None else (alias,),
                help_behavior_hint=_hint(text, hint),
            )
            hint = Annotated[hint, form]
        usual = tyro.MISSING if value is MISSING else value
        fields.append(StructFieldSpec(name=name, type=hint, default=usual, helptext=text))
    return StructConstructorSpec(instantiate=dict, fields=tuple(fields))


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


def without(words: Sequence[str], others: Iterable[str], flags: Mapping[str, Any]) -> list[str]:
    """``words`` less the flags that are among ``others`` too, and less their values."""
    given = {named_flag(word, flags) for word in others if FLAG.match(word)}
    kept: list[str] = []
    left = 0.0
    for word in words:
        if FLAG.match(word):
            gone = named_flag(word, flags) in given
            left = takes(word, flags) if gone and "=" not in word else 0
            kept += [] if gone else [word]
        elif left:
            left -= 1
        else:
            kept.append(word)
    return kept


def repeats(flag: str, flags: Mapping[str, Any]) -> bool:
    """True of a flag that may be given several times."""
    hint = flags[flag]
    return get_origin(hint) is Annotated and _REPEATED in get_args(hint)[1:]


def takes(word: str, flags: Mapping[str, Any]) -> float:
    """Number of words that follow a flag at most: one, where nothing is known of it."""
    hint = flags.get(named_flag(word, flags))
    if hint is None:
        return 0 if word in ("--help", "--print-config") else 1
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
