"""The picture of how many steps tokens take."""

from collections.abc import Mapping

from torch import Tensor

from everyformer.core.panels import Panel, Panels, line_by_line


def halting(counts_by_depth: Mapping[str, Tensor], causal: bool) -> Panels:
    """Steps (B, L) of the first text's tokens, line by line."""
    sentence = (
        "How many steps each token takes before it halts, line by line: the darker, the more."
    )
    return _by_token(counts_by_depth, sentence, "steps")


def exits(counts_by_depth: Mapping[str, Tensor], causal: bool) -> Panels:
    """Layers (B, L) at which the first text's tokens leave, line by line."""
    sentence = "At which layer each token leaves, line by line: the darker, the deeper."
    return _by_token(counts_by_depth, sentence, "layer")


def _by_token(counts_by_depth: Mapping[str, Tensor], sentence: str, scale: str) -> Panels:
    rows, means = [], []
    for counts in counts_by_depth.values():
        values = counts[0].float().cpu().numpy()
        means.append(f"{values.mean():.1f}")
        rows.append([Panel("", line_by_line(values), ("token", "line"))])
    caption = f"{sentence} On average {', '.join(means)}."
    return Panels(rows, caption, scale, wide=True, text=True)


def confidence(counts_by_depth: Mapping[str, Tensor], causal: bool) -> Panels:
    """Confidence (n, B, L) of each layer that is asked in the first text's tokens, or NaN."""
    rows = []
    for sure in counts_by_depth.values():
        values = sure[:, 0].float().cpu().numpy()
        rows.append([Panel("", values, ("token", "layer that is asked"))])
    caption = (
        "How sure each layer is of what comes next, for every token that has come there; blank "
        "where it has left before."
    )
    return Panels(rows, caption, "confidence", wide=True)
