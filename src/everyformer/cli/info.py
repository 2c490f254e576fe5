"""`everyformer info NAME`: one member, from its row and its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from everyformer.cli.console import emit, table
from everyformer.cli.list import ABILITIES, describe
from everyformer.cli.parsing import parse
from everyformer.family import Member, info


@dataclass(frozen=True)
class InfoOptions:
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
        emit({**describe(member), "options": [dict(o) for o in mixer_options(member)]})
        return 0
    print(f"{member.name}: {member.title}")
    print(f"{member.authors} {member.year}" + (f", arXiv {member.arxiv}" if member.arxiv else ""))
    print(f"\nclaim   {member.claim}")
    print(f"time    {member.cost.formula}\nstate   {member.cost.state}")
    print(f"tasks   {', '.join(member.tasks)}")
    genes = member.genes
    print(f"genes   mixer {genes.mixer}, position {genes.position or 'none'}\n")
    for ability in ABILITIES:
        value = getattr(member, ability)
        print(f"{ability:<14}{'yes' if value is True else f'no: {value}'}")
    rows = [(o["option"], o["default"], o["meaning"]) for o in mixer_options(member)]
    print("\noptions of the mixer (--mixer.OPTION)")
    print(table(("option", "default", "meaning"), rows))
    print(f"\ntry     everyformer train {member.name} --data mytext.txt --steps 500")
    return 0


def mixer_options(member: Member) -> list[dict[str, Any]]:
    """Option, default and meaning of every field, from the options' own dataclass."""
    from everyformer.core.config import field_docs
    from everyformer.mixers import MIXERS

    cls: Any = MIXERS.get(member.genes.mixer)
    docs, default = field_docs(cls.Options), cls.Options()
    chosen = member.genes.mixer_options
    rows = []
    for f in dataclasses.fields(cls.Options):
        value = chosen.get(f.name, getattr(default, f.name))
        shown = "see below" if dataclasses.is_dataclass(value) else str(value)
        rows.append({"option": f.name, "default": shown, "meaning": docs.get(f.name, "")})
    return rows
