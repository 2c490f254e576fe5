"""Positions: what fixed waves, rotations, learned tables and tables of two axes promise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.experiments.figures import bars, boxes, panels
from everyformer.experiments.study import Outcome, Study, experiment, held_out, load
from everyformer.models.build import create_model
from everyformer.positions.sinusoidal import sinusoid


@experiment(
    "one linear map for each shift carries PE[p] to PE[p+k] to 1e-6 on positions not fitted",
    members=("sinusoidal",),
    minutes=0.1,
)
def waves(study: Study) -> Outcome:
    """One matrix for each shift k carries PE[p] to PE[p+k]: fitted at some p, right at others."""
    table = sinusoid(torch.arange(512), 64, dtype=torch.float64)
    for seed in study.seeds():
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(512, 64, generator=generator, dtype=torch.float64)
        for name, vectors in (("linear map", table), ("linear map of random vectors", noise)):
            study.keep(name, max(shift_error(vectors, k) for k in (1, 7, 31)))
    fitted, control = study.means().values()
    sentence = (
        "A linear map fitted on the even positions predicts PE[p+k] from the odd ones with a "
        f"relative error of {fitted:.1e} for k = 1, 7, 31; for random vectors it is {control:.2f}."
    )
    figure, [axis] = panels(size=(7, 2.6))
    image = axis.imshow(sinusoid(torch.arange(32), 128).numpy(), aspect="auto", cmap="RdBu_r")
    axis.set(xlabel="channel", ylabel="position", title="sinusoidal positions, L = 32, d = 128")
    figure.colorbar(image, ax=axis)
    return study.outcome(fitted < 1e-6 and control > 0.1, sentence, map=figure)


def shift_error(vectors: Tensor, shift: int) -> float:
    """Relative error, on held-out positions, of the best linear map from p to p + shift."""
    even, odd = torch.arange(0, 480, 2), torch.arange(1, 480, 2)
    fitted = torch.linalg.lstsq(vectors[even], vectors[even + shift], driver="gelsd").solution
    goal = vectors[odd + shift]
    return float((vectors[odd] @ fitted - goal).norm() / goal.norm())


@experiment(
    "moving all positions by 100 changes logits by less than 1e-9 with rotations and by more "
    "than 1% with added waves",
    members=("rope",),
    minutes=0.1,
)
def rotation(study: Study) -> Outcome:
    """A text after 100 tokens of padding-free offset: rotary scores do not notice."""
    for name in study.each(("rope", "sinusoidal")):
        model = create_model(name, width=64, layers=2, heads=4).double().eval()
        tokens = torch.randint(0, 256, (4, 48))
        start = model(tokens).logits.detach()
        state = model.init_state(4, dtype=torch.float64)
        # an empty state whose next token has the position 100
        moved = state.map(lambda t, _: t + 100 if t.dtype == torch.long and t.dim() == 1 else t)
        with torch.no_grad():
            shifted = model(tokens, state=moved).logits
        study.keep(name, float((shifted - start).abs().max() / start.abs().max()))
    m = study.means()
    sentence = (
        "Moving every position by 100 changes the logits of an untrained model by [rope|.1e] "
        "(relative) with rotations and by [sinusoidal|.2f] with added waves."
    )
    figure = bars(m, colours=("C0", "C1"), yscale="log", ylabel="relative change of logits")
    return study.outcome(m["rope"] < 1e-9 and m["sinusoidal"] > 1e-2, sentence, shift=figure)


@experiment(
    "a learned table is within 5% of fixed waves in bits per byte inside its length",
    members=("learned",),
    minutes=6,
)
def learned_table(study: Study) -> Outcome:
    """Bits per byte of the same model with a learned table and with fixed waves."""
    data = load(length=128)
    arms: dict[str, Any] = {"learned": {}, "sinusoidal": {}}
    sizes = {"width": 96, "layers": 3, "heads": 4}
    for name, model in study.models(arms, (data, 16), 500, lr=2e-3, **sizes):
        study.keep(name, held_out(model, data, "bits_per_byte", limit=128), "{:.3f}")
    table, fixed = study.means().values()
    sentence = (
        f"After equal steps on the standard library, {table:.3f} bits per byte with a learned "
        f"table and {fixed:.3f} with fixed waves; beyond its last row the table is an error."
    )
    figure = boxes(study.numbers, "bits per byte")
    return study.outcome(abs(table / fixed - 1) < 0.05, sentence, quality=figure)


@experiment(
    "a table of two axes is within 3% of a whole one in bits per byte",
    members=("axial",),
    minutes=3,
)
def axes(study: Study) -> Outcome:
    """Bits per byte of the same model with a table of two axes and with a whole one."""
    data = load(length=128)
    arms: dict[str, Any] = {"axial": {}, "learned": {}}
    sizes, how = {}, {"width": 96, "layers": 2, "heads": 4, "std": 0.02}
    for name, model in study.models(arms, (data, 16), 300, lr=2e-3, **how):
        assert model.position is not None
        sizes[name] = sum(table.numel() for table in model.position.parameters())
        study.keep(name, held_out(model, data, "bits_per_byte", limit=128), "{:.3f}")
    two, whole = study.means().values()
    sentence = (
        f"After equal steps on the standard library, {two:.3f} bits per byte with "
        f"{sizes['axial']:,} parameters on two axes and {whole:.3f} with {sizes['learned']:,} in "
        "one table."
    )
    figure = boxes(study.numbers, "bits per byte")
    return study.outcome(two / whole < 1.03, sentence, quality=figure)
