"""Pixels one after the other: bits/dim of attention and of AFT on handwritten digits."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.experiments.base import Experiment, Outcome, Setting, dataset_batches, fit, mean
from everyformer.models.build import create_model
from everyformer.training.evaluate import evaluate

MEMBERS: dict[str, dict] = {
    "attention": {},
    "aft-local": {"window": 32},
    "aft-simple": {},
    "aft-conv": {"kernel": 31},
}


def density(setting: Setting) -> Outcome:
    """Equal width, depth and steps; 784 pixels an image (or 64 of the built-in digits)."""
    source = setting.data or "digits"
    data = load_dataset(DataConfig(source=source), "pixels")
    numbers: dict[str, list[float]] = {name: [] for name in MEMBERS}
    curves: dict[str, list[float]] = {}
    for seed in range(setting.seeds):
        for name, options in MEMBERS.items():
            torch.manual_seed(seed)
            model = create_model(
                name, "pixels", width=64, layers=3, heads=4, image=data.image, **options
            )
            batches = dataset_batches(data, 8, seed)
            curves[name] = fit(model, batches, steps=setting.steps(250), lr=3e-3, seed=seed)
            found = evaluate(model, data, batch=8, limit=200)
            assert found is not None
            numbers[name].append(found["bits_per_dim"])
            setting.say(f"density, seed {seed}: {name} {found['bits_per_dim']:.3f} bits/dim")
    means = {name: mean(values) for name, values in numbers.items()}
    best_aft = min((n for n in means if n != "attention"), key=means.__getitem__)
    sentence = (
        f"Bits/dim on {data.name} after equal steps: "
        + ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        + f"; the best AFT is {best_aft}."
    )
    figure = Figure(figsize=(5, 3))
    axis = figure.subplots()
    for name, losses in curves.items():
        axis.plot(
            torch.tensor(losses).unfold(0, min(10, len(losses)), 1).mean(1).numpy(), label=name
        )
    axis.set(xlabel="step", ylabel="training loss (nats a pixel)")
    axis.legend()
    figure.tight_layout()
    holds = means[best_aft] < 1.05 * means["attention"] and means[best_aft] < means["aft-simple"]
    return Outcome(numbers, holds, sentence, {"loss": figure})


EXPERIMENTS = (
    Experiment(
        "density",
        ("attention", "aft-local", "aft-conv", "aft-simple"),
        "an AFT with a position bias is within 5% of attention in bits/dim and ahead of AFT-simple",
        20,
        density,
    ),
)
