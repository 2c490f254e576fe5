"""The picture of positions that have a trained vector each."""

from __future__ import annotations

import torch

from everyformer.core.panels import Panel, Panels
from everyformer.positions.base import Position


def vectors_and_likeness(position: Position, length: int | None) -> Panels:
    """The vectors of the first ``length`` positions (default: all), and how alike they are."""
    longest = position.max_length
    assert longest is not None
    places = torch.arange(min(length or longest, longest))
    device = next(position.parameters()).device
    table = position.embed(places[None].to(device))[0].detach().float().cpu()
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
