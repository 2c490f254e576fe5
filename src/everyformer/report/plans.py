"""Sparse plans as pictures: who reads whom, and what one token reads, token by token in rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.engines.sparse.patterns import Near, Pattern
from everyformer.engines.sparse.patterns_grid import Rectangles
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.mixers._patterned import PatternAttention
from everyformer.mixers.etc import ETC
from everyformer.mixers.sparse_transformer import SparseTransformer
from everyformer.models.build import create_mixer
from everyformer.report.heatmaps import Panel, draw_panels

Union = tuple[Pattern, ...]
SHADES = (0.45, 0.15, 0.08, 0.04)
"""of a union's patterns in order; the token itself is 1"""
MOST = 1024
"""tokens of a picture that are drawn"""


SMALL: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "longformer": (
        ("window 8", {"window": 8}),
        ("dilated by 2", {"window": 8, "dilation": 2}),
        ("and global tokens", {"window": 8, "global_tokens": (0, 21, 42)}),
    ),
    "bigbird": (
        ("at random", {"window_blocks": 1, "global_blocks": ()}),
        ("near", {"random_blocks": 0, "global_blocks": ()}),
        ("for all", {"window_blocks": 1, "random_blocks": 0}),
        ("all three", {}),
    ),
    "image-transformer": (
        ("1-D", {"block_size": 8, "memory_size": 8}),
        ("2-D", {"dims": 2, "grid": (8, 8), "tile": (4, 4), "flange": (2, 2)}),
    ),
    "blockwise": (("4 blocks, shift 0", {"groups": (1,)}), ("shift 1", {"groups": (0, 1)})),
}
"""what a member is drawn with where its own windows show every pair of so few tokens"""
SENTENCES, WORDS, RADIUS = 4, 12, 3
"""of the picture of ETC"""
EVERY = {"bigbird": {"block_size": 4, "random_blocks": 2}, "blockwise": {"blocks": 4}}
"""options of all its panels"""


def draw_plans(mixers: list[PatternAttention], length: int | None) -> dict[str, Figure]:
    """A column for each kind of head: its matrix, and below it what one token reads.

    Of a Sparse Transformer the columns are all earlier tokens, the strided and the fixed sets, as
    in figure 3 of its paper; the second row is drawn where tokens lie in rows.
    """
    size = length or _size(mixers[0])
    titled = _titled(mixers, size)
    causal = mixers[0].causal
    full = torch.ones(size, size, dtype=torch.bool)
    full = full.tril() if causal else full
    small = all(bool((SparsePlan.of(*u).mask(size)[0] == full).all()) for _, u in titled)
    small = small and mixers[0].name in SMALL
    if small:
        titled = _panels(mixers[0].name, causal, size)
    query = _query(mixers[0], size)
    matrices, pictures = [], []
    for title, union in titled:
        shades = _shades(union, size)
        matrices.append(Panel(title, shades.numpy(), ("is read", "reads")))
        rows = _in_rows(mixers[0], union, shades[query])
        if rows is not None:
            pictures.append(Panel(f"read by {query}", rows.numpy(), ("column", "row")))
    caption = (
        f"Who may read whom of {size} tokens: a token itself, the first pattern of its heads and, "
        "paler, the second."
    )
    if pictures:
        caption += f" Below: what token {query} reads, with the tokens laid out in rows."
    if small:
        caption += " Drawn with small windows: its own show every pair of so few tokens."
    panels = [matrices, pictures] if pictures else [matrices]
    return {"masks": draw_panels(panels, caption, None)}


def draw_global_local(mixer: ETC) -> dict[str, Figure]:
    """Global tokens in front, each for a sentence, and long ones; a column for each kind."""
    sentence = torch.arange(SENTENCES)
    sentences = torch.cat((sentence, sentence.repeat_interleave(WORDS)))
    chosen = torch.arange(len(sentences)) < SENTENCES
    mask = Mask(global_tokens=chosen[None], sentences=sentences[None])
    panels = []
    for hard in (False, True):
        own = dataclasses.replace(mixer.options, radius=RADIUS, hard_g2l=hard)
        small = ETC(width=8, options=own)
        with torch.no_grad(), trace(small) as traced:
            small(torch.zeros(1, len(sentences), 8), mask=mask)
        seen = traced[""]["weights"][0][0, 0] > 0
        shades = torch.where(chosen | chosen[:, None], SHADES[1], SHADES[0]) * seen
        shades.fill_diagonal_(1.0)
        panels.append(
            Panel("hard g2l" if hard else "open g2l", shades.numpy(), ("is read", "reads"))
        )
    caption = (
        f"Who may read whom: {SENTENCES} global tokens, one a sentence, in front of {WORDS} long "
        f"ones of each. This model is the {'second' if mixer.options.hard_g2l else 'first'}, drawn "
        f"with radius {RADIUS}."
    )
    return {"masks": draw_panels([panels], caption, None)}


def _panels(name: str, causal: bool, size: int) -> list[tuple[str, Union]]:
    """What `SMALL` says of a member, with its titles."""
    made = []
    for title, options in SMALL[name]:
        options = {**EVERY.get(name, {}), **options}
        mixer = create_mixer(name, width=8, heads=1, causal=causal, max_length=size, **options)
        assert isinstance(mixer, PatternAttention)
        made.append((title, mixer.plan(size).heads[0]))
    return made


def _titled(mixers: list[PatternAttention], size: int) -> list[tuple[str, Union]]:
    """Different kinds of heads, each with a title."""
    first = mixers[0]
    if isinstance(first, SparseTransformer):
        before, after = first.sets_of("strided"), first.sets_of("fixed")
        return [
            ("all", (Near(causal=first.causal),)),
            (f"strided, l = {first.stride}", (*before[0], *before[1])),
            (f"fixed, l = {first.stride}, c = {first.columns}", (*after[0], *after[1])),
        ]
    kinds: dict[Union, list[str]] = {}
    for layer, mixer in enumerate(mixers):
        unions = mixer.plan(size).heads
        for head, union in enumerate(unions):
            which = f"layer {layer + 1}" + (f", head {head + 1}" if len(unions) > 1 else "")
            kinds.setdefault(union, []).append(which)
    return [(_short(names), union) for union, names in kinds.items()]


def _short(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _shades(union: Union, size: int) -> Tensor:
    """(L, L): which pattern of a union shows each pair first, as a shade."""
    shades = torch.zeros(size, size)
    for n in reversed(range(len(union))):
        shown = SparsePlan.of(union[n]).mask(size)[0]
        shades = shades.masked_fill(shown, SHADES[min(n, len(SHADES) - 1)])
    own = shades.diagonal()
    own[own > 0] = 1.0
    return shades


def _in_rows(mixer: PatternAttention, union: Union, seen: Tensor) -> Tensor | None:
    """What a token sees with all tokens laid out as the mixer thinks of them; None: in one row."""
    at = torch.arange(len(seen))
    if isinstance(mixer, SparseTransformer):
        row, column, columns = at // mixer.stride, at % mixer.stride, mixer.stride
    elif isinstance(union[0], Rectangles):
        (row, column), columns = union[0].cells(at), union[0].grid[1]
    else:
        return None
    laid = torch.full((int(row.max()) + 1, columns), torch.nan)
    laid[row, column] = seen
    return laid


def _size(mixer: PatternAttention) -> int:
    """How many tokens show what is special."""
    if isinstance(mixer, SparseTransformer):
        return mixer.stride * min(max(mixer.stride, 2), 12 if mixer.stride < 12 else 3)
    return min(mixer.max_length or 64, MOST)


def _query(mixer: PatternAttention, size: int) -> int:
    """A token two thirds down, in the middle of its row where there are rows."""
    middle = mixer.stride // 2 if isinstance(mixer, SparseTransformer) else 0
    return min(size * 2 // 3 + middle, size - 1)
