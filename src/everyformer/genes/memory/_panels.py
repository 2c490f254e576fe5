"""Picture of the distances at which a store is read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from everyformer.core.panels import Panel, Panels, layer_title


def looked_up(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """Histograms of how far back keys of look-ups lie: (B, H, L, k), -1 where there is none."""
    rows = []
    for path, distances in recorded.items():
        far = distances.flatten(2).transpose(0, 1).flatten(1)
        ends = int(far.max().clamp(min=1)).bit_length()
        octave = far.clamp(min=1).double().log2().long()
        shares = torch.stack([((octave == n) & (far >= 0)).sum(1) for n in range(ends)], 1)
        total = (far >= 0).sum(1, keepdim=True).clamp(min=1)
        title = layer_title(path, "found, by distance")
        axes = ("tokens back, as a power of two", "head")
        rows.append([Panel(title, (shares / total).numpy(), axes)])
    caption = (
        "How far back the stored keys lie that were found: of each head (a row) the share of its "
        "finds that are so many tokens back, from each power of two to the next."
    )
    return Panels(rows, caption, "share of what was found", wide=True)
