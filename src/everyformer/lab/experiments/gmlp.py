"""gMLP and aMLP: what the spatial matrix learns, what it cannot align, and three mixers side by
side on CIFAR-10 (JPEG)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.trace import trace
from everyformer.data.dataset import Dataset
from everyformer.lab.experiments.figures import Bars, Lines, Matrices
from everyformer.lab.experiments.measures import accuracy, held_out, load, model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model

BATCH, MIXER_STEPS = 32, 600
WANTS = "CIFAR-10 as a folder or zip of train/CLASS/*.png (or jpg) and test/CLASS/*.png"
SIDE_BY_SIDE: dict[str, dict] = {
    "vit": {"layers": 4},
    "gmlp": {"layers": 8},
    "aft-conv": {"layers": 4, "dims": 2, "kernel": 5},
}


@experiment(
    "ViT, gMLP and AFT-conv of about equal size are within 10 points of top-1 of each other",
    members=("vit", "aft-conv"),
    minutes=25,
    data=WANTS,
)
def cifar_mixers(study: Study) -> Outcome:
    """ViT, gMLP and AFT-conv of the same width on 64 patches: accuracy, and how far they look."""
    data = load("classify-image", source=study.source)
    sizes: dict[str, int] = {}
    reach: dict[str, list[float]] = {}
    for name, options in study.each(SIDE_BY_SIDE.items()):
        model = model_for(data, name, width=96, heads=4, patch=4, **options)
        sizes[name] = sum(p.numel() for p in model.parameters())
        study.fit(model, (data, BATCH), MIXER_STEPS, lr=1e-3, weight_decay=0.05)
        share = held_out(model, data, "accuracy", batch=100)
        study.keep(f"{name} top-1", share)
        reach[name] = distances(model, data)
        study.say(f"{name} {share:.1%}")
    shares = {name: study.mean(f"{name} top-1") for name in sizes}
    each = ", ".join(f"{n} {s:.1%} ({sizes[n]:,} parameters)" for n, s in shares.items())
    sentence = f"CIFAR-10 (JPEG), {study.steps(MIXER_STEPS)} steps of {BATCH}: test top-1 {each}."
    labels = "layer", "mean distance that is read (patches)"
    layers = {name: range(1, len(far) + 1) for name, far in reach.items()}
    spread = max(shares.values()) - min(shares.values())
    return study.outcome(spread < 0.10, sentence, distance=Lines(reach, layers, labels))


@torch.no_grad()
def distances(model: nn.Module, data: Dataset) -> list[float]:
    """Mean distance, in patches, that each layer looks over: weights' size times distance."""
    batch = next(iter(data.validation_batches(16, 16)))
    with trace(model) as traced:
        model(batch.inputs)
    means = []
    for record in traced.records.values():
        matrix = (record["weights"] if "weights" in record else record["spatial"])[-1].abs()
        matrix = matrix.reshape(-1, *matrix.shape[-2:]).mean(0)
        side = math.isqrt(matrix.shape[0])
        extra = matrix.shape[0] - side**2
        matrix = matrix[extra:, extra:]
        at = torch.arange(side * side)
        cells = torch.stack((at // side, at % side), 1).float()
        means.append(float((matrix * torch.cdist(cells, cells)).sum() / matrix.sum()))
    return means


SYMBOLS, LENGTH = 8, 24


@experiment(
    "the learned W of the first layer is Toeplitz (R^2 > 0.85) on a shift-invariant task that "
    "is solved",
    members=("gmlp",),
    minutes=1,
)
def toeplitz(study: Study) -> Outcome:
    """y_t = (2 x_(t-1) + x_(t+2)) mod 8: the same rule everywhere, so W should be Toeplitz."""
    study.order(("accuracy", "Toeplitz R^2"))
    learned: list[Tensor] = []
    for _ in study.seeds():
        model = create_model(
            "gmlp", "classify-text", width=48, layers=2, vocabulary=SYMBOLS, classes=SYMBOLS,
            max_length=LENGTH,
        )  # fmt: skip
        study.keep("R^2 at the start", toeplitz_share(first_matrix(model)[1:-2, 1:-2]))
        losses = study.fit(model, sums, 600, loss_of=token_loss)
        inputs, targets = sums(torch.Generator().manual_seed(11))
        right = (token_logits(model, inputs).argmax(-1) == targets)[targets != -100]
        study.keep("accuracy", float(right.float().mean()))
        learned.append(first_matrix(model))
        explained = toeplitz_share(learned[-1][1:-2, 1:-2])
        study.keep("Toeplitz R^2", explained)
        study.say(f"loss {losses[-1]:.3f}, R^2 {explained:.3f}")
    diagonals = diagonal_means(learned[0][1:-2, 1:-2])
    order = sorted(diagonals, key=lambda n: -abs(diagonals[n]))[:2]
    share, solved = min(study.numbers["Toeplitz R^2"]), min(study.numbers["accuracy"])
    sentence = (
        f"After training, diagonal means explain at least {share:.3f} of the variance of W in the "
        "first layer among the scored positions (at the start [R^2 at the start|.2f]); accuracy is "
        f"at least {solved:.1%}; the largest diagonals read offsets {order[0]:+d} and "
        f"{order[1]:+d}."
    )
    figure = Matrices({"learned W, layer 0": learned[0]}, ("input position", "output position"))
    return study.outcome(share > 0.85 and solved > 0.95, sentence, matrix=figure)


def sums(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random symbols and the sums of `toeplitz`; those without a neighbour are not scored."""
    x = torch.randint(0, SYMBOLS, (64, LENGTH), generator=generator)
    y = (2 * x.roll(1, 1) + x.roll(-2, 1)) % SYMBOLS
    y[:, :1] = -100
    y[:, -2:] = -100
    return x, y


def token_logits(model: Any, inputs: Tensor) -> Tensor:
    """Logits at every position of a bidirectional model that classifies texts."""
    logits: Tensor = model.pool.head(model.stack(model.embedding(inputs)).y)
    return logits


def token_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss over the scored positions."""
    logits = token_logits(model, inputs)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def first_matrix(model: Any) -> Tensor:
    """W of the first layer's first head; all but its first and last two positions are scored."""
    matrix: Tensor = model.stack.blocks[0].mixer.matrix(LENGTH)[0].detach()
    return matrix


def toeplitz_share(matrix: Tensor) -> float:
    """Share of the variance of the entries that the means of the diagonals explain."""
    at = torch.arange(matrix.shape[0])
    means = diagonal_means(matrix)
    fitted = torch.tensor([[means[int(j - i)] for j in at] for i in at])
    total = (matrix - matrix.mean()).square().sum()
    return float(1 - (matrix - fitted).square().sum() / total)


def diagonal_means(matrix: Tensor) -> dict[int, float]:
    """Mean of each diagonal by its offset: input position minus output position."""
    n = matrix.shape[0]
    return {k: float(matrix.diagonal(k).mean()) for k in range(-n + 1, n)}


@experiment(
    "aMLP recalls at least 20 points more associations than gMLP", members=("amlp",), minutes=6
)
def alignment(study: Study) -> Outcome:
    """Associative recall: pairs stand elsewhere in every text, so a static matrix cannot align."""
    rows = ("length=32", "symbols=34", "pairs=8", "power=1", "fillers=false")
    data = load(source="mqar", options=rows)
    arms = {"gmlp": {}, "amlp": {"attention_dim": 32}}
    study.measure(
        arms, (data, 64), 1500, lambda model: accuracy(model, data), lr=2e-3, width=64, layers=3
    )
    m = study.means()
    sentence = (
        "With 8 associations gMLP recalls [gmlp|.1%] of the values and aMLP, with one tiny head "
        "of 32 channels a layer, [amlp|.1%]."
    )
    figure = Bars(study.numbers, "values recalled", top=1)
    return study.outcome(m["amlp"] > m["gmlp"] + 0.2, sentence, recall=figure)
