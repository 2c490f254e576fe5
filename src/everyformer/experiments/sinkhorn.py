"""Sparse Sinkhorn attention: what lies in a far block is sorted in, and how sharply."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.trace import trace
from everyformer.experiments.base import Outcome, Study, experiment, scored_accuracy
from everyformer.experiments.figures import panels, plot
from everyformer.models.build import create_model

BLOCK, SYMBOLS = 8, 16
DISTANCE = 4 * BLOCK
"""from a gap to the symbol that belongs there"""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sinkhorn": ("sinkhorn", {"block_size": BLOCK}),
    "attention, window 9": ("attention", {"window": BLOCK + 1}),
}
"""both read 2 s keys a query, give or take one"""
MARGIN = 0.3


def gaps(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of 32 symbols and 32 gaps; each gap is to be filled with the symbol 32 before."""
    symbols = torch.randint(0, SYMBOLS, (32, DISTANCE), generator=generator)
    inputs = torch.cat([symbols, torch.full_like(symbols, SYMBOLS)], 1)
    return inputs, torch.cat([torch.full_like(symbols, -100), symbols], 1)


@experiment(
    "one layer (both ways) copies at least 30% more symbols of a block that is out of a "
    "window's reach than local attention with as many keys a query, and the rows of P lose "
    "entropy",
    members=("sinkhorn",),
    minutes=4,
)
def far_block(study: Study) -> Outcome:
    """Copying 32 symbols in one layer whose queries read 16 keys: the nearest, or 8 sorted in."""
    study.order(ARMS)
    curves: dict[str, list[float]] = {}
    matrices: list[Tensor] = []
    for name, (member, options) in study.each(ARMS.items()):
        inputs, targets = gaps(torch.Generator().manual_seed(1000 + study.seed))
        model = create_model(
            member, "mlm", width=64, layers=1, heads=4, vocabulary=SYMBOLS + 1,
            max_length=2 * DISTANCE, position="learned", **options,
        )  # fmt: skip
        start = sort_matrices(model, inputs) if name == "sinkhorn" else None
        curves[name] = study.fit(model, gaps, 1000, lr=3e-3)
        study.keep(name, scored_accuracy(model, inputs, targets), "{:.1%}")
        if start is not None:
            after = sort_matrices(model, inputs)
            study.keep("entropy of P at the start, nats", entropy(start))
            study.keep("entropy of P, nats", entropy(after))
            matrices = [start[0], after[0]]
    numbers = study.numbers
    found, local, before, trained = study.means().values()
    sentence = (
        f"One layer of Sinkhorn attention with blocks of {BLOCK} fills in {found:.1%} of the gaps "
        f"whose symbols stand {DISTANCE} tokens before, attention to the {2 * BLOCK + 1} nearest "
        f"tokens {local:.1%}. The entropy of a row of P goes from {before:.2f} to {trained:.2f} "
        "nats."
    )
    entropies = (numbers[f"entropy of P{when}, nats"] for when in (" at the start", ""))
    sharper = all(a > b for a, b in zip(*entropies, strict=True))
    holds = sharper and min(numbers["sinkhorn"]) > local + MARGIN
    figure, [losses, *axes] = panels(1 + 2 * len(matrices), (10, 3))
    plot(losses, curves)
    drawn = itertools.product(zip(("start", "trained"), matrices, strict=True), range(2))
    for axis, ((when, p), head) in zip(axes, drawn, strict=True):
        axis.imshow(p[head].numpy(), vmin=0, vmax=1, cmap="viridis")
        axis.set(title=f"P, {when}, head {head + 1}", xlabel="block sorted in")
    return Outcome(numbers, holds, sentence, {"sorting": figure})


@torch.no_grad()
def sort_matrices(model: nn.Module, inputs: Tensor) -> Tensor:
    """P (B, H, N, N) of the first layer."""
    model.eval()
    with trace(model) as traced:
        model(inputs)
    return next(iter(traced.find("sort").values()))


def entropy(p: Tensor) -> float:
    """Mean entropy in nats of the rows of ``p``."""
    return float(-torch.special.xlogy(p, p).sum(-1).mean())
