"""How order enters a model and who may see whom: encodings, rotations, masks."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from everyformer.blocks.block import Block
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.engines.visibility import visibility
from everyformer.models.base import Model
from everyformer.positions.axial import Axial
from everyformer.positions.learned import Learned
from everyformer.positions.rope import Rope
from everyformer.positions.sinusoidal import Sinusoidal
from everyformer.report.heatmaps import Panel, draw_panels, wrapped

LONGEST_MASK = 16


def draw_encodings(model: Model, length: int | None) -> dict[str, Figure]:
    """What is added to the embeddings; nothing if nothing is."""
    position, width = model.position, model.config.width
    count = length or 32
    if isinstance(position, Sinusoidal):
        table = position.embed(torch.arange(count)[None])[0].float()
        caption = (
            f"Sinusoidal encodings of {count} positions (rows) in {width} channels (columns): fast "
            "waves on the left, slow ones on the right; sines and cosines "
            + ("alternate." if position.options.layout == "interleaved" else "in one half each.")
        )
        panel = Panel("", table.numpy(), ("channel", "position"))
        return {"encodings": draw_panels([[panel]], caption, "value", signed=True, wide=True)}
    if not isinstance(position, Learned | Axial) or position.max_length is None:
        return {}
    places = torch.arange(min(length or position.max_length, position.max_length))
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
    return {
        "encodings": draw_panels([panels], caption, "value", signed=True, wide=True, apart=True)
    }


def rotations(model: Model) -> list[Rope]:
    """All rotary positions of a model."""
    return [module for module in model.modules() if isinstance(module, Rope)]


def draw_rotary(model: Model, length: int | None) -> dict[str, Figure]:
    """The angles of rotary positions; nothing where there are none."""
    ropes = rotations(model)
    if not ropes:
        return {}
    rope, count = ropes[0], length or 32
    pairs = rope.rotary_dim // 2
    theta = rope.options.base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.arange(count)[:, None] * theta
    caption = (
        f"Rotary positions: cosine of the angle by which each of the {pairs} pairs of channels "
        "(columns) is turned at each position (rows); the first pairs turn fast, the last slowly."
    )
    panel = Panel("", angles.cos().numpy(), ("pair of channels", "position"))
    return {"rotary": draw_panels([[panel]], caption, "cosine", signed=True, wide=True)}


def draw_masks(model: Model, length: int | None) -> dict[str, Figure]:
    """Who may see whom, on a short row, for every kind of mask that the mixers honour."""
    size = length or LONGEST_MASK
    here = torch.arange(size)[None]
    mixers = [block.mixer for block in model.stack.blocks if isinstance(block, Block)]
    real, first = size - size // 4, size - size // 3
    cases: list[tuple[str, Mask | None]] = [("", None)]
    if all("keep" in mixer.honours for mixer in mixers):
        cases.append((f"\n{size - real} padded", Mask(keep=here < real)))
    if all("documents" in mixer.honours for mixer in mixers):
        cases.append(("\n2 documents", Mask(documents=(here >= first).long())))
    panels = []
    for name, causal, window in dict.fromkeys(kind for m in mixers for kind in _kinds(m)):
        for title, mask in cases:
            keep = None if mask is None else mask.keep
            seen = visibility(mask, here, here, causal=causal, windows=(window,), keep=keep).mask
            shown = torch.ones(size, size) if seen is None else seen[0, 0].float()
            panels.append(Panel(name + title, shown.numpy(), ("is read", "reads")))
    caption = f"Dark: the token of the row may read that of the column; {size} tokens."
    rows = wrapped(panels, max(2, len(cases)))
    return {"masks": draw_panels(rows, caption, None)}


def _kinds(mixer: Mixer) -> list[tuple[str, bool, int | None]]:
    """Title, causality and window of each different kind of head."""
    kinds = []
    for window in dict.fromkeys(getattr(mixer, "windows", (None,))):
        name = "causal" if mixer.causal else "all"
        kinds.append((name if window is None else f"window {window}", mixer.causal, window))
    return kinds
