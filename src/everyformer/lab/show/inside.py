"""Pictures of a trace: weights, position biases, spatial gates and buckets over pairs of tokens;
clusters; features of keys, and the weights that they make beside those of their kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.panels import Panel, layer_name, layer_title
from everyformer.core.trace import Trace
from everyformer.lab.show.heatmaps import draw_panels, wrapped


@dataclass(frozen=True)
class View:
    """A name that a trace recorded, and how it is to be drawn."""

    traced: Trace
    what: str
    """a name in `KINDS`"""
    causal: bool
    labels: Sequence[str] | None = None
    """a text for each token"""
    most: int | None = None
    """at most so many layers and heads (default: all)"""
    before: View | None = None
    """the same before training, of a kind in `COMPARED`"""

    @cached_property
    def maps(self) -> dict[str, Tensor]:
        """(heads, L, L) by module path, clusters (heads, L), features (heads, L, M);
        of biases that are zero everywhere none, nor the sorting of a single block."""
        result = self.traced.find(self.what.replace("-", "_"))
        if self.what == "clusters":
            return {path: one[0] for path, one in result.items()}
        square = {path: one[0] if one.dim() == 4 else one for path, one in result.items()}
        if self.what == "buckets":
            return {path: _shared(buckets) for path, buckets in square.items()}
        if self.what == "position-bias":
            return {path: bias for path, bias in square.items() if bias.count_nonzero()}
        if self.what == "sort":
            return {path: p for path, p in square.items() if p.shape[-1] > 1}
        return square

    @property
    def layers(self) -> list[tuple[str, Tensor]]:
        """The layers that are drawn, with their module paths."""
        return list(self.maps.items())[: self.most]

    @property
    def left_out(self) -> str:
        """A sentence about what is not drawn; '' where all is."""
        layers, heads = len(self.maps), max(len(chosen) for chosen in self.maps.values())
        if self.most is None or max(layers, heads) <= self.most:
            return ""
        return f" The first {self.most} of {layers} layers and {heads} heads at most are drawn."

    def heads(
        self, path: str, maps: Tensor, axes: tuple[str, str] | None = None, *, all_of: bool = False
    ) -> list[Panel]:
        """A panel for each head of ``maps`` (heads, rows, columns), the rows named at the first.

        What a causal mixer cannot see is left blank, unless ``all_of`` a matrix means something.
        """
        causal = self.causal and not all_of
        return [
            Panel(
                layer_title(path, f"head {h + 1}" if len(maps) > 1 else ""),
                _past(one, causal),
                axes if axes is None or h == 0 else (axes[0], ""),
            )
            for h, one in enumerate(maps[: self.most])
        ]

    def mean_and_heads(self, path: str) -> list[Panel]:
        """The mean over heads, and next to it each of several heads."""
        maps = self.maps[path].float()
        several = len(maps) > 1
        mean = Panel(layer_title(path, "mean" if several else ""), _past(maps.mean(0), self.causal))
        return [mean, *self.heads(path, maps)] if several else [mean]


@dataclass(frozen=True)
class Maps:
    """A kind of picture with one row of panels a layer, one panel a head."""

    caption: str
    """with {} for a number of each layer"""
    scale: str
    number: Callable[[Tensor], float]
    """of the maps of a layer"""
    form: str
    all_of: bool = True
    """whether what a causal mixer cannot see means something"""

    def __call__(self, view: View) -> dict[str, Figure]:
        numbers = [self.number(maps[: view.most].float()) for _, maps in view.layers]
        rows = [view.heads(path, maps, all_of=self.all_of) for path, maps in view.layers]
        caption = self.caption.format(_listed(numbers, self.form)) + view.left_out
        rows = rows if self.all_of else _few(rows)
        return {view.what: draw_panels(rows, caption, self.scale, labels=view.labels)}


def _reach(weights: Tensor) -> float:
    position = torch.arange(weights.shape[-1], device=weights.device)
    return float((weights * (position[:, None] - position).abs()).sum(-1).mean())


def _met(shared: Tensor) -> float:
    others = ~torch.eye(shared.shape[-1], dtype=torch.bool, device=shared.device)
    return float(shared[:, others].mean()) if others.any() else 1.0


def _mixture(p: Tensor) -> float:
    # a causal first block sorts nothing in
    entropy = -torch.special.xlogy(p, p).sum(-1)[p.sum(-1) > 0]
    return float(entropy.exp().mean())


def clusters(view: View) -> dict[str, Figure]:
    """The centroids of tokens: one panel a layer, a row a routed head, a column a token."""
    drawn = [(path, chosen[: view.most]) for path, chosen in view.layers]
    used = [sum(len(head.unique()) for head in ids) / len(ids) for _, ids in drawn]
    rows = [
        [Panel(layer_title(path), _past(ids + 1, False), ("token", "routed head"))]
        for path, ids in drawn
    ]
    caption = (
        "The nearest centroid of every token, as a shade: tokens of one shade in a row meet in "
        f"that head. Centroids used, layer by layer: {_listed(used, '.1f')} a head.{view.left_out}"
    )
    return {"clusters": draw_panels(rows, caption, "number of the centroid", wide=True)}


def features(view: View) -> dict[str, Figure]:
    """One row of panels a layer, one panel a head: a row a token, a column a feature; and the
    weights that they make."""
    signed = any(bool((phi < 0).any()) for phi in view.maps.values())
    rows = [view.heads(path, phi, ("feature", "token"), all_of=True) for path, phi in view.layers]
    sizes = [phi.shape[-1] for _, phi in view.layers]
    caption = (
        "phi(k) of every key, less a factor for each where the map is an exponential: a token is "
        "read by what its features have in common with those of a query. Features a head, layer "
        f"by layer: {_listed(sizes, 'd')}.{view.left_out}"
    )
    figure = draw_panels(rows, caption, "feature", wide=True, signed=signed)
    return {"features": figure, "features-weights": _weights_of_features(view)}


def _weights_of_features(view: View) -> Figure:
    """Two rows of panels a layer, one panel a head: weights by features, and the kernel's."""
    out, exact = (replace(view, what=what).maps for what in ("weights", "exact"))
    rows = []
    apart: list[float] = []
    even: list[float] = []
    for path, _ in view.layers:
        seen = (exact[path] > 0).float()
        plain = seen / seen.sum(-1, keepdim=True).clamp(min=1)
        for distances, other in ((apart, out[path]), (even, plain)):
            distances.append(float((other - exact[path]).abs().sum(-1).mean() / 2))
        rows += [
            view.heads(path, maps[path], ("", name))
            for maps, name in ((out, "by features"), (exact, "exact"))
        ]
    caption = (
        "By features: the weights that products of features make. Exact: those of the kernel that "
        "random features estimate; of a map that estimates none, of softmax with the same queries "
        "and keys. Share of a row's weight that lies elsewhere, layer by layer: "
        f"{_listed(apart, '.0%')}; with equal weights in place of features "
        f"{_listed(even, '.0%')}.{view.left_out}"
    )
    signed = any(bool((out[path] < 0).any()) for path in view.maps)
    return draw_panels(rows, caption, "weight", signed=signed, labels=view.labels)


def position_bias(view: View) -> dict[str, Figure]:
    """The learned w of every layer, averaged over heads and head by head."""
    now, old = view.maps, {} if view.before is None else view.before.maps
    rows = _few([view.mean_and_heads(path) for path, _ in view.layers])
    grown = ""
    if now.keys() == old.keys():
        sizes = [float(now[path].std() / old[path].std()) for path in now]
        grown = f" Its spread grew {_listed(sizes, '.1f')} fold in training."
    explained = [toeplitz_share(bias, view.causal) for bias in now.values()]
    caption = (
        "w[t, t'] by layer: how much the token in the column adds to its weight in the row's "
        f"average (red) or loses (blue), whatever the tokens are.{grown} Part of the variance that "
        f"the distance alone explains: {_listed(explained, '.0%')}.{view.left_out}"
    )
    return {"position-bias": draw_panels(rows, caption, "bias (nats)", signed=True)}


def spatial(view: View) -> dict[str, Figure]:
    """SGU matrices at the start (first row) and after training, a column a layer."""
    paths, before = [path for path, _ in view.layers], view.before
    single = all(len(weight) == 1 for weight in view.maps.values())
    figures = {}
    for group in [paths] if single else [[path] for path in paths]:
        rows = [[panel for path in group for panel in view.mean_and_heads(path)]]
        both = before is not None and all(path in before.maps for path in group)
        if before is not None and both:
            first = [panel for path in group for panel in before.mean_and_heads(path)]
            rows = [
                [replace(panel, axes=("", when if n == 0 else "")) for n, panel in enumerate(row)]
                for when, row in (("start", first), ("trained", rows[0]))
            ]
        explained = [toeplitz_share(view.maps[path], view.causal) for path in group]
        caption = (
            "W: how much of the token in the column enters the gate of the token in the row"
            + ("; the two rows have colour scales of their own" if both else "")
            + f". Part of the variance that the distance alone explains (100%: Toeplitz): "
            f"{_listed(explained, '.0%')}.{view.left_out if single else ''}"
        )
        name = "spatial" if single else f"spatial-{layer_name(group[0])}"
        figures[name] = draw_panels(rows, caption, "W", signed=True, by_row=both)
    return figures


KINDS: dict[str, Callable[[View], dict[str, Figure]]] = {
    "weights": Maps(
        "Row: the token that reads; column: the token that is read; darker: more weight (square "
        "root scale). Mean distance read, layer by layer: {} tokens.",
        "weight", _reach, ".1f", all_of=False,
    ),
    "features": features,
    "sort": Maps(
        "Row: the block that reads; column: the block that is sorted in for it; darker: more of it "
        "(square root scale). Blocks in the mixture of a row, layer by layer: {}.",
        "P", _mixture, ".1f",
    ),
    "position-bias": position_bias,
    "spatial": spatial,
    "buckets": Maps(
        "Darker: more rounds of hashing put the two tokens into one bucket, so that they may see "
        "each other. Share of pairs that meet in a round, layer by layer: {}.",
        "share of rounds", _met, ".0%",
    ),
    "clusters": clusters,
}  # fmt: skip
"""what draws each kind of picture of what mixers record: its figures by name"""
COMPARED = ("position-bias", "spatial")
"""those that are drawn beside what they were before training"""


def toeplitz_share(maps: Tensor, causal: bool) -> float:
    """R^2 of the best Toeplitz matrix: how far the value depends on the distance alone."""
    explained, total = 0.0, 0.0
    length = maps.shape[-1]
    for one in maps.double():
        diagonals = [one.diagonal(k) for k in range(1 - length, 1 if causal else length)]
        values = torch.cat(diagonals)
        fitted = torch.cat([d.mean().expand_as(d) for d in diagonals])
        total += float((values - values.mean()).square().sum())
        explained += float((fitted - values.mean()).square().sum())
    return explained / total if total else 1.0


def _shared(buckets: Tensor) -> Tensor:
    """Share of the rounds that put two tokens into one bucket: (heads, L, L) of (heads, n, L)."""
    return (buckets[..., None] == buckets[..., None, :]).float().mean(1)


def _past(values: Tensor, causal: bool) -> np.ndarray:
    """Values with those blank that a causal mixer cannot see."""
    visible = values.detach().float().cpu().clone()
    if causal:
        later = torch.ones_like(visible, dtype=torch.bool).triu(1)
        visible = visible.masked_fill(later, float("nan"))
    return visible.numpy()


def _few(rows: list[list[Panel]]) -> list[list[Panel]]:
    """Layers of one head each side by side."""
    if all(len(row) == 1 for row in rows):
        return wrapped([panel for row in rows for panel in row], 4)
    return rows


def _listed(numbers: Iterable[float], form: str) -> str:
    return ", ".join(format(number, form) for number in numbers)
