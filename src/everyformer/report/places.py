"""How order enters a model and who may see whom: encodings, rotations, masks."""

from __future__ import annotations

from typing import cast

import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.blocks.block import Block
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.trace import Trace
from everyformer.engines.softmax.visibility import visibility
from everyformer.mixers._patterned import PatternAttention
from everyformer.mixers.attention import Attention
from everyformer.mixers.etc import ETC
from everyformer.models.base import Model
from everyformer.positions import POSITIONS
from everyformer.positions._scores import ScorePosition
from everyformer.positions.axial import Axial
from everyformer.positions.learned import Learned
from everyformer.positions.learned_per_layer import LearnedPerLayer
from everyformer.positions.rope import Rope
from everyformer.positions.sinusoidal import Sinusoidal
from everyformer.report.heatmaps import Panel, draw_panels, wrapped
from everyformer.report.inside import layer_title
from everyformer.report.plans import draw_global_local, draw_plans
from everyformer.report.style import HIGH, WIDE, styled

LONGEST_MASK = 16
TERMS = ("a: content", "b: distance by content", "c: the key's own", "d: the distance's own")
"""of Transformer-XL's scores, in the order in which they are recorded"""


def draw_encodings(model: Model, length: int | None) -> dict[str, Figure]:
    """What is added to the embeddings, or before every layer; nothing if nothing is."""
    if model.stack.before is not None:
        tables = [cast(LearnedPerLayer, p).table.detach() for p in model.stack.before]
        return {"encodings": _tables([table[:length].float().cpu() for table in tables])}
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


def _tables(tables: list[Tensor]) -> Figure:
    """One row of panels a layer."""
    sizes = ", ".join(f"{table.norm(dim=-1).mean().item():.2g}" for table in tables)
    caption = (
        f"The learned vectors that are added before every layer, for {len(tables[0])} positions "
        f"(rows of a panel). Their mean norms, layer by layer: {sizes}."
    )
    rows = [
        [Panel(f"layer {n + 1}", table.numpy(), ("channel", "position"))]
        for n, table in enumerate(tables)
    ]
    return draw_panels(rows, caption, "value", signed=True, wide=True)


def score_positions(model: Model) -> dict[str, ScorePosition]:
    """Positions that act on scores by module path, one that layers share once."""
    found = {path: m for path, m in model.named_modules() if isinstance(m, ScorePosition)}
    return {
        path: position for path, position in found.items() if position.name in POSITIONS.names()
    }


@styled
def draw_distances(model: Model, length: int | None) -> dict[str, Figure]:
    """What heads know of distances whatever the tokens are, as curves; nothing if nothing."""
    count = length or 64
    first = 0 if model.config.causal else 1 - count
    distance = torch.arange(first, count)
    there = distance.to(next(model.parameters()).device)
    found = []
    for path, position in score_positions(model).items():
        with torch.no_grad():
            curve = position.curve(there)
        if curve is not None:
            found.append((path, *curve))
    if not found:
        return {}
    figure = Figure(figsize=(WIDE, HIGH * len(found)), layout="constrained")
    places = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for place, (path, name, curves) in zip(places, found, strict=True):
        for head, curve in enumerate(curves):
            place.plot(distance, curve.cpu(), label=f"head {head + 1}")
        title = layer_title(path, "") if len(found) > 1 else ""
        place.set(ylabel=name, title=title)
    places[0].legend(fontsize=7, ncols=2)
    places[-1].set_xlabel("distance (positive: to the past)")
    figure.set_label(
        f"What the distance alone does to scores, head by head, up to {count - 1} tokens."
    )
    return {"distances": figure}


def draw_terms(traced: Trace, causal: bool, most: int | None) -> dict[str, Figure]:
    """The four terms of Transformer-XL's scores, a row a layer; nothing where there are none."""
    rows, shares = [], []
    for path, terms in list(traced.find("terms").items())[:most]:
        each = terms[0].float().cpu()
        seen = torch.ones(each.shape[-2:], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        spread = each[..., seen].std(-1)
        head = int(spread[1].argmax())
        shares.append(f"{float(spread[1:].square().sum() / spread.square().sum()):.0%}")
        shown = each[:, head].masked_fill(~seen, float("nan")).numpy()
        rows.append(
            [
                Panel(f"{layer_title(path, f'head {head + 1}')}\n{name}" if n == 0 else name, term)
                for n, (name, term) in enumerate(zip(TERMS, shown, strict=True))
            ]
        )
    if not rows:
        return {}
    caption = (
        "The four terms of a score, of the head of each layer that leans most on (b): the token of "
        "the row reads that of the column. Part of the variance of all heads that is not due to "
        f"content alone, layer by layer: {', '.join(shares)}."
    )
    return {"terms": draw_panels(rows, caption, "score", signed=True)}


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
    if rope.theta is not None:
        theta = rope.theta.detach().cpu().double()
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
    patterned = [mixer for mixer in mixers if isinstance(mixer, PatternAttention)]
    if patterned:
        return draw_plans(patterned, length)
    for mixer in mixers:
        if isinstance(mixer, ETC):
            return draw_global_local(mixer)
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
            shown = torch.ones(size, size)
            if seen is not None:
                shown = seen[0, 0].float().expand(size, size)
            panels.append(Panel(name + title, shown.numpy(), ("is read", "reads")))
    caption = f"Dark: the token of the row may read that of the column; {size} tokens."
    rows = wrapped(panels, max(2, len(cases)))
    return {"masks": draw_panels(rows, caption, None)}


def _kinds(mixer: Mixer) -> list[tuple[str, bool, int | None]]:
    """Title, causality and window of each different kind of head."""
    kinds = []
    windows = mixer.windows if isinstance(mixer, Attention) else (None,)
    for window in dict.fromkeys(windows):
        name = "causal" if mixer.causal else "all"
        kinds.append((name if window is None else f"window {window}", mixer.causal, window))
    return kinds
