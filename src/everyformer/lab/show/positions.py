"""Pictures of order and visibility: encodings, rotations, distances, masks."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.panels import Panel, Panels, Pictures, layer_title
from everyformer.core.position import Position
from everyformer.engines.softmax.visibility import visibility
from everyformer.lab.show.heatmaps import wrapped
from everyformer.lab.show.style import HIGH, WIDE, styled
from everyformer.models.base import Model

LONGEST_MASK = 16


def offered(model: Model, length: int | None) -> Pictures:
    """Pictures that positions and mixers offer, by name, of several the first one's; and the
    masks of those that do not draw them."""
    if not model.layered:
        return {}
    mixers = model.stack.mixers
    result: Pictures = {}
    before = [part for part in model.stack.before or () if isinstance(part, Position)]
    for position in positions_of(model).values():
        result = {**position.pictures(length, before), **result}
    for mixer in mixers:
        result = {**mixer.pictures(length, mixers), **result}
    return {"masks": lambda: _masks(mixers, length or LONGEST_MASK), **result}


def positions_of(model: Model) -> dict[str, Position]:
    """All positions by module path, one that layers share once."""
    return {path: part for path, part in model.named_modules() if isinstance(part, Position)}


@styled
def draw_distances(model: Model, length: int | None) -> dict[str, Figure]:
    """Curves of what heads know of distances whatever the tokens are; nothing if nothing."""
    count = length or 64
    first = 0 if model.config.causal else 1 - count
    distance = torch.arange(first, count)
    there = distance.to(next(model.parameters()).device)
    results = []
    for path, position in positions_of(model).items():
        with torch.no_grad():
            curve = position.curve(there)
        if curve is not None:
            results.append((path, *curve))
    if not results:
        return {}
    figure = Figure(figsize=(WIDE, HIGH * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (path, name, curves) in zip(axes, results, strict=True):
        for head, curve in enumerate(curves):
            axis.plot(distance, curve.cpu(), label=f"head {head + 1}")
        title = layer_title(path, "") if len(results) > 1 else ""
        axis.set(ylabel=name, title=title)
    axes[0].legend(fontsize=7, ncols=2)
    axes[-1].set_xlabel("distance (positive: to the past)")
    figure.set_label(
        f"What the distance alone does to scores, head by head, up to {count - 1} tokens."
    )
    return {"distances": figure}


def _masks(mixers: Sequence[Mixer], size: int) -> Panels:
    """Visible pairs on a short row, for every kind of mask that the mixers honour."""
    places = torch.arange(size)[None]
    real, first = size - size // 4, size - size // 3
    cases: list[tuple[str, Mask | None]] = [("", None)]
    if all("padding_mask" in mixer.supported_masks for mixer in mixers):
        cases.append((f"\n{size - real} padded", Mask(padding_mask=places < real)))
    if all("documents" in mixer.supported_masks for mixer in mixers):
        cases.append(("\n2 documents", Mask(documents=(places >= first).long())))
    panels = []
    for name, causal, window in dict.fromkeys(kind for m in mixers for kind in _kinds(m)):
        for title, mask in cases:
            padding_mask = None if mask is None else mask.padding_mask
            seen = visibility(
                mask, places, places, causal=causal, windows=(window,), padding_mask=padding_mask
            ).mask
            visible = torch.ones(size, size)
            if seen is not None:
                visible = seen[0, 0].float().expand(size, size)
            panels.append(Panel(name + title, visible.numpy(), ("is read", "reads")))
    caption = f"Dark: the token of the row may read that of the column; {size} tokens."
    return Panels(wrapped(panels, max(2, len(cases))), caption, None)


def _kinds(mixer: Mixer) -> list[tuple[str, bool, int | None]]:
    """Title, causality and window of each head."""
    whole = "causal" if mixer.causal else "all"
    return [
        (whole if window is None else f"window {window}", mixer.causal, window)
        for window in mixer.windows
    ]
