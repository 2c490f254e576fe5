"""Pixels one after the other: bits/dim of attention and of AFT on handwritten digits."""

from __future__ import annotations

import torch

from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.experiments.base import Experiment, Outcome, Setting, Trials, held_out, mean
from everyformer.experiments.figures import lines
from everyformer.models.build import create_model

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
    trials = Trials(setting, "density")
    curves: dict[str, list[float]] = {}
    for name, options in trials.each(MEMBERS.items()):
        model = create_model(
            name, "pixels", width=64, layers=3, heads=4, image=data.image, **options
        )
        curves[name] = trials.fit(model, (data, 8), 250, lr=3e-3)
        found = held_out(model, data, "bits_per_dim", batch=8, limit=200)
        trials.keep(name, found, "{:.3f} bits/dim")
    means = {name: mean(values) for name, values in trials.numbers.items()}
    best_aft = min((n for n in means if n != "attention"), key=means.__getitem__)
    sentence = (
        f"Bits/dim on {data.name} after equal steps: "
        + ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        + f"; the best AFT is {best_aft}."
    )
    smooth = {
        name: torch.tensor(losses).unfold(0, min(10, len(losses)), 1).mean(1).tolist()
        for name, losses in curves.items()
    }
    figure = lines(smooth, ylabel="training loss (nats a pixel)")
    holds = means[best_aft] < 1.05 * means["attention"] and means[best_aft] < means["aft-simple"]
    return Outcome(trials.numbers, holds, sentence, {"loss": figure})


EXPERIMENTS = (
    Experiment(
        "density",
        ("attention", "aft-local", "aft-conv", "aft-simple"),
        "an AFT with a position bias is within 5% of attention in bits/dim and ahead of AFT-simple",
        20,
        density,
    ),
)
