"""`everyformer info NAME`: one member, from its row and its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import tyro

from everyformer.cli.console import emit, table
from everyformer.cli.list import ABILITIES, describe
from everyformer.cli.parsing import parse
from everyformer.core.config import Options
from everyformer.core.member import Member
from everyformer.family import TRAIN, info


@dataclass(frozen=True)
class InfoOptions(Options):
    missing: ClassVar[Any] = tyro.MISSING

    member: tyro.conf.Positional[str]
    """a member's name (`everyformer list`)"""
    json: bool = False
    """machine output"""


def run(words: Sequence[str]) -> int:
    """Print everything the family table and the member's file say."""
    options = parse(
        InfoOptions,
        words,
        verb="info",
        about="One member: paper, genes, abilities, cost, options, claim.",
        examples=("everyformer info aft-local", "everyformer info gmlp --json"),
    )
    member = info(options.member)
    if options.json:
        own = {"options": mixer_options(member), "position_options": position_options(member)}
        emit({**describe(member), **own, "memory_options": memory_options(member)})
        return 0
    print(f"{member.name}: {member.title}")
    print(f"{member.authors} {member.year}" + (f", arXiv {member.arxiv}" if member.arxiv else ""))
    print(f"\nclaim   {member.claim}")
    print(f"time    {member.cost.formula}\nstate   {member.cost.state}")
    print(f"tasks   {', '.join(member.tasks)}")
    genes = member.genes
    carried = f", memory {genes.memory}" if genes.memory else ""
    print(f"genes   mixer {genes.mixer}, position {genes.position or 'none'}{carried}\n")
    for ability in (ABILITIES[0], "strictly causal", *ABILITIES[1:]):
        value = getattr(member, ability.replace(" ", "_"))
        print(f"{ability:<16}{'yes' if value is True else f'no: {value}'}")
    for title, found in (
        ("options of the mixer (--mixer.OPTION)", mixer_options(member)),
        ("options of the position (--place.OPTION)", position_options(member)),
        ("options of the memory (--memory.OPTION)", memory_options(member)),
    ):
        if found:
            rows = [(o["option"], o["default"], o["meaning"]) for o in found]
            print(f"\n{title}\n{table(('option', 'default', 'meaning'), rows)}")
    print(f"\ntry     everyformer train {member.name} {TRAIN[member.tasks[0]]} --steps 500")
    return 0


def mixer_options(member: Member) -> list[dict[str, Any]]:
    """Option, default and meaning of every field, from the options' own dataclass."""
    from everyformer.mixers import MIXERS

    return _fields(MIXERS.get(member.genes.mixer), member.genes.mixer_options)


def position_options(member: Member) -> list[dict[str, Any]]:
    """The same of the member's position; none where it has none."""
    from everyformer.positions import POSITIONS

    name = member.genes.position
    return [] if name is None else _fields(POSITIONS.get(name), member.genes.position_options)


def memory_options(member: Member) -> list[dict[str, Any]]:
    """The same of the member's memory; none where it has none."""
    from everyformer.memory import MEMORIES

    name = member.genes.memory
    return [] if name is None else _fields(MEMORIES.get(name), member.genes.memory_options)


def _fields(cls: Any, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    from everyformer.core.config import field_docs

    docs, default = field_docs(cls.Options), cls.Options()
    rows = []
    for f in dataclasses.fields(cls.Options):
        value = chosen.get(f.name, getattr(default, f.name))
        shown = "see below" if dataclasses.is_dataclass(value) else str(value)
        rows.append({"option": f.name, "default": shown, "meaning": docs.get(f.name, "")})
    return rows
