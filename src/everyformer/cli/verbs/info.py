"""`everyformer info NAME`: one member, from its row and its options."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import tyro

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import VerbOptions, verb
from everyformer.cli.verbs.list import ABILITIES, describe
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS
from everyformer.family import info
from everyformer.genes import GENES, named_genes


@dataclass(frozen=True)
class InfoOptions(VerbOptions):
    """The words of `everyformer info`."""

    member: tyro.conf.Positional[str]
    """a member's name (`everyformer list`)"""
    json: bool = False
    """machine output"""


@verb(
    InfoOptions,
    about="One member: paper, genes, abilities, cost, options, claim.",
    examples=("everyformer info aft-local", "everyformer info gmlp --json"),
)
def run(chosen: InfoOptions) -> int:
    """Print everything the family table and the member's file say."""
    member = info(chosen.member)
    if chosen.json:
        options = {gene: options_of(member, gene) for gene in GENES}
        emit({**describe(member), "options": options})
        return 0
    print(f"{member.name}: {member.title}")
    print(f"{member.authors} {member.year}" + (f", arXiv {member.arxiv}" if member.arxiv else ""))
    print(f"\nclaim   {member.claim}")
    print(f"time    {member.cost.formula}\nstate   {member.cost.state}")
    print(f"tasks   {', '.join(member.tasks)}")
    named = named_genes(member)
    genes = (f"{gene} {choice.name or 'none'}" for gene, choice in named.items())
    print(f"genes   {', '.join(genes)}\n")
    for ability in (ABILITIES[0], "strictly causal", *ABILITIES[1:]):
        value = getattr(member, ability.replace(" ", "_"))
        print(f"{ability:<16}{'yes' if value is True else f'no: {value}'}")
    for gene in named:
        if listed := options_of(member, gene):
            rows = [(o["option"], o["default"], o["meaning"]) for o in listed]
            title = f"options of the {gene} (--{gene}.OPTION)"
            print(f"\n{title}\n{table(('option', 'default', 'meaning'), rows)}")
    print(f"\ntry     everyformer train {member.name} {TASKS[member.tasks[0]].train} --steps 500")
    return 0


def options_of(member: Member, gene: str) -> list[dict[str, Any]]:
    """Option, default and meaning of every option that a member's choice for a gene has."""
    from everyformer.core.config import docs_of

    choice = GENES[gene].typed(member.genes[gene])
    docs = docs_of(choice.options)
    rows = []
    for f in dataclasses.fields(choice.options):
        value = choice.get(f.name)
        default = "see below" if dataclasses.is_dataclass(value) else str(value)
        rows.append({"option": f.name, "default": default, "meaning": docs.get(f.name, "")})
    return rows
