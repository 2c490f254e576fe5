"""gMLP and aMLP: what the spatial matrix learns, what it cannot align, and CIFAR-10 (JPEG), small:
the set-up of 17 tokens, and three mixers side by side."""

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from everyformer.core.trace import trace
from everyformer.data.dataset import Dataset
from everyformer.lab.experiments.figures import bars, panels, plot, plot_matrix
from everyformer.lab.experiments.measures import accuracy, load, model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model

BATCH, GMLP_STEPS, MIXER_STEPS = 32, 1500, 600
WANTS = "CIFAR-10 as a folder or zip of train/CLASS/*.png (or jpg) and test/CLASS/*.png"
SIDE_BY_SIDE: dict[str, dict] = {
    "vit": {"layers": 4},
    "gmlp": {"layers": 8},
    "aft-conv": {"layers": 4, "dims": 2, "kernel": 5},
}


@experiment(
    "17 tokens reach over 35% top-1 at a small size, and training accuracy lies above test",
    members=("gmlp",),
    minutes=12,
    data=WANTS,
)
def cifar_gmlp(study: Study) -> Outcome:
    """Patch 8, 16 patches and a class token, learned positions, dropout, 4 heads of W, f = 4 d."""
    data = load("classify-image", source=study.source)
    figures: dict[str, Figure] = {}
    for seed in study.seeds():
        model = model_for(
            data, "gmlp", width=128, layers=3, patch=8, pooling="class", position="learned",
            std=0.0, embedding_dropout=0.1, head_hidden=256, sgu_heads=4, spatial_init="wide",
        )  # fmt: skip
        if seed == 0:
            figures["start"] = matrices_figure(model, "W at the start")
        study.fit(model, (data, BATCH), GMLP_STEPS, lr=1e-3)
        if seed == 0:
            figures["learned"] = matrices_figure(model, "W after training")
        best = {part: top(model, data, part) for part in ("train", "test")}
        for part, shares in best.items():
            for k, share in enumerate(shares, start=1):
                study.keep(f"top-{k} {part}", share)
        study.say(f"top-1 {best['train'][0]:.1%} train, {best['test'][0]:.1%} test")
    epochs = study.steps(GMLP_STEPS) * BATCH / 20000
    sentence = (
        f"CIFAR-10 (JPEG), 2,000 training images a class, width 128, 3 layers, {epochs:.1f} "
        "epochs: top-1 [top-1 test|.1%] and top-5 [top-5 test|.1%] on the test images, top-1 "
        "[top-1 train|.1%] on the training images; the gap is the overfitting that the set-up is "
        "known for."
    )
    train, test = study.mean("top-1 train"), study.mean("top-1 test")
    return study.outcome(test > 0.35 and train > test, sentence, **figures)


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
        share = top(model, data, "test")[0]
        study.keep(f"{name} top-1", share)
        reach[name] = distances(model, data)
        study.say(f"{name} {share:.1%}")
    shares = {name: study.mean(f"{name} top-1") for name in sizes}
    each = ", ".join(f"{n} {s:.1%} ({sizes[n]:,} parameters)" for n, s in shares.items())
    sentence = f"CIFAR-10 (JPEG), {study.steps(MIXER_STEPS)} steps of {BATCH}: test top-1 {each}."
    labels = "layer", "mean distance that is read (patches)"
    figure, [axis] = panels()
    for name, far in reach.items():
        plot(axis, {name: far}, range(1, len(far) + 1), labels)
    spread = max(shares.values()) - min(shares.values())
    return study.outcome(spread < 0.10, sentence, distance=figure)


@torch.no_grad()
def top(model: nn.Module, data: Dataset, part: str) -> list[float]:
    """Share of images whose class is among the 1 to 5 likeliest."""
    if part == "test":
        batches = list(data.validation_batches(100))
    else:
        batches = [data.train_batch(step, 100, 12345) for step in range(20)]
    hits, total = torch.zeros(5), 0
    for batch in batches:
        right = model(batch.inputs).logits.topk(5).indices == batch.targets[:, None]
        hits += torch.stack([right[:, :k].any(1).sum() for k in range(1, 6)])
        total += len(batch.targets)
    return (hits / total).tolist()


def matrices_figure(model: nn.Module, title: str) -> Figure:
    """W of every layer: each head, and their mean (a picture, not an equivalent model)."""
    layers = [block.mixer.matrix(17).detach() for block in model.stack.blocks]  # type: ignore[union-attr]
    heads = len(layers[0])
    figure = Figure(figsize=(1.6 * (heads + 1), 1.7 * len(layers)), layout="tight")
    axes = figure.subplots(len(layers), heads + 1, squeeze=False)
    for row, matrices in zip(axes, layers, strict=True):
        for n, (axis, matrix) in enumerate(zip(row, [*matrices, matrices.mean(0)], strict=True)):
            plot_matrix(axis, matrix, xticks=[], yticks=[])
            axis.set_title("mean" if n == heads else f"head {n + 1}", fontsize=7)
    figure.suptitle(title)
    return figure


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
    figure, [axis] = panels(size=(4, 3.4))
    labels = {"xlabel": "input position", "ylabel": "output position"}
    image = plot_matrix(axis, learned[0], title="learned W, layer 0", **labels)
    figure.colorbar(image, ax=axis)
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
    data = load(source="recall", length=32, symbols=32, pairs=8)
    arms = {"gmlp": {}, "amlp": {"attention_dim": 32}}
    for name, model in study.models(arms, (data, 64), 1500, lr=2e-3, width=64, layers=3):
        study.keep(name, accuracy(model, data), "{:.1%}")
    m = study.means()
    sentence = (
        "With 8 associations gMLP recalls [gmlp|.1%] of the values and aMLP, with one tiny head "
        "of 32 channels a layer, [amlp|.1%]."
    )
    figure = bars(m, colours=("C0", "C1"), ylabel="values recalled", ylim=(0, 1))
    return study.outcome(m["amlp"] > m["gmlp"] + 0.2, sentence, recall=figure)
