"""Tables with a trained vector a position: what holds one, and their picture."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.errors import GeneError
from everyformer.core.panels import Panel, Panels
from everyformer.core.position import Position, Sizes, normal_table


class TablePosition(Position):
    """Base of positions that add a row of one table, for which they need ``max_length``."""

    holds: ClassVar[str]
    """what needs it"""

    def build(self, sizes: Sizes) -> None:
        if sizes.max_length is None:
            raise GeneError(
                f"position '{self.name}' holds {self.holds} over positions, so it needs max_length "
                "(the longest sequence): give `max_length=...`"
            )
        self.max_length = sizes.max_length
        self.table = normal_table(self.max_length, sizes.width, std=self.options.std)

    def embed(self, positions: Tensor) -> Tensor:
        self.check(positions)
        return nn.functional.embedding(positions, self.table)


def vectors_and_likeness(position: Position, length: int | None) -> Panels:
    """The vectors of the first ``length`` positions (default: all), and how alike they are."""
    longest = position.max_length
    assert longest is not None
    positions = torch.arange(min(length or longest, longest))
    device = next(position.parameters()).device
    table = position.embed(positions[None].to(device))[0].detach().float().cpu()
    unit = torch.nn.functional.normalize(table, dim=-1)
    alike = unit @ unit.T
    near = alike.diagonal(1).mean().item() if len(table) > 1 else 1.0
    caption = (
        f"Left: the learned vectors of {len(table)} positions (rows). Right: their cosine "
        f"similarity; that of neighbours is {near:.2f} on average."
    )
    panels = [
        Panel("table", table.numpy(), ("channel", "position")),
        Panel("cosine similarity", alike.numpy(), ("position", "position")),
    ]
    return Panels([panels], caption, "value", signed=True, wide=True, apart=True)
