"""Options of BigBird, and which of them go together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Bounds, Count, Index, Odd, When, Whole
from everyformer.core.errors import GeneError
from everyformer.core.position import Position
from everyformer.engines.sparse.random_blocks import Rules
from everyformer.genes.mixers.patterned import PatternOptions

MOST_GLOBAL = 1 << 20
"""global tokens, which plans list one by one"""
SEEDS = 2**31
"""how many there are: a layer's number is added, and NumPy takes 32 bits"""


@dataclass(frozen=True)
class BigBirdOptions(PatternOptions):
    block_size: Count = 64
    """tokens of a block"""
    window_blocks: Odd = 3
    """w, odd: the own block and as many to each side (causal: before it)"""
    random_blocks: Whole = 3
    """r, random blocks of each block and head; fewer where there are not as many"""
    global_blocks: tuple[Index, ...] | None = None
    """blocks of the text that see all and are seen by all; negative: from the end of the real text
    (default: the first and the last, causal the first, with form etc none)"""
    form: Literal["itc", "etc"] = "itc"
    """whether global tokens are of the text, or learned and in front of it"""
    extra_tokens: Annotated[Whole, When("form", "etc")] = 64
    """g, global tokens in front (the paper's form etc has 256)"""
    random: Literal["uniform", "release", "zeros"] = "uniform"
    """evenly; the released tables for max_length; r times block 0 (transformers in evaluation)"""
    seed: Annotated[int, Bounds(0, SEEDS - 1)] = 0
    """of the random blocks; layers and heads draw their own"""
    dense_blocks: Whole = 0
    """texts of at most so many blocks see everything (transformers: 5 + 2 r)"""


def check_together(
    o: BigBirdOptions, rules: Rules, size: int, longest: int | None, position: Position | None
) -> None:
    """Refuse options that cannot be together, or not with ``longest``, the longest text.

    ``size`` is that of the blocks in plans.
    """
    causal = rules.causal
    drawn = o.random_blocks > 0 and o.random != "zeros"
    if drawn and longest is None:
        raise GeneError(
            "bigbird draws its random blocks once, for the longest text, so it needs "
            "max_length: give it, or random_blocks=0"
        )
    blocks = math.inf if longest is None else -(-longest // o.block_size)
    for block in rules.always:
        if block >= blocks or block < -blocks:
            raise GeneError(
                f"global_blocks={rules.always} names block {block}, but max_length="
                f"{longest} has {blocks} blocks of block_size={o.block_size}"
            )
    if (tokens := len(rules.always) * size) > MOST_GLOBAL:
        raise GeneError(
            f"bigbird lists its global tokens, {tokens:,} in global_blocks={rules.always} "
            f"of block_size={o.block_size}, and {MOST_GLOBAL:,} at most: choose a smaller "
            "block_size, or global_blocks=()"
        )
    if o.random == "release" and longest is not None and longest % o.block_size:
        raise GeneError(
            f"random='release' has tables for whole blocks: max_length={longest} is no "
            f"multiple of block_size={o.block_size}"
        )
    wrong = {
        "form='etc'": o.form == "etc",
        "random='zeros'": o.random == "zeros",
        f"dense_blocks={o.dense_blocks}": o.dense_blocks > 0,
        f"global_blocks={rules.always}": min(rules.always, default=0) < 0,
    }
    if causal and any(wrong.values()):
        named = next(name for name, given in wrong.items() if given)
        raise GeneError(
            f"{named} depends on the end of the text, or lets all tokens read later ones: use "
            "it with causal=False"
        )
    if o.random == "zeros" and position is not None:
        raise GeneError(
            "random='zeros' is for checkpoints of transformers, which have no position inside: "
            f"use random='uniform' with position '{position.name}'"
        )
