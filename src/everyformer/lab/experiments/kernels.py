"""Kernel attention: what random features estimate, what a gate is for, what a state holds."""

import itertools
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.engines.kernel.attention import ask, read_all
from everyformer.engines.kernel.denominators import POSITIVE, Denominator
from everyformer.engines.kernel.features import (
    Draw,
    draw_projection,
    fourier_features,
    stable_exponentials,
    trigonometric_level,
)
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.measures import accuracy, held_out, load, mean
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_mixer
from sequence_laws.flops import count_flops

SIZE, TOKENS = 16, 512
"""D and L of the estimates"""
ROWS = (16, 64, 256, 1024, 4096)
"""M"""
NORMS = (0.25, 0.5, 1.0)
"""of the vectors whose kernel is estimated from M = D rows"""
SMALL, UNIT = 0.5, 1.0
"""standard deviations of queries and keys"""
KINDS = ("positive", "trigonometric")
PLAIN, RATIO = "plain averaging, std {:g}", "orthogonal over independent, {}, norm {}"
ESTIMATES: dict[str, tuple[str, Draw]] = {
    "positive, orthogonal": ("positive", "orthogonal"),
    "positive, independent": ("positive", "iid"),
    "trigonometric, orthogonal": ("trigonometric", "orthogonal"),
}


@experiment(
    "orthogonal rows err less than independent ones at norms up to 0.5, positive features less "
    "than trigonometric ones at unit scale, the error falls like 1/M (within a factor of 2, M "
    "= 256 to 4,096) and ends below that of plain averaging",
    members=("performer",),
    minutes=1,
)
def random_features(study: Study) -> Outcome:
    """Errors of a weight from D rows and of outputs from M rows, and of plain averages."""
    errors: dict[tuple[str, float, int], list[float]] = {}
    for _ in study.seeds():
        for kind, norm in itertools.product(KINDS, NORMS):
            ratio = orthogonal_over_independent(kind, norm, study.steps(20000))
            study.keep(RATIO.format(kind, f"{norm:g}"), ratio)
        for scale in (SMALL, UNIT):
            q, k, v = (torch.randn(1, 1, TOKENS, SIZE) for _ in range(3))
            q, k = q * scale, k * scale
            exact = nn.functional.scaled_dot_product_attention(q, k, v)
            uniform = relative_error(v.mean(2, keepdim=True), exact)
            study.keep(PLAIN.format(scale), uniform)
            for name, (kind, draw) in ESTIMATES.items():
                for rows in ROWS:
                    draws = [
                        relative_error(estimated(q, k, v, kind, draw, rows), exact)
                        for _ in range(study.steps(11))
                    ]
                    errors.setdefault((name, scale, rows), []).append(median(draws))
        study.say("done")
    for name, scale, rows in itertools.product(ESTIMATES, (SMALL, UNIT), (ROWS[2], ROWS[-1])):
        study.numbers[f"{name}, std {scale:g}, M={rows}"] = errors[name, scale, rows]
    first, last = "positive, orthogonal", "trigonometric, orthogonal"
    many, few = (mean(errors[first, SMALL, rows]) for rows in (ROWS[-1], ROWS[2]))
    rate = many * ROWS[-1] / (few * ROWS[2])
    plain, plain_unit = study.series(PLAIN, (SMALL, UNIT))
    unit, unit_last = (mean(errors[name, UNIT, ROWS[2]]) for name in (first, last))
    ratios = study.series(RATIO.format("positive", "{:g}"), NORMS)
    by_norm = ", ".join(f"{r:.2f} at norm {n:g}" for n, r in zip(NORMS, ratios, strict=True))
    sentence = (
        f"The variance of a weight from {SIZE} orthogonal rows is, times that of independent ones, "
        f"{by_norm}. With queries and keys of standard deviation {SMALL:g} the output's relative "
        f"squared error falls from {few:.2g} (M={ROWS[2]}) to {many:.2g} (M={ROWS[-1]}), "
        f"{rate:.2f} times as 1/M would have it; plain averaging errs by {plain:.2g}. With "
        f"standard deviation {UNIT:g} and M={ROWS[2]} positive features err by {unit:.2g}, "
        f"trigonometric ones by {unit_last:.2g}, plain averaging by {plain_unit:.2g}."
    )
    plain_of = {scale: study.mean(PLAIN.format(scale)) for scale in (SMALL, UNIT)}
    figure = [
        *(
            Lines(
                {n: [mean(errors[n, scale, rows]) for rows in ROWS] for n in ESTIMATES}, ROWS,
                ("rows M", "relative squared error"), log="xy", title=f"q, k of std {scale:g}",
                levels={"plain averaging": plain_of[scale]},
            )
            for scale in (SMALL, UNIT)
        ),
        Lines(
            {kind: study.series(RATIO.format(kind, "{:g}"), NORMS) for kind in KINDS}, NORMS,
            ("norm of x and y", "orthogonal over independent"), limits=(0, 1.1),
        ),
    ]  # fmt: skip
    small = [study.numbers[RATIO.format("positive", f"{norm:g}")] for norm in NORMS[:2]]
    better = all(ratio < 1 for ratios in small for ratio in ratios)
    holds = better and 0.5 < rate < 2 and unit < unit_last and many < plain
    return study.outcome(holds, sentence, error=figure)


def orthogonal_over_independent(kind: str, norm: float, draws: int) -> float:
    """Squared errors of exp(x.y) from D rows each: orthogonal over independent."""
    x, y = (nn.functional.normalize(torch.randn(draws, 1, SIZE), dim=-1) * norm for _ in range(2))
    exact = torch.exp((x * y).sum(-1)).flatten()
    errors = []
    for draw in ("orthogonal", "iid"):
        w = draw_projection(draws, SIZE, SIZE, draw)
        (fx, lx), (fy, ly) = _features(x, w, kind), _features(y, w, kind)
        estimate = ((fx * fy).sum(-1) * torch.exp(lx + ly)).flatten()
        errors.append(float((estimate - exact).square().mean()))
    return errors[0] / errors[1]


def estimated(q: Tensor, k: Tensor, v: Tensor, kind: str, draw: Draw, rows: int) -> Tensor:
    """Attention (B, H, L, D) both ways, from one draw."""
    w = draw_projection(1, rows, SIZE, draw)
    x, (y, level) = _features(q * SIZE**-0.25, w, kind)[0], _features(k * SIZE**-0.25, w, kind)
    guard = POSITIVE if kind == "positive" else Denominator("signed", 1e-6)
    return ask(x, read_all(y, v, None, level), guard, v.dtype)


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """Squared error over the square of the exact values."""
    return float((estimate - exact).square().mean() / exact.square().mean())


def _features(x: Tensor, w: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    if kind == "positive":
        return stable_exponentials(x, w)
    return fourier_features(x, w), trigonometric_level(x)


ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "rfa, gate": ("rfa", {"gate": True}),
    "rfa": ("rfa", {}),
    "linear (elu)": ("linear", {}),
}


@experiment(
    "RFA with the gate needs 2% fewer bits per byte than without it and than linear attention "
    "with elu features; a token costs the same after 64 and after 4,096",
    members=("rfa", "linear"),
    minutes=8,
)
def gates(study: Study) -> Outcome:
    """Bits per byte of three small language models that differ in their features and the gate."""
    data = load(length=256)
    study.measure(
        ARMS, (data, 8), 400, lambda model: held_out(model, data, "bits_per_byte", limit=128),
        "{:.3f} bits per byte", width=64, layers=2, heads=4,
    )  # fmt: skip
    cost = {name: step_cost(member, options) for name, (member, options) in ARMS.items()}
    for name, costs in cost.items():
        for tokens, (operations, _) in costs.items():
            study.numbers[f"operations of a token after {tokens}, {name}"] = [float(operations)]
    flat = all(len(set(costs.values())) == 1 for costs in cost.values())
    ops, size = cost["rfa, gate"][64]
    gated, rfa, linear = study.series("{}", ARMS)
    sentence = (
        f"Bits per byte after equal steps: {study.joined('.3f', x=ARMS)}. A token of a layer with "
        f"the gate takes {ops:,} operations and a state of {size:,} "
        f"bytes{', after 64 tokens as after 4,096' if flat else ', and more after more tokens'}. "
        "The paper's large models are better with Fourier features than with elu also without "
        f"gates: here they are {'better' if rfa < linear else 'not'}."
    )
    figure = Lines(study.losses, smooth=20)
    return study.outcome(flat and gated < 0.98 * min(rfa, linear), sentence, loss=figure)


def step_cost(member: str, options: dict[str, Any]) -> dict[int, tuple[int, int]]:
    """Operations of one token, and bytes of the state, after 64 and after 4,096 tokens."""
    mixer = create_mixer(member, width=64, heads=4, causal=True, **options).eval()
    costs = {}
    with torch.no_grad():
        for tokens in (64, 4096):
            state = mixer(torch.randn(1, tokens, 64), state=mixer.init_state(1)).state
            assert state is not None
            one = torch.randn(1, 1, 64)
            costs[tokens] = count_flops(lambda o=one, s=state: mixer(o, state=s)), state.nbytes  # type: ignore[misc]
    return costs


@experiment(
    "linear attention copies over 99% of what it has read, and a token costs it as much after "
    "4,096 tokens as after 64",
    members=("linear",),
    minutes=6,
)
def constant_state(study: Study) -> Outcome:
    """Copying what was read: linear attention has it in a state of one size."""
    data = load("lm", source="copy", length=32, symbols=16)
    sizes: dict[str, Any] = {"width": 64, "layers": 2, "heads": 2}
    arms: dict[str, Any] = {"linear": {}, "attention": {}}
    study.measure(
        arms, (data, 64), 600, lambda model: accuracy(model, data), position="learned", **sizes
    )
    cost = {name: step_cost(name, {}) for name in arms}
    flat = len(set(cost["linear"].values())) == 1
    ours, theirs = (cost[name][4096] for name in ("linear", "attention"))
    sentence = (
        "Linear attention copies [linear|.1%] of the symbols it has read, softmax attention "
        "[attention|.1%]. In a layer of width 64 its state "
        f"takes {ours[1]:,} bytes and a token {ours[0]:,} operations"
        f"{', after 64 tokens as after 4,096' if flat else ''}; softmax attention takes "
        f"{theirs[1]:,} bytes and {theirs[0]:,} operations after 4,096."
    )
    holds = flat and min(study.numbers["linear"]) > 0.99
    return study.outcome(holds, sentence, loss=Lines(study.losses, log="y"))
