"""`GENES`: the places of the machine where members differ, in the order in which a person asks.

The one list that configs, flags, files, pages, laws, comparisons and warm starts walk. A new gene
is a record here, with a folder of its alternatives; a new alternative is one file there.
"""

from everyformer.core.config import Choice
from everyformer.core.member import Member
from everyformer.genes.depth import DEPTH
from everyformer.genes.feedforward import FEEDFORWARD
from everyformer.genes.gene import Gene
from everyformer.genes.memory import MEMORY
from everyformer.genes.mixers import CROSS, ENCODER, MIXER
from everyformer.genes.positions import POSITION
from everyformer.genes.residuals import RESIDUAL
from everyformer.genes.retrieval import RETRIEVAL

_ALL = (MIXER, ENCODER, CROSS, POSITION, MEMORY, RETRIEVAL, FEEDFORWARD, DEPTH, RESIDUAL)
GENES: dict[str, Gene] = {gene.name: gene for gene in _ALL}


def named_genes(member: Member) -> dict[str, Choice]:
    """Choices of a member to be named: those that differ from the usual, and two more."""
    return {
        name: member.genes[name]
        for name, gene in GENES.items()
        if gene.always_named or member.genes[name] != Choice(gene.default)
    }


def plain_genes() -> dict[str, Choice]:
    """Genes of a model by default."""
    return {name: Choice(gene.default) for name, gene in GENES.items()}
