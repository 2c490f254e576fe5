"""`everyformer info NAME ...`: one member, by its row and its options; several side by side."""

import dataclasses
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from everyformer.cli.parsing import verb
from everyformer.cli.verbs.list import ABILITIES, describe
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.core.member import Member
from everyformer.core.plugins import command
from everyformer.family import of_family
from everyformer.genes import GENES, named_genes
from everyformer.system.console import emit, table

ACROSS, NARROWEST, GAP = 100, 20, "  "
"""columns of a page of several members, and the least of one"""


@dataclass(frozen=True)
class InfoOptions(Options):
    """The words of `everyformer info`."""

    members: tyro.conf.Positional[tuple[str, ...]]
    """a member's name (`everyformer list`), or several, which stand side by side"""
    json: bool = False
    """machine output"""


@verb(
    InfoOptions,
    about="One member: paper, genes, abilities, cost, options, claim; several side by side.",
    examples=("everyformer info aft-local", "everyformer info attention linear gmlp"),
)
def run(chosen: InfoOptions) -> int:
    """Print everything the family table and the member's file say."""
    members = [of_family(name) for name in chosen.members]
    if not members:
        raise ConfigError("name a member, or several to see side by side: `everyformer list`")
    if chosen.json:
        options = [{gene: options_of(member, gene) for gene in GENES} for member in members]
        described = [
            describe(m) | {"options": own} for m, own in zip(members, options, strict=True)
        ]
        emit(described if len(described) > 1 else described[0])
    elif len(members) > 1:
        print(_beside(members))
    else:
        _print(members[0])
    return 0


def _facts(member: Member, genes: Sequence[str]) -> dict[str, str]:
    """The facts that members are compared by, in words."""
    abilities = {name: getattr(member, ability) for ability, name in ABILITIES.items()}
    return {
        "": member.name,
        "title": member.title,
        "paper": f"{member.authors} {member.year}",
        "claim": member.claim,
        "time like": member.cost.growth,
        "time": member.cost.formula,
        "state": _state(member),
        "tasks": ", ".join(member.tasks),
        **{gene: member.genes[gene].name or "none" for gene in genes},
        **{name: "yes" if able is True else f"no: {able}" for name, able in abilities.items()},
    }


def _state(member: Member) -> str:
    """The size of the state, with what its letters are where no option is given."""
    letters = ", ".join(f"{letter} = {value}" for letter, value in member.cost.letters.items())
    return member.cost.state + (f" ({letters})" if letters else "")


def _beside(members: Sequence[Member]) -> str:
    """One row a fact, a column a member."""
    genes = [gene for gene in GENES if any(gene in named_genes(member) for member in members)]
    every = [_facts(member, genes) for member in members]
    first = max(map(len, every[0]))
    width = max(NARROWEST, (ACROSS - first) // len(members) - len(GAP))
    lines = []
    for name in every[0]:
        cells = [textwrap.wrap(one[name], width, break_on_hyphens=False) for one in every]
        for row in itertools.zip_longest([name], *cells, fillvalue=""):
            widths = [first, *[width] * len(members)]
            lines.append(GAP.join(map(str.ljust, row, widths)).rstrip())
    return "\n".join(lines)


def _print(member: Member) -> None:
    print(f"{member.name}: {member.title}")
    print(f"{member.authors} {member.year}" + (f", arXiv {member.arxiv}" if member.arxiv else ""))
    print(f"\nclaim   {member.claim}")
    print(f"time    {member.cost.formula}\nstate   {_state(member)}")
    print(f"tasks   {', '.join(member.tasks)}")
    named = named_genes(member)
    genes = (f"{gene} {choice.name or 'none'}" for gene, choice in named.items())
    print(f"genes   {', '.join(genes)}\n")
    able = {ABILITIES[ability]: getattr(member, ability) for ability in ABILITIES}
    for name, value in ({"strictly causal": member.strictly_causal} | able).items():
        print(f"{name:<16}{'yes' if value is True else f'no: {value}'}")
    for gene in named:
        if listed := options_of(member, gene):
            rows = [(o["option"], o["default"], o["meaning"]) for o in listed]
            title = f"options of the {gene} (--{gene}.OPTION)"
            print(f"\n{title}\n{table(('option', 'default', 'meaning'), rows)}")
    words = f"train {member.name} {member.task.train} --steps 500"
    print(f"\ntry     {command(words)}")


def options_of(member: Member, gene: str) -> list[dict[str, Any]]:
    """Option, default and meaning of every option that a member's choice for a gene has."""
    from everyformer.core.explained import docs_of

    choice = GENES[gene].typed(member.genes[gene])
    docs = docs_of(choice.options)
    rows = []
    for f in dataclasses.fields(choice.options):
        value = choice.get(f.name)
        default = "see below" if dataclasses.is_dataclass(value) else str(value)
        rows.append({"option": f.name, "default": default, "meaning": docs.get(f.name, "")})
    return rows
