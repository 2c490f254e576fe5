"""Row of the family table about a member."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everyformer.core.config import Choice
from everyformer.core.errors import require_word
from everyformer.core.formula import letters_in, value_of
from everyformer.core.tasks import TASKS, Task


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
    """Claimed growth with length L, as an exponent: what the law of cost measures."""

    time: float | None
    """FLOPs of the mixing grow like L to this power; None: nobody claims it"""
    memory: float | None
    """the largest tensor grows like L to this power"""
    formula: str
    """in words of the paper; d width, s window, h heads"""
    state: str
    """numbers of a layer's streaming state after t tokens: a formula up to the first comma or
    semicolon, and what else there is to say; 'none' where there is no state"""
    letters: Mapping[str, float | str] = field(default_factory=dict)
    """what the letters of that formula are where no option is given, as numbers or formulas of
    those before; known are t, d and h, N layers and L, the tokens of the longest text"""
    table: str = "0"
    """numbers of a layer's weights that are there for each place of the longest text"""

    def held(self, *, t: float, d: float, h: float, layers: float) -> float | None:
        """Numbers held by all layers after a text of ``t`` tokens was streamed: the state, and
        weights by place; None where the row has no formula.

        Args:
            d: width. h: heads.
        """
        letters = {"t": t, "L": t, "d": d, "h": h, "N": layers}
        formula = self._state
        if formula is None:
            return None
        for letter, meaning in self.letters.items():
            letters[letter] = value_of(str(meaning), letters)
        return layers * (value_of(formula, letters) + value_of(self.table, letters))

    @property
    def growth(self) -> str:
        """Growth of the time with the length, as a power of L; of members that are read in
        segments, each at the same cost, inside one."""
        if self.time is None:
            return "not stated"
        power = "L" if self.time == 1 else f"L^{self.time:g}"
        return f"{power} a segment" if self.whole < self.time else power

    @property
    def whole(self) -> float:
        """Exponent of the time of a whole text, which grows like its segments where what is carried
        from one to the next stays as large; infinite where nobody claims it."""
        if self.time is None:
            return math.inf
        return min(self.time, 1.0) if self.grows is False else self.time

    @property
    def grows(self) -> bool | None:
        """True if the state grows with the text; None where the row has no formula of it."""
        if self._state is None:
            return None
        found = letters_in(self._state)
        used = found.union(*(letters_in(str(v)) for k, v in self.letters.items() if k in found))
        return not used.isdisjoint("tL")

    @property
    def _state(self) -> str | None:
        """The formula, if it is one, of letters that are known."""
        formula = re.split("[,;:]", self.state)[0]
        try:
            value_of(formula, dict.fromkeys([*"tdhLN", *self.letters], 1.0))
        except (KeyError, ValueError):
            return None
        return formula


ABILITIES = ("causal", "strictly_causal", "bidirectional", "cross", "streaming", "padding")


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
    def task(self) -> Task:
        """The first of its tasks."""
        return TASKS[self.tasks[0]]

    @property
    def is_mixer(self) -> bool:
        """True if `create_mixer` knows this name."""
        return self.genes["mixer"].name == self.name

    @property
    def state(self) -> str | None:
        """'constant' or 'grows', what the state of a streamed text does; None where it does not
        stream, or its row has no formula."""
        grows = self.cost.grows if self.can("streaming") else None
        return None if grows is None else "grows" if grows else "constant"

    @property
    def strictly_causal(self) -> bool | str:
        """True if nothing of a causal output depends on what comes later, else why not."""
        return self.exempt.get("causality", True) if self.causal is True else self.causal

    def can(self, ability: str) -> bool:
        """True if one of `ABILITIES` is supported."""
        require_word("abilities", ability, ABILITIES)
        return getattr(self, ability) is True
