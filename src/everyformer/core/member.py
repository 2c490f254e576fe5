"""Row of the family table about a member."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everyformer.core.config import Choice


@dataclass(frozen=True)
class Genes:
    """Choices in which a member differs from plain pre-norm softmax attention."""

    choices: Mapping[str, Choice]
    """choice for every gene"""
    block: Mapping[str, Any] = field(default_factory=dict)
    """fields of `BlockOptions`"""
    model: Mapping[str, Any] = field(default_factory=dict)
    """fields of `ModelConfig`"""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """task -> what is another choice or field there"""
    data: Mapping[str, Any] = field(default_factory=dict)
    """fields of `DataConfig` that its trainings have"""

    def __getitem__(self, gene: str) -> Choice:
        return self.choices[gene]


@dataclass(frozen=True)
class Cost:
    """Claimed growth with length L, as an exponent: what law 7 measures."""

    time: float
    """FLOPs of the mixing grow like L to this power"""
    memory: float
    """the largest tensor grows like L to this power"""
    formula: str
    """in words of the paper; d width, s window, h heads"""
    state: str
    """size of the streaming state after t tokens"""


@dataclass(frozen=True)
class Member:
    """One row of the family table."""

    name: str
    title: str
    authors: str
    year: int
    arxiv: str | None
    """identifier, None where the paper is not on arXiv"""
    genes: Genes
    tasks: tuple[str, ...]
    cost: Cost
    claim: str
    """what its signature experiment shows"""
    causal: bool | str = True
    bidirectional: bool | str = True
    cross: bool | str = True
    streaming: bool | str = True
    padding: bool | str = True
    exempt: Mapping[str, str] = field(default_factory=dict)
    """laws that do not apply, with the reason"""
    gene: str = "mixer"
    """the gene by which it is what it is"""
    group: str = "others"
    """the members that it is listed with, where many are compared"""

    @property
    def is_mixer(self) -> bool:
        """True if `create_mixer` knows this name."""
        return self.genes["mixer"].name == self.name

    @property
    def strictly_causal(self) -> bool | str:
        """True if nothing of a causal output depends on what comes later, else why not."""
        return self.exempt.get("causality", True) if self.causal is True else self.causal

    def can(self, ability: str) -> bool:
        """True if 'causal', 'bidirectional', 'cross', 'streaming' or 'padding' is supported."""
        return getattr(self, ability) is True
