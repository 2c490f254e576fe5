"""Pictures of the spans that layers have learned."""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from everyformer.core.panels import Panel, Panels, layer_title


def spans(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """Spans (H,) of every layer as one matrix; those (H, L) by token a panel for each layer."""
    values = {path: t.float().cpu().numpy() for path, t in recorded.items()}
    mean = float(np.mean([t.mean() for t in values.values()]))
    back = "back" if causal else "to each side"
    caption = (
        f"How many tokens each head looks {back} before nothing is left of its ramp, which is "
        f"included: the darker, the farther. On average {mean:.1f}"
    )
    if all(t.ndim == 1 for t in values.values()) and len({len(t) for t in values.values()}) == 1:
        [*rows] = values.values()
        return Panels([[Panel("", np.stack(rows), ("head", "layer"))]], f"{caption}.", "span")
    panels = [
        [Panel(layer_title(path), np.atleast_2d(t), ("token" if t.ndim > 1 else "head", "head"))]
        for path, t in values.items()
    ]
    return Panels(panels, f"{caption}; by token, in the first text.", "span", wide=True)
