"""Sparse plans as panels: who reads whom, and what one token reads, token by token in rows."""

import torch
from torch import Tensor

from everyformer.core.panels import Panel, Panels
from everyformer.engines.sparse.patterns_grid import Rectangles
from everyformer.engines.sparse.plan import SparsePlan, Union

Titled = list[tuple[str, Union]]
"""kinds of heads"""
SHADES = (0.45, 0.15, 0.08, 0.04)
"""of a union's patterns in order; the token itself is 1"""
MOST = 1024
"""tokens of a picture that are drawn"""


def plan_panels(titled: Titled, size: int, row: int | None, small: bool) -> Panels:
    """A column for each kind of head: its matrix, and below it what one token reads.

    Args:
        size: tokens drawn.
        row: of tokens that are thought of as lying in rows, how many a row has; the second row of
            panels is drawn where they do.
        small: whether the windows are other ones than the model's.
    """
    # two thirds down, in the middle of its row where there are rows
    query = min(size * 2 // 3 + (row or 0) // 2, size - 1)
    matrices, pictures = [], []
    for title, union in titled:
        shades = _shades(union, size)
        matrices.append(Panel(title, shades.numpy(), ("is read", "reads")))
        cells = _in_rows(row, union, shades[query])
        if cells is not None:
            pictures.append(Panel(f"read by {query}", cells.numpy(), ("column", "row")))
    caption = (
        f"Who may read whom of {size} tokens: a token itself, the first pattern of its heads and, "
        "paler, the second."
    )
    if pictures:
        caption += f" Below: what token {query} reads, with the tokens laid out in rows."
    if small:
        caption += " Drawn with small windows: its own show every pair of so few tokens."
    return Panels([matrices, pictures] if pictures else [matrices], caption, None)


def telling_size(row: int | None, longest: int | None) -> int:
    """Number of tokens that show what is special."""
    if row is not None:
        return row * min(max(row, 2), 12 if row < 12 else 3)
    return min(longest or 64, MOST)


def shows_every_pair(titled: Titled, size: int, causal: bool) -> bool:
    """True where so few tokens show nothing of the patterns."""
    full = torch.ones(size, size, dtype=torch.bool)
    full = full.tril() if causal else full
    return all(bool((SparsePlan.of(*union).mask(size)[0] == full).all()) for _, union in titled)


def kinds_of_heads(plans: list[SparsePlan]) -> Titled:
    """Different kinds of heads of the layers, each with a title."""
    kinds: dict[Union, list[str]] = {}
    for layer, plan in enumerate(plans):
        for head, union in enumerate(plan.heads):
            which = f"layer {layer + 1}" + (f", head {head + 1}" if len(plan.heads) > 1 else "")
            kinds.setdefault(union, []).append(which)
    return [(_short(names), union) for union, names in kinds.items()]


def _short(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _shades(union: Union, size: int) -> Tensor:
    """(L, L): which pattern of a union shows each pair first, as a shade."""
    shades = torch.zeros(size, size)
    for n in reversed(range(len(union))):
        mask = SparsePlan.of(union[n]).mask(size)[0]
        shades = shades.masked_fill(mask, SHADES[min(n, len(SHADES) - 1)])
    own = shades.diagonal()
    own[own > 0] = 1.0
    return shades


def _in_rows(row: int | None, union: Union, seen: Tensor) -> Tensor | None:
    """Keys of one token in a grid of rows; None: all tokens are in one row."""
    at = torch.arange(len(seen))
    if row is not None:
        down, across, columns = at // row, at % row, row
    elif isinstance(union[0], Rectangles):
        (down, across), columns = union[0].cells(at), union[0].grid[1]
    else:
        return None
    cells = torch.full((int(down.max()) + 1, columns), torch.nan)
    cells[down, across] = seen
    return cells
