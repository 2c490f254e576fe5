"""Letters of biological sequences, as IUPAC names them: bases of DNA and of RNA, amino acids.

plain       the four bases, or the twenty amino acids
others      what else is a letter: N is any base, R is A or G ...; X is any amino acid, B is D or
            N ..., and * ends a protein
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["byte", "base", "residue"]
"""what a loss is told by in bits"""


@dataclass(frozen=True)
class Alphabet:
    """Letters of one kind of sequence."""

    name: str
    plain: str
    others: str
    unit: Unit = "base"
    complements: str = ""
    """of plain and others in turn; empty where there is no second strand"""

    @property
    def letters(self) -> str:
        """All of them, the plain ones first."""
        return self.plain + self.others

    def reverse_complement(self, letters: bytes) -> bytes:
        """The other strand, read in its own direction."""
        table = bytes.maketrans(self.letters.encode(), self.complements.encode())
        return letters.translate(table)[::-1]


ALPHABETS = {
    "dna": Alphabet("DNA", "ACGT", "RYSWKMBDHVN", complements="TGCAYRSWMKVHDBN"),
    "rna": Alphabet("RNA", "ACGU", "RYSWKMBDHVN", complements="UGCAYRSWMKVHDBN"),
    "protein": Alphabet("protein", "ACDEFGHIKLMNPQRSTVWY", "BJOUXZ*", unit="residue"),
}


def alphabet_of(letters: Iterable[str]) -> Alphabet | None:
    """The first alphabet that has all ``letters``; None where none has."""
    known = set(letters)
    return next((one for one in ALPHABETS.values() if known <= set(one.letters)), None)
