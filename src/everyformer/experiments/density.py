"""Pixels one after the other: bits/dim of attention and of AFT on handwritten digits."""

from __future__ import annotations

from everyformer.experiments.base import Outcome, Study, experiment, held_out, load
from everyformer.experiments.figures import lines

MEMBERS: dict[str, dict] = {
    "attention": {},
    "aft-local": {"window": 32},
    "aft-simple": {},
    "aft-conv": {"kernel": 31},
}


@experiment(
    "an AFT with a position bias is within 5% of attention in bits/dim and ahead of AFT-simple",
    members=("attention", "aft-local", "aft-conv", "aft-simple"),
    minutes=20,
)
def density(study: Study) -> Outcome:
    """Equal width, depth and steps; 784 pixels an image (or 64 of the built-in digits)."""
    data = load("pixels", source=study.source or "digits")
    for name, model in study.models(MEMBERS, data, 8, 250, width=64, layers=3, heads=4):
        found = held_out(model, data, "bits_per_dim", batch=8, limit=200)
        study.keep(name, found, "{:.3f} bits/dim")
    means = study.means()
    best_aft = min((n for n in means if n != "attention"), key=means.__getitem__)
    sentence = (
        f"Bits/dim on {data.name} after equal steps: "
        + ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        + f"; the best AFT is {best_aft}."
    )
    figure = lines(study.losses, smooth=10, ylabel="training loss (nats a pixel)")
    holds = means[best_aft] < 1.05 * means["attention"] and means[best_aft] < means["aft-simple"]
    return Outcome(study.numbers, holds, sentence, {"loss": figure})
