"""What a trace shows: weights, position biases, spatial gates and buckets over pairs of tokens;
clusters; features of keys, and the weights that they make beside those of their kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.panels import Panel
from everyformer.core.trace import Trace
from everyformer.report.heatmaps import draw_panels, wrapped


def recorded(traced: Trace, what: str) -> dict[str, Tensor]:
    """(heads, L, L) by module path, clusters (heads, L), features (heads, L, M);
    of biases that are zero everywhere none, nor the sorting of a single block."""
    found = traced.find(what.replace("-", "_"))
    if what == "clusters":
        return {path: kept[0] for path, kept in found.items()}
    square = {path: kept[0] if kept.dim() == 4 else kept for path, kept in found.items()}
    if what == "buckets":
        return {path: _shared(buckets) for path, buckets in square.items()}
    if what == "position-bias":
        return {path: bias for path, bias in square.items() if bias.count_nonzero()}
    if what == "sort":
        return {path: p for path, p in square.items() if p.shape[-1] > 1}
    return square


def draw_traced(
    traced: Trace,
    before: Trace | None,
    what: str,
    causal: bool,
    labels: Sequence[str] | None,
    most: int | None,
) -> dict[str, Figure]:
    """The figures of ``what``, a name in :data:`~everyformer.report.pictures.PICTURES`, if any."""
    now = recorded(traced, what)
    if not now:
        return {}
    old = {} if before is None else recorded(before, what)
    if what == "weights":
        return {what: _weights(now, causal, labels, most)}
    if what == "buckets":
        return {what: _buckets(now, labels, most)}
    if what == "clusters":
        return {what: _clusters(now, most)}
    if what == "sort":
        return {what: _sort(now, most)}
    if what == "features":
        made, exact = recorded(traced, "weights"), recorded(traced, "exact")
        matrices = {path: (made[path], exact[path]) for path in now}
        return {
            what: _features(now, most),
            "features-weights": _kernels(matrices, causal, labels, most),
        }
    draw = _spatial if what == "spatial" else _position_bias
    return draw(now, old, causal, most)


def _weights(
    found: dict[str, Tensor], causal: bool, labels: Sequence[str] | None, most: int | None
) -> Figure:
    """One row of panels a layer, one panel a head."""
    rows, reach = [], []
    for path, weights in list(found.items())[:most]:
        kept = weights[:most].float()
        place = torch.arange(kept.shape[-1], device=kept.device)
        far = (place[:, None] - place).abs()
        reach.append((kept * far).sum(-1).mean().item())
        several = kept.shape[0] > 1
        rows.append(
            [
                Panel(layer_title(path, f"head {h + 1}" if several else ""), _past(one, causal))
                for h, one in enumerate(kept)
            ]
        )
    if all(len(row) == 1 for row in rows):
        rows = wrapped([panel for row in rows for panel in row], 4)
    caption = (
        "Row: the token that reads; column: the token that is read; darker: more weight (square "
        f"root scale). Mean distance read, layer by layer: {', '.join(f'{r:.1f}' for r in reach)} "
        f"tokens.{_left_out(found, most)}"
    )
    return draw_panels(rows, caption, "weight", labels=labels)


def _shared(buckets: Tensor) -> Tensor:
    """Share of the rounds that put two tokens into one bucket: (heads, L, L) of (heads, n, L)."""
    return (buckets[..., None] == buckets[..., None, :]).float().mean(1)


def _buckets(found: dict[str, Tensor], labels: Sequence[str] | None, most: int | None) -> Figure:
    """One row of panels a layer, one panel a head."""
    rows, met = [], []
    for path, shared in list(found.items())[:most]:
        several, count = shared.shape[0] > 1, shared.shape[-1]
        others = ~torch.eye(count, dtype=torch.bool, device=shared.device)
        met.append(shared[:, others].mean().item() if count > 1 else 1.0)
        rows.append(
            [
                Panel(layer_title(path, f"head {h + 1}" if several else ""), one.cpu().numpy())
                for h, one in enumerate(shared[:most])
            ]
        )
    caption = (
        "Darker: more rounds of hashing put the two tokens into one bucket, so that they may see "
        f"each other. Share of pairs that meet in a round, layer by layer: "
        f"{', '.join(f'{share:.0%}' for share in met)}.{_left_out(found, most)}"
    )
    return draw_panels(rows, caption, "share of rounds", labels=labels)


def _clusters(found: dict[str, Tensor], most: int | None) -> Figure:
    """One panel a layer: a row a routed head, a column a token."""
    rows, used = [], []
    for path, clusters in list(found.items())[:most]:
        kept = clusters[:most]
        used.append(sum(len(head.unique()) for head in kept) / len(kept))
        axes = ("token", "routed head")
        rows.append([Panel(layer_title(path, ""), kept.float().cpu().numpy() + 1, axes)])
    caption = (
        "The nearest centroid of every token, as a shade: tokens of one shade in a row meet in "
        f"that head. Centroids used, layer by layer: {', '.join(f'{n:.1f}' for n in used)} a head."
        f"{_left_out(found, most)}"
    )
    return draw_panels(rows, caption, "number of the centroid", wide=True)


def _sort(found: dict[str, Tensor], most: int | None) -> Figure:
    """One row of panels a layer, one panel a head: the matrix P over blocks."""
    rows, choices = [], []
    for path, p in list(found.items())[:most]:
        kept = p[:most].float()
        # a causal first block sorts nothing in
        entropy = -torch.special.xlogy(kept, kept).sum(-1)[kept.sum(-1) > 0]
        choices.append(float(entropy.exp().mean()))
        titles = [f"head {h + 1}" if len(kept) > 1 else "" for h in range(len(kept))]
        rows.append(
            [
                Panel(layer_title(path, title), one.cpu().numpy())
                for title, one in zip(titles, kept, strict=True)
            ]
        )
    caption = (
        "Row: the block that reads; column: the block that is sorted in for it; darker: more of it "
        "(square root scale). Blocks in the mixture of a row, layer by layer: "
        f"{', '.join(f'{n:.1f}' for n in choices)}.{_left_out(found, most)}"
    )
    return draw_panels(rows, caption, "P")


def _features(found: dict[str, Tensor], most: int | None) -> Figure:
    """One row of panels a layer, one panel a head: a row a token, a column a feature."""
    rows, sizes = [], []
    signed = any(bool((kept < 0).any()) for kept in found.values())
    for path, kept in list(found.items())[:most]:
        several = kept.shape[0] > 1
        sizes.append(kept.shape[-1])
        rows.append(
            [
                Panel(
                    layer_title(path, f"head {h + 1}" if several else ""),
                    one.float().cpu().numpy(),
                    ("feature", "token" if h == 0 else ""),
                )
                for h, one in enumerate(kept[:most])
            ]
        )
    caption = (
        "phi(k) of every key, less a factor for each where the map is an exponential: a token is "
        "read by what its features have in common with those of a query. Features a head, layer "
        f"by layer: {', '.join(map(str, sizes))}.{_left_out(found, most)}"
    )
    return draw_panels(rows, caption, "feature", wide=True, signed=signed)


def _kernels(
    found: dict[str, tuple[Tensor, Tensor]],
    causal: bool,
    labels: Sequence[str] | None,
    most: int | None,
) -> Figure:
    """Two rows of panels a layer, one panel a head: weights by features, and the kernel's."""
    rows = []
    apart: list[float] = []
    even: list[float] = []
    signed = any(bool((made < 0).any()) for made, _ in found.values())
    for path, (made, exact) in list(found.items())[:most]:
        seen = (exact > 0).float()
        plain = seen / seen.sum(-1, keepdim=True).clamp(min=1)
        for distances, other in ((apart, made), (even, plain)):
            distances.append(float((other - exact).abs().sum(-1).mean() / 2))
        for maps, name in ((made, "by features"), (exact, "exact")):
            rows.append(
                [
                    Panel(
                        layer_title(path, f"head {h + 1}" if len(maps) > 1 else ""),
                        _past(one, causal),
                        ("", name if h == 0 else ""),
                    )
                    for h, one in enumerate(maps[:most])
                ]
            )
    caption = (
        "By features: the weights that products of features make. Exact: those of the kernel that "
        "random features estimate; of a map that estimates none, of softmax with the same queries "
        "and keys. Share of a row's weight that lies elsewhere, layer by layer: "
        f"{', '.join(f'{d:.0%}' for d in apart)}; with equal weights in place of features "
        f"{', '.join(f'{d:.0%}' for d in even)}."
        f"{_left_out({path: made for path, (made, _) in found.items()}, most)}"
    )
    return draw_panels(rows, caption, "weight", signed=signed, labels=labels)


def _position_bias(
    now: dict[str, Tensor], old: dict[str, Tensor], causal: bool, most: int | None
) -> dict[str, Figure]:
    """The learned w of every layer, averaged over heads and head by head."""
    rows = []
    for path, bias in list(now.items())[:most]:
        panels = _mean_and_heads(path, bias, causal, most)
        rows.append(panels)
    spread = {path: toeplitz_share(bias, causal) for path, bias in now.items()}
    if all(bias.shape[0] == 1 for bias in now.values()):
        rows = wrapped([panel for row in rows for panel in row], 4)
    grown = ""
    if now.keys() == old.keys():
        sizes = [float(now[path].std() / old[path].std()) for path in now]
        grown = f" Its spread grew {', '.join(f'{size:.1f}' for size in sizes)} fold in training."
    caption = (
        "w[t, t'] by layer: how much the token in the column adds to its weight in the row's "
        f"average (red) or loses (blue), whatever the tokens are.{grown} Part of the variance that "
        f"the distance alone explains: {', '.join(f'{r:.0%}' for r in spread.values())}."
        f"{_left_out(now, most)}"
    )
    return {"position-bias": draw_panels(rows, caption, "bias (nats)", signed=True)}


def _spatial(
    now: dict[str, Tensor], old: dict[str, Tensor], causal: bool, most: int | None
) -> dict[str, Figure]:
    """SGU matrices at the start (first row) and after training, a column a layer."""
    single = all(weight.shape[0] == 1 for weight in now.values())
    groups = [list(now)[:most]] if single else [[path] for path in list(now)[:most]]
    figures = {}
    for group in groups:
        trained = [p for path in group for p in _mean_and_heads(path, now[path], causal, most)]
        rows, both = [trained], all(path in old for path in group)
        if both:
            first = [p for path in group for p in _mean_and_heads(path, old[path], causal, most)]
            rows = [
                [Panel(p.title, p.values, ("", when if n == 0 else "")) for n, p in enumerate(row)]
                for when, row in (("start", first), ("trained", trained))
            ]
        explained = ", ".join(f"{toeplitz_share(now[path], causal):.0%}" for path in group)
        caption = (
            "W: how much of the token in the column enters the gate of the token in the row"
            + ("; the two rows have colour scales of their own" if both else "")
            + f". Part of the variance that the distance alone explains (100%: Toeplitz): "
            f"{explained}.{_left_out(now, most) if single else ''}"
        )
        name = "spatial" if single else f"spatial-{_layer(group[0])}"
        figures[name] = draw_panels(rows, caption, "W", signed=True, by_row=both)
    return figures


def _mean_and_heads(path: str, maps: Tensor, causal: bool, most: int | None) -> list[Panel]:
    mean = _past(maps.float().mean(0), causal)
    if maps.shape[0] == 1:
        return [Panel(layer_title(path, ""), mean)]
    heads = [
        Panel(layer_title(path, f"head {h + 1}"), _past(one.float(), causal))
        for h, one in enumerate(maps[:most])
    ]
    return [Panel(layer_title(path, "mean"), mean), *heads]


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


def _past(values: Tensor, causal: bool) -> np.ndarray:
    """What a causal mixer cannot see is left blank."""
    shown = values.detach().float().cpu().clone()
    if causal:
        later = torch.ones_like(shown, dtype=torch.bool).triu(1)
        shown = shown.masked_fill(later, float("nan"))
    return shown.numpy()


def _layer(path: str) -> str:
    number = next((part for part in path.split(".") if part.isdigit()), None)
    return path if number is None else f"layer-{int(number) + 1}"


def layer_title(path: str, rest: str) -> str:
    """``rest`` behind the layer that a module's path names."""
    return ", ".join(filter(None, (_layer(path).replace("-", " "), rest)))


def _left_out(found: dict[str, Tensor], most: int | None) -> str:
    layers, heads = len(found), max(kept.shape[0] for kept in found.values())
    if most is None or max(layers, heads) <= most:
        return ""
    return f" The first {most} of {layers} layers and {heads} heads at most are drawn."
