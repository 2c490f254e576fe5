"""Picture of a gate: the share of neighbours in the state after each token."""

from collections.abc import Mapping

from torch import Tensor

from everyformer.core.panels import Panel, Panels, line_by_line


def gate(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """Shares 1 - g (B, L) of the first text's tokens, line by line."""
    rows, means = [], []
    for own in recorded.values():
        shares = 1 - own[0].float().cpu().numpy()
        means.append(f"{shares.mean():.0%}")
        rows.append([Panel("", line_by_line(shares), ("token", "line"))])
    caption = (
        "How much of the state behind each token, from which the next one is predicted, is what "
        "followed its neighbours, 1 - g, line by line: the darker, the more. On average "
        f"{', '.join(means)}."
    )
    return Panels(rows, caption, "share of neighbours", wide=True, text=True)
