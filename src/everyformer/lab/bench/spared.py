"""Savings of adaptive computation: a share of it and all of it, in turn in one process.

`universal`: forward and backward of a step of a training, of one layer that is applied up to 12
times; tokens halt by their own p, whose bias is set so that they take that share of the steps on
average.
`adaptive-span`: one call, where the heads' spans are that share of the window, which is the length.
`depth-adaptive`: so many tokens are written by 12 layers, and leave at the layer that is that share
of them; every layer before it is asked for its likeliest token, as `calm` asks too.

Weights are those of the start, and tokens are drawn.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.core.config import Choice
from everyformer.core.errors import ConfigError
from everyformer.core.tally import tallied
from everyformer.generation.sampling import generate
from everyformer.genes.depth.early_exits import set_threshold
from everyformer.lab.bench.measure import DTYPES, call_of, in_turn
from everyformer.lab.bench.points import Point, Setting
from everyformer.lab.bench.timing import Call
from everyformer.lab.exits.costs import without_exits
from everyformer.models.base import Model
from everyformer.models.build import configure_layers, create_model
from everyformer.models.layers import build_mixers

STEPS = 12
"""of a token at most, or layers"""
VOCABULARY = 256
SEED = 0
"""of weights and tokens"""
HALVINGS = 24
"""of the range in which a bias lies, -20 to 20"""


def measured(points: Sequence[Point], setting: Setting) -> list[Point]:
    """``points``, which differ in their source alone, with their times and peaks."""
    made: dict[str, str] = {}

    def make(point: Point) -> Call:
        if point.member not in SPARED:
            names = "', '".join(SPARED)
            raise ConfigError(f"{point.member} spares nothing by share: '{names}' do")
        torch.manual_seed(SEED)
        call, made[point.source] = CALLS[point.member](point, setting)
        return call

    result = in_turn(points, setting, make)
    return [p if p.detail else dataclasses.replace(p, detail=made[p.source]) for p in result]


def _halting(point: Point, setting: Setting) -> tuple[Call, str]:
    whole = point.source != "everyformer"
    depth = {"steps": STEPS, "halting": "none"} if whole else {"steps": STEPS}
    model = _model(point, setting, layers=1, depth=Choice("universal", depth)).train()
    tokens = torch.randint(VOCABULARY, (2, setting.batch, point.length), device=setting.device)

    def step() -> None:
        with torch.set_grad_enabled(setting.backward):
            loss = model(tokens[0], targets=tokens[1]).loss
        if setting.backward:
            loss.backward()
            model.zero_grad(set_to_none=True)

    if whole:
        return step, ""
    mean = _halt_after(point.share * STEPS, model, tokens[0])
    return step, f"{mean:.2f} of {STEPS} steps a token"


@torch.no_grad()
def _halt_after(steps: float, model: Model, tokens: Tensor) -> float:
    """Set the bias of halting so that tokens take so many steps on average; how many they take."""
    depth: Any = model.stack.depth
    low, high = -20.0, 20.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        depth.bias.fill_(middle)
        with tallied() as tally:
            model(tokens)
        mean = tally.means()["mean_depth"]
        low, high = (middle, high) if mean > steps else (low, middle)
    return mean


def _looking_back(point: Point, setting: Setting) -> tuple[Call, str]:
    whole = point.source != "everyformer"
    share = 1.0 if whole else point.share
    config = configure_layers(
        point.member, setting.causal, point.length, width=setting.width, heads=setting.heads,
        layers=1, mixer_options={"window": point.length, "start": share},
    )  # fmt: skip
    mixer = build_mixers(config)[0].to(setting.device, DTYPES[setting.precision])
    size = (setting.batch, point.length, setting.width)
    x = torch.randn(size, device=setting.device, dtype=DTYPES[setting.precision])
    x.requires_grad_(setting.backward)
    words = "" if whole else f"{share * point.length:.0f} tokens of span"
    return call_of(mixer, x, setting.backward), words


def _leaving(point: Point, setting: Setting) -> tuple[Call, str]:
    depth = Choice(point.member, {"exits": "threshold"})
    model = _model(point, setting, layers=STEPS, depth=depth).eval()
    first = torch.randint(VOCABULARY, (setting.batch, 1), device=setting.device)
    if point.source != "everyformer":
        plain = without_exits(model)
        return lambda: generate(plain, first, tokens=point.length), ""
    at = max(1, round(point.share * STEPS))
    # no p is above 1, and each is above 0
    sure = [1.0] * (at - 1) + [0.0] * (STEPS - at)
    set_threshold(model, None if at == STEPS else sure)
    return lambda: generate(model, first, tokens=point.length), f"{at} of {STEPS} layers a token"


def _model(point: Point, setting: Setting, layers: int, depth: Choice) -> Model:
    model = create_model(
        point.member, "lm", width=setting.width, heads=setting.heads, layers=layers, depth=depth,
        vocabulary=VOCABULARY, max_length=point.length + 1, dropout=0.0, embedding_dropout=0.0,
    )  # fmt: skip
    return model.to(setting.device, DTYPES[setting.precision])


CALLS: dict[str, Callable[[Point, Setting], tuple[Call, str]]] = {
    "universal": _halting,
    "adaptive-span": _looking_back,
    "depth-adaptive": _leaving,
}
"""member -> a call, and in words what it computes"""
SPARED: dict[str, tuple[str, ...]] = {
    "universal": ("all steps",),
    "adaptive-span": ("whole spans",),
    "depth-adaptive": ("all layers",),
}
"""member -> what it is compared with"""
