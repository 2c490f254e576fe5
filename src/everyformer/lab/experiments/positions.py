"""Positions: what fixed waves, rotations, learned tables and tables of two axes promise, and which
positions carry over to texts longer than those of the training.

Source: Press, Smith, Lewis 2022, arXiv 2108.12409, figure 1 and appendix B: windows side by side
give few tokens a short context, so long windows gain by that alone; sliding windows take the gain
out and show what a longer context itself is worth.
"""

import itertools
from typing import Any

import torch
from torch import Tensor

from everyformer.genes.positions.sinusoidal import sinusoid
from everyformer.lab.experiments.figures import Bars, Lines, Matrices
from everyformer.lab.experiments.measures import held_out, joined, load, mean
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.training.long_text import evaluate_long


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
    waves = {"sinusoidal positions, L = 32, d = 128": sinusoid(torch.arange(32), 128)}
    figure = Matrices(waves, ("channel", "position"))
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
    figure = Bars(study.numbers, "relative change of logits", log="y")
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
    sizes: dict[str, Any] = {"width": 96, "layers": 3, "heads": 4}
    study.measure(
        arms, (data, 16), 500, lambda model: held_out(model, data, "bits_per_byte", limit=128),
        "{:.3f}", lr=2e-3, **sizes,
    )  # fmt: skip
    table, fixed = study.means().values()
    sentence = (
        f"After equal steps on the standard library, {table:.3f} bits per byte with a learned "
        f"table and {fixed:.3f} with fixed waves; beyond its last row the table is an error."
    )
    figure = Bars(study.numbers, "bits per byte", near=True)
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
    sizes = {}
    how: dict[str, Any] = {"width": 96, "layers": 2, "heads": 4, "std": 0.02}
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
    figure = Bars(study.numbers, "bits per byte", near=True)
    return study.outcome(two / whole < 1.03, sentence, quality=figure)


TRAINED, LENGTHS = 64, (64, 96, 128, 256, 512)
"""bytes of a training window, and of those that are measured"""
TRAINED_ARMS: dict[str, dict[str, Any]] = {
    "alibi": {},
    "t5-relative": {"buckets": 16, "max_distance": 32},
    "rope": {},
    "sinusoidal": {},
    "learned": {},
}
"""position -> its options. T5 was trained on texts four times as long as its largest distance, so
that every bucket was seen; with the published 128 those from 64 on would stay as they started"""
SCALINGS = ("linear", "ntk", "yarn")
"""of the trained rotations, each by the length over `TRAINED`; nothing is trained again"""
MODES = {"side by side": None, "sliding": 16}
"""name -> stride in bytes, None: as long as the window"""
SCORED = 8192
"""bytes scored at every length in either mode"""
SAME, LOST = 1.01, 1.1
"""loss at the longest over that at `TRAINED`: as good, clearly worse"""


@experiment(
    "trained on 64 bytes and read on 512, ALiBi's loss is within 1% of that at 64 or better, "
    "and T5's biases lose less than half of what rotations lose, side by side and sliding; "
    "side by side waves, a learned table and rotations lose more than 10%, rotations less "
    "with the best scaling than with none",
    members=("alibi", "t5-relative"),
    minutes=15,
)
def extrapolation(study: Study) -> Outcome:
    """Loss against the length of the window, for models that differ in their positions alone."""
    texts = {length: load(length=length) for length in LENGTHS}
    losses: dict[tuple[str, str, int], list[float]] = {}

    def measure(arm: str, models: dict[int, Model]) -> None:
        """Add the loss of every length in both modes, each over equally many bytes."""
        for (length, model), (mode, stride) in itertools.product(models.items(), MODES.items()):
            evaluation: Any = evaluate_long(
                model, texts[length], mode="sliding" if stride else "nonoverlapping",
                stride=stride, limit=max(2, study.steps(SCORED) // (stride or length)),
            )  # fmt: skip
            losses.setdefault((arm, mode, length), []).append(evaluation["loss"])

    for _ in study.seeds():
        for arm, options in study.arms(TRAINED_ARMS.items()):
            model = build(arm, **options)
            study.fit(model, (texts[TRAINED], 32), 600, lr=2e-3)
            measure(arm, dict.fromkeys(LENGTHS, model))
            for kind in SCALINGS if arm == "rope" else ():
                measure(f"rope, {kind}", {n: rescaled(model, kind, n / TRAINED) for n in LENGTHS})
        longest = {arm: losses[arm, "side by side", LENGTHS[-1]][-1] for arm in TRAINED_ARMS}
        study.say(f"nats a byte at {LENGTHS[-1]}: {joined(longest, '.2f')}")
    arms = list(dict.fromkeys(arm for arm, _, _ in losses))
    worse: dict[str, dict[str, float]] = {mode: {} for mode in MODES}
    for arm, mode in itertools.product(arms, MODES):
        for length in (TRAINED, LENGTHS[-1]):
            study.numbers[f"{arm}, {mode}, {length}"] = losses[arm, mode, length]
        short, long = study.series(f"{arm}, {mode}, {{}}", (TRAINED, LENGTHS[-1]))
        worse[mode][arm] = long / short
    side, sliding = worse.values()
    ratios = "; ".join(f"{arm} {side[arm]:.2f} and {sliding[arm]:.2f}" for arm in arms)
    sentence = (
        f"Trained on windows of {TRAINED} bytes of the standard library and measured on windows of "
        f"{LENGTHS[-1]}, the loss is so many times that at {TRAINED}, side by side and sliding: "
        f"{ratios}."
    )
    figure = [
        Lines(
            {arm: [mean(losses[arm, mode, n]) for n in LENGTHS] for arm in arms}, LENGTHS,
            ("bytes in a window", "loss (nats a byte)"), ".-", log="x", at=TRAINED, limits=(0, 8),
            title=f"{mode}, {stride} bytes a step" if stride else mode,
        )
        for mode, stride in MODES.items()
    ]  # fmt: skip
    holds = (
        all(ratio["alibi"] <= SAME for ratio in worse.values())
        and all(2 * (ratio["t5-relative"] - 1) < ratio["rope"] - 1 for ratio in worse.values())
        and all(side[arm] > LOST for arm in ("rope", "sinusoidal", "learned"))
        and min(side[f"rope, {kind}"] for kind in SCALINGS) < side["rope"]
    )
    return study.outcome(holds, sentence, length=figure)


def build(position: str, **options: Any) -> Model:
    """A small causal model of bytes that takes the longest window."""
    return create_model(
        "attention", "lm", width=128, layers=2, heads=4, vocabulary=256, max_length=LENGTHS[-1],
        position=position, position_options=options, dropout=0.0, embedding_dropout=0.0,
    )  # fmt: skip


def rescaled(model: Model, kind: str, factor: float) -> Model:
    """A copy of the model with rotations for texts ``factor`` times as long."""
    scaling: dict[str, Any] = {"kind": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_length"] = TRAINED
    scaled_model = build("rope", scaling=scaling)
    scaled_model.load_state_dict(model.state_dict())
    return scaled_model.eval()
