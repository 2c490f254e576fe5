"""Which global tokens a text is given, and what they are taught (plain data, no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Amount, Count, Part, Positive, Unless, When, Whole
from everyformer.core.config import Options


@dataclass(frozen=True)
class SummaryOptions(Options):
    per: Literal["tokens", "sentence"] | None = None
    """a global token for every so many tokens of a text, or for every sentence; none: no such"""
    every: Annotated[Count, When("per", "tokens")] = 16
    """how many tokens each stands for (per tokens)"""
    ends: tuple[Whole, ...] = ()
    """tokens that end a sentence, of which several may follow each other (per sentence; default: in
    a run those of the data whose text ends with a full stop, ! or ?, or a line, and what separates
    documents; of bytes 0 10 33 46 63)"""
    cpc: Amount = 0.0
    """in training, weight of the loss by which the global tokens of hidden sentences foretell those
    of the same sentences in full, beside 1 of the hidden tokens (mlm; as far as is recalled, 0.25
    is the paper's 0.8 to 0.2)"""
    cpc_share: Annotated[Part, Unless("cpc", 0)] = 0.15
    """probability that a sentence is hidden for it"""
    cpc_temperature: Annotated[Positive, Unless("cpc", 0)] = 1.0
    """what its inner products are divided by"""
    cpc_stop: Annotated[bool, Unless("cpc", 0)] = False
    """whether no gradient goes through the sentences in full"""
    mask_token: Whole | None = None
    """the token that stands for hidden ones (default: in a run the data's, else the last)"""

    def most(self, length: int) -> int:
        """Global tokens that a text of ``length`` tokens has at most."""
        if self.per is None:
            return 0
        return -(-length // self.every) if self.per == "tokens" else length
