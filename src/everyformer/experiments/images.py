"""CIFAR-10 (JPEG), small: the gMLP set-up of 17 tokens, and three mixers side by side."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import nn

from everyformer.core.trace import trace
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.experiments.base import Experiment, Outcome, Setting, Trials, mean
from everyformer.experiments.figures import lines
from everyformer.models.build import create_model

BATCH, GMLP_STEPS, MIXER_STEPS = 32, 1500, 600
WANTS = "CIFAR-10 as a folder or zip of train/CLASS/*.png (or jpg) and test/CLASS/*.png"


def cifar_gmlp(setting: Setting) -> Outcome:
    """Patch 8, 16 patches and a class token, learned positions, dropout, 4 heads of W, f = 4 d."""
    data = load_dataset(DataConfig(source=str(setting.data)), "classify-image")
    trials = Trials(setting, "cifar-gmlp")
    figures: dict[str, Figure] = {}
    for seed in trials.seeds():
        model = create_model(
            "gmlp", "classify-image", width=128, layers=3, image=data.image, patch=8,
            classes=len(data.classes), pooling="class", position="learned", std=0.0,
            embedding_dropout=0.1, head_hidden=256, sgu_heads=4, spatial_init="wide",
        )  # fmt: skip
        if seed == 0:
            figures["start"] = _matrices(model, "W at the start")
        trials.fit(model, (data, BATCH), GMLP_STEPS, lr=1e-3, weight_decay=0.01)
        if seed == 0:
            figures["learned"] = _matrices(model, "W after training")
        for part in ("train", "test"):
            for k, share in enumerate(_top(model, data, part), start=1):
                trials.keep(f"top-{k} {part}", share)
        numbers = trials.numbers
        shown = " train, ".join(f"{numbers[f'top-1 {part}'][-1]:.1%}" for part in ("train", "test"))
        trials.say(f"top-1 {shown} test")
    train, test = mean(numbers["top-1 train"]), mean(numbers["top-1 test"])
    five = mean(numbers["top-5 test"])
    epochs = setting.steps(GMLP_STEPS) * BATCH / 20000
    sentence = (
        f"CIFAR-10 (JPEG), 2,000 training images a class, width 128, 3 layers, {epochs:.1f} "
        f"epochs: top-1 {test:.1%} and top-5 {five:.1%} on the test images, top-1 {train:.1%} on "
        "the training images; the gap is the overfitting that the set-up is known for."
    )
    return Outcome(numbers, test > 0.35 and train > test, sentence, figures)


def cifar_mixers(setting: Setting) -> Outcome:
    """ViT, gMLP and AFT-conv of the same width on 64 patches: accuracy, and how far they look."""
    data = load_dataset(DataConfig(source=str(setting.data)), "classify-image")
    trials = Trials(setting, "cifar-mixers")
    sizes: dict[str, int] = {}
    reach: dict[str, list[float]] = {}
    for name, options in trials.each(_SIDE_BY_SIDE.items()):
        model = create_model(
            name, "classify-image", width=96, heads=4, image=data.image, patch=4,
            classes=len(data.classes), **options,
        )  # fmt: skip
        sizes[name] = sum(p.numel() for p in model.parameters())
        trials.fit(model, (data, BATCH), MIXER_STEPS, lr=1e-3, weight_decay=0.05)
        top = _top(model, data, "test")[0]
        trials.keep(f"{name} top-1", top)
        reach[name] = _distances(model, data)
        trials.say(f"{name} {top:.1%}")
    shares = {name: mean(trials.numbers[f"{name} top-1"]) for name in sizes}
    listed = ", ".join(f"{n} {s:.1%} ({sizes[n]:,} parameters)" for n, s in shares.items())
    sentence = (
        f"CIFAR-10 (JPEG), {setting.steps(MIXER_STEPS)} steps of {BATCH}: test top-1 {listed}."
    )
    figure = lines(reach, "o-", first=1, xlabel="layer", ylabel="mean distance looked at (patches)")
    spread = max(shares.values()) - min(shares.values())
    return Outcome(trials.numbers, spread < 0.10, sentence, {"distance": figure})


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
    blocks = list(model.stack.blocks)  # type: ignore[union-attr, arg-type]
    heads = blocks[0].mixer.matrix(17).shape[0]
    figure = Figure(figsize=(1.6 * (heads + 1), 1.7 * len(blocks)))
    axes = figure.subplots(len(blocks), heads + 1, squeeze=False)
    for row, block in zip(axes, blocks, strict=True):
        matrices = block.mixer.matrix(17).detach()
        shown = [*matrices, matrices.mean(0)]
        for n, (axis, matrix) in enumerate(zip(row, shown, strict=True)):
            limit = float(matrix.abs().max())
            axis.imshow(matrix.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title("mean" if n == heads else f"head {n + 1}", fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
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
        place = torch.stack((at // side, at % side), 1).float()
        distance = torch.cdist(place, place)
        found.append(float((matrix * distance).sum() / matrix.sum()))
    return found


EXPERIMENTS = (
    Experiment(
        "cifar-gmlp",
        ("gmlp",),
        "17 tokens reach over 35% top-1 at a small size, and training accuracy lies above test",
        12,
        cifar_gmlp,
        WANTS,
    ),
    Experiment(
        "cifar-mixers",
        ("vit", "aft-conv"),
        "ViT, gMLP and AFT-conv of about equal size are within 10 points of top-1 of each other",
        25,
        cifar_mixers,
        WANTS,
    ),
)
