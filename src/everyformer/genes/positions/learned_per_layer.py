"""Learned absolute positions of every layer: a table of its own is added before each of them.

    h_in^(n) = h^(n-1) + P^(n)[position],      P^(n) in R^(max_length x width),  n = 1 .. N

It is added to the residual stream itself, so what one layer adds reaches all that follow. The
tables fix the longest sequence; asking beyond them is an error, never a wrap. Rows of unused
positions get no gradient.

Source: Al-Rfou et al. 2018, arXiv 1808.04444, section "Positional Embeddings". Start:
N(0, 0.02^2), ours. Cost: N max_length width parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount
from everyformer.core.config import Options
from everyformer.core.panels import Panel, Panels, Pictures
from everyformer.core.position import Position
from everyformer.core.trials import Make, Pair, Trials
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions._tables import TablePosition


@dataclass(frozen=True)
class LearnedPerLayerOptions(Options):
    """Options of `LearnedPerLayer`."""

    std: Annotated[Amount, Affects("nothing")] = 0.02
    """standard deviation of the tables at the start (0 starts from zeros)"""
    gone: ClassVar[dict[str, Any]] = {"align": "start"}


def _limits(make: Make) -> list[Pair]:
    """Zeros in all tables but the first are positions added to the embeddings."""
    each, once = make.model("learned-per-layer", layers=3), make.model("learned", layers=3)
    each.load_state_dict(once.state_dict(), strict=False)
    with torch.no_grad():
        for n in range(3):
            table = once.get_parameter("position.table")
            each.get_parameter(f"stack.before.{n}.table").copy_(table * (n == 0))

    def run(model: nn.Module, x: Tensor) -> Tensor:
        tokens = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        logits: Tensor = model(tokens, embeddings=x).logits
        return logits

    return [("tables of zero but the first: learned", partial(run, each), partial(run, once))]


@POSITIONS.register("learned-per-layer")
class LearnedPerLayer(TablePosition):
    """Learned positions of one layer: a trained row each, added to its input; needs ``max_length``.

    A stack has one a layer.
    """

    name = "learned-per-layer"
    trials = Trials(limits=_limits)
    acts_on = "layers"
    holds = "tables"
    Options = LearnedPerLayerOptions
    options: LearnedPerLayerOptions

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        tables = [layer.table.detach() for layer in layers if isinstance(layer, LearnedPerLayer)]
        return {"encodings": lambda: _panels([table[:length].float().cpu() for table in tables])}


def _panels(tables: list[Tensor]) -> Panels:
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
    return Panels(rows, caption, "value", signed=True, wide=True)
