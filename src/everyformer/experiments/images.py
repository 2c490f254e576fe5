"""CIFAR-10 (JPEG), small: the gMLP set-up of 17 tokens, and three mixers side by side."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from everyformer.core.trace import trace
from everyformer.data.dataset import Dataset
from everyformer.experiments.base import Outcome, Study, experiment, fitting, load
from everyformer.experiments.figures import panels, plot, plot_matrix

BATCH, GMLP_STEPS, MIXER_STEPS = 32, 1500, 600
WANTS = "CIFAR-10 as a folder or zip of train/CLASS/*.png (or jpg) and test/CLASS/*.png"


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
        model = fitting(
            data, "gmlp", width=128, layers=3, patch=8, pooling="class", position="learned",
            std=0.0, embedding_dropout=0.1, head_hidden=256, sgu_heads=4, spatial_init="wide",
        )  # fmt: skip
        if seed == 0:
            figures["start"] = _matrices(model, "W at the start")
        study.fit(model, (data, BATCH), GMLP_STEPS, lr=1e-3, weight_decay=0.01)
        if seed == 0:
            figures["learned"] = _matrices(model, "W after training")
        for part in ("train", "test"):
            for k, share in enumerate(_top(model, data, part), start=1):
                study.keep(f"top-{k} {part}", share)
        numbers = study.numbers
        listed = " train, ".join(
            f"{numbers[f'top-1 {part}'][-1]:.1%}" for part in ("train", "test")
        )
        study.say(f"top-1 {listed} test")
    names = ("top-1 train", "top-1 test", "top-5 test")
    train, test, five = (study.mean(name) for name in names)
    epochs = study.steps(GMLP_STEPS) * BATCH / 20000
    sentence = (
        f"CIFAR-10 (JPEG), 2,000 training images a class, width 128, 3 layers, {epochs:.1f} "
        f"epochs: top-1 {test:.1%} and top-5 {five:.1%} on the test images, top-1 {train:.1%} on "
        "the training images; the gap is the overfitting that the set-up is known for."
    )
    return Outcome(numbers, test > 0.35 and train > test, sentence, figures)


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
    for name, options in study.each(_SIDE_BY_SIDE.items()):
        model = fitting(data, name, width=96, heads=4, patch=4, **options)
        sizes[name] = sum(p.numel() for p in model.parameters())
        study.fit(model, (data, BATCH), MIXER_STEPS, lr=1e-3, weight_decay=0.05)
        top = _top(model, data, "test")[0]
        study.keep(f"{name} top-1", top)
        reach[name] = _distances(model, data)
        study.say(f"{name} {top:.1%}")
    shares = {name: study.mean(f"{name} top-1") for name in sizes}
    listed = ", ".join(f"{n} {s:.1%} ({sizes[n]:,} parameters)" for n, s in shares.items())
    sentence = f"CIFAR-10 (JPEG), {study.steps(MIXER_STEPS)} steps of {BATCH}: test top-1 {listed}."
    labels: dict[str, Any] = {"xlabel": "layer", "ylabel": "mean distance that is read (patches)"}
    figure, [axis] = panels()
    for name, far in reach.items():
        plot(axis, {name: far}, range(1, len(far) + 1), **labels)
    spread = max(shares.values()) - min(shares.values())
    return Outcome(study.numbers, spread < 0.10, sentence, {"distance": figure})


_SIDE_BY_SIDE: dict[str, dict] = {
    "vit": {"layers": 4},
    "gmlp": {"layers": 8},
    "aft-conv": {"layers": 4, "dims": 2, "kernel": 5},
}


@torch.no_grad()
def _top(model: nn.Module, data: Dataset, part: str) -> list[float]:
    """Share of images whose class is among the 1 to 5 likeliest."""
    if part == "test":
        batches = list(data.validation_batches(100))
    else:
        batches = [data.train_batch(step, 100, 12345) for step in range(20)]
    hits, total = torch.zeros(5), 0
    for batch in batches:
        best = model(batch.inputs).logits.topk(5).indices
        found = best == batch.targets[:, None]
        hits += torch.stack([found[:, :k].any(1).sum() for k in range(1, 6)])
        total += len(batch.targets)
    return (hits / total).tolist()


def _matrices(model: nn.Module, title: str) -> Figure:
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
def _distances(model: nn.Module, data: Dataset) -> list[float]:
    """Mean distance, in patches, that each layer looks over: weights' size times distance."""
    batch = next(iter(data.validation_batches(16, 16)))
    with trace(model) as seen:
        model(batch.inputs)
    found = []
    for kept in seen.records.values():
        matrix = (kept["weights"] if "weights" in kept else kept["spatial"])[-1].abs()
        matrix = matrix.reshape(-1, *matrix.shape[-2:]).mean(0)
        extra = matrix.shape[0] - math.isqrt(matrix.shape[0]) ** 2
        matrix = matrix[extra:, extra:]
        side = math.isqrt(matrix.shape[0])
        at = torch.arange(side * side)
        cells = torch.stack((at // side, at % side), 1).float()
        distance = torch.cdist(cells, cells)
        found.append(float((matrix * distance).sum() / matrix.sum()))
    return found
