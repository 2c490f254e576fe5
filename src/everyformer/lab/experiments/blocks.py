"""Blocks: what lies in a far one is sorted in, and how sharply (Sinkhorn); what n of them save and
lose, and what shifted heads give (blockwise attention)."""

from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.trace import trace
from everyformer.genes.mixers.patterned import PatternAttention
from everyformer.lab.experiments.figures import Bars, Lines, Matrices
from everyformer.lab.experiments.measures import held_out, load, scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_mixer, create_model
from sequence_laws.flops import count_flops

BLOCK, SYMBOLS = 8, 16
DISTANCE = 4 * BLOCK
"""from a gap to the symbol that belongs there"""
COPIER: dict[str, Any] = {
    "width": 64, "layers": 1, "heads": 4, "vocabulary": SYMBOLS + 1, "max_length": 2 * DISTANCE,
    "position": "learned",
}  # fmt: skip
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sinkhorn": ("sinkhorn", {"block_size": BLOCK}),
    "attention, window 9": ("attention", {"window": BLOCK + 1}),
}
"""both read 2 s keys a query, give or take one"""
MARGIN, NEAR = 0.3, 0.05


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
    matrices: dict[str, Tensor] = {}
    for name, (member, options) in study.each(ARMS.items()):
        test = study.fresh(gaps, 1000)
        model = create_model(member, "mlm", **COPIER, **options)
        if name == "sinkhorn":
            matrices["start"] = sort_matrices(model, test[0])
        study.fit(model, gaps, 1000, arm=name)
        study.keep(name, scored_accuracy(model, *test), "{:.1%}")
        if name == "sinkhorn":
            matrices["trained"] = sort_matrices(model, test[0])
            study.keep("entropy of P at the start, nats", entropy(matrices["start"]))
            study.keep("entropy of P, nats", entropy(matrices["trained"]))
    sentence = (
        f"One layer of Sinkhorn attention with blocks of {BLOCK} fills in [sinkhorn|.1%] of the "
        f"gaps whose symbols stand {DISTANCE} tokens before, attention to the {2 * BLOCK + 1} "
        "nearest tokens [attention, window 9|.1%]. The entropy of a row of P goes from "
        "[entropy of P at the start, nats|.2f] to [entropy of P, nats|.2f] nats."
    )
    filled, local, before, after = study.numbers.values()
    sharper = all(a > b for a, b in zip(before, after, strict=True))
    holds = sharper and min(filled) > sum(local) / len(local) + MARGIN
    drawn = {
        f"P, {when}, head {head + 1}": p[0, head] for when, p in matrices.items() for head in (0, 1)
    }
    figure = Lines(study.losses), Matrices(drawn, ("block sorted in", ""))
    return study.outcome(holds, sentence, sorting=figure)


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


COUNTS = (1, 2, 4, 8)
"""n of the layers whose cost is counted"""
LENGTH, WIDTH, HEADS = 2048, 64, 4
MASKED = "masked text, n={}"
COPIERS: dict[str, dict[str, Any]] = {
    "copied, 3 heads stay, 1 shifts": {"groups": (3, 1)},
    "copied, all heads stay": {"groups": (4,)},
}


@experiment(
    "a layer makes 1 / n of attention's scores; masked models with 2 and 3 blocks lose at most "
    "5% more; one shifted head of four copies at least 30% more symbols of the other block "
    "than heads that all stay",
    members=("blockwise",),
    minutes=8,
)
def blocks(study: Study) -> Outcome:
    """Scores and operations of a layer; masked models of n blocks; copying across blocks."""
    scores = {n: scores_of(n) for n in COUNTS}
    data = load("mlm", source="stdlib", length=192)
    arms = {MASKED.format(n): {"blocks": n} for n in (1, 2, 3)}
    sizes: dict[str, Any] = {
        "member": "blockwise", "width": 96, "layers": 3, "heads": 6, "position": "learned",
    }  # fmt: skip
    study.measure(
        arms, (data, 16), 500, lambda model: held_out(model, data, "loss", limit=256),
        "{:.3f} nats a hidden byte", **sizes,
    )  # fmt: skip
    sizes = {"member": "blockwise", "task": "mlm", "blocks": 2, **COPIER}
    study.measure(
        COPIERS, gaps, 600, lambda model: scored_accuracy(model, *study.fresh(gaps, 1000)), **sizes
    )
    pairs, operations = scores[1]
    shares = ", ".join(
        f"{scores[n][0] / pairs:.1%} and {scores[n][1] / operations:.0%} with {n}"
        for n in COUNTS[1:]
    )
    moved, stayed = COPIERS
    sentence = (
        f"Of attention's scores and operations a layer of {LENGTH:,} tokens (width {WIDTH}) makes "
        f"{shares} blocks. Masked models lose [masked text, n=1|.3f] nats a hidden byte with one "
        "block, [masked text, n=2|.3f] with two and [masked text, n=3|.3f] with three. Of symbols "
        f"in the other block a layer copies [{moved}|.1%] where one head of four shifts, "
        f"[{stayed}|.1%] where none does."
    )
    whole, two, three = study.series(MASKED, (1, 2, 3))
    inverse = all(scores[n][0] * n == pairs for n in COUNTS)
    close = max(two, three) < whole * (1 + NEAR)
    apart = min(study.numbers[moved]) > study.mean(stayed) + MARGIN
    cost: dict[str, list[float]] = {
        label: [scores[count][n] / scores[1][n] for count in COUNTS]
        for n, label in enumerate(("scores", "operations"))
    }
    cost["1 / n"] = [1 / n for n in COUNTS]
    text = {f"n={n}": study.numbers[MASKED.format(n)] for n in (1, 2, 3)}
    copied = {name.removeprefix("copied, "): study.numbers[name] for name in COPIERS}
    figure = (
        Lines(cost, COUNTS, ("blocks n", "share of attention's"), limits=(0, 1.05)),
        Bars(text, "nats a hidden byte", near=True),
        Bars(copied, "share copied"),
    )
    return study.outcome(inverse and close and apart, sentence, cost=figure)


def scores_of(blocks: int) -> tuple[int, int]:
    """Scores, and floating-point operations forward, of a layer with n ``blocks``."""
    mixer = create_mixer(
        "blockwise", width=WIDTH, heads=HEADS, max_length=LENGTH, blocks=blocks, backend="blocked"
    )
    assert isinstance(mixer, PatternAttention)
    with torch.no_grad():
        operations = count_flops(lambda: mixer(torch.zeros(1, LENGTH, WIDTH)))
    return mixer.plan(LENGTH).pairs(LENGTH, HEADS), operations
