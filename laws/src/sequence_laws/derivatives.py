"""Gradients against differences: what autograd gives is the derivative of what is computed.

The outputs are summed with fixed weights and all parameters move along one random direction, so
that a backward that is wrong anywhere shows in one number. What differences are worth they tell
themselves: central ones of two steps agree where the model is smooth (their error falls by four),
and one-sided ones approach each other (by two). How far they do not is their error, and the bound
of what may be rounding lies half-way, in orders of magnitude, between it and the slope.

Where a model chooses or rounds (routers, codebooks, weights of one bit), a gradient that is not the
derivative is meant: that is said, and known by a jump along the direction.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sequence_laws.inputs import first, seed
from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken, join_names

STEP = 2.0**-17
"""of the direction, as a share of weights: between rounding of float64 and bends of the model"""
SCAN, HALVES = 64, 24
"""places along a direction where a jump is looked for, and halves of the steepest part of it"""


class Pulled(NamedTuple):
    """A model in float64 with gradients, and how they came about."""

    model: nn.Module
    x: Tensor
    """inputs, with a gradient where they are features"""
    weights: Mapping[int, Tensor]
    """of each tensor in what it gives, by its place"""

    @property
    def named(self) -> dict[str, Tensor]:
        """What asks for a gradient, by name."""
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad and p.numel()}
        return dict[str, Tensor](named)

    @property
    def gradients(self) -> dict[str, Tensor | None]:
        """Gradients of parameters by name."""
        return {n: p.grad for n, p in self.named.items()}


def tensors(result: Any) -> list[Tensor]:
    """All tensors of numbers in what a model gives."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    if hasattr(result, "items"):
        return [t for _, part in result.items() for t in tensors(part)]
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in tensors(part)]
    return []


class Slope(NamedTuple):
    """A derivative along a direction: by gradients, and by differences with their error."""

    given: float
    found: float
    error: float
    size: float
    """of what is added up in it"""

    @property
    def bound(self) -> float:
        """Largest difference that may be theirs."""
        return (self.error * self.size) ** 0.5

    @property
    def agree(self) -> bool:
        """Whether it is no larger, or nothing can be told."""
        return not abs(self.given - self.found) > self.bound

    @property
    def flat(self) -> bool:
        """Whether nothing depends on what has a gradient."""
        return abs(self.found) <= self.error < abs(self.given)


def differences(subject: Subject, pulled: Pulled, x: Tensor, moved: Sequence[str]) -> str | None:
    """How gradients and differences compare; None where outputs differ from run to run.

    Raises:
        LawBroken: parameters whose gradient is not the derivative, where nothing jumps.
    """
    line = Line(subject, pulled)
    if line.at([], 0.0) != line.start:
        return None
    whole = line.slope([*line.ways])
    if whole.agree:
        return "as differences have them" if whole.bound < whole.size / 8 else ""
    each = {name: line.slope([name]) for name in line.ways}
    wrong = [name for name, slope in each.items() if not slope.agree]
    if not wrong:
        return ""
    worst = max(wrong, key=lambda n: abs(each[n].given - each[n].found) / each[n].size)
    if any(each[name].flat for name in wrong) or line.jumps(wrong) or line.flat_part(worst):
        return f"those of {join_names(wrong)} go straight through choices, as no difference does"
    named = "p = x.requires_grad_()" if worst == "x" else f"p = model.get_parameter({worst!r})"
    raise LawBroken(
        f"the gradients of {join_names(wrong)} are not the derivative: along a direction of "
        f"{worst} outputs change by {each[worst].found:.4g}, and by gradients by "
        f"{each[worst].given:.4g} (differences are off by {each[worst].error:.0e} at most)",
        subject.code(
            *moved, subject.inputs.code(*x.shape[:2]), named,
            "v = p.detach().std() * torch.randn(p.shape, dtype=torch.float64)",
            "torch.manual_seed(0)", f"y = {subject.call_code('x')}", "c = y.detach().cos()",
            "(y * c).sum().backward()",
            "def moved(step):", "    p.data += step * v", "    torch.manual_seed(0)",
            f"    return ({subject.call_code('x')} * c).sum().detach()",
            "slope = (moved(1e-5) - moved(-2e-5)) / 2e-5",
            "print(float(slope - (p.grad * v).sum()) / float(slope))  # not 0",
            gradients=True, training=pulled.model.training,
        ),
    )  # fmt: skip


class Line:
    """A model that moves along a direction of its weights, and of inputs that are features.

    What has large gradients moves less, so that each has its part in a slope of all.
    """

    def __init__(self, subject: Subject, pulled: Pulled) -> None:
        self.subject, self.pulled = subject, pulled
        self.places = pulled.named
        if pulled.x.requires_grad:
            self.places["x"] = pulled.x
        self.before = {n: p.detach().clone() for n, p in self.places.items()}
        sizes = {n: float(p.square().mean().sqrt()) for n, p in self.before.items()}
        pull = {n: sizes[n] * float(p.grad.norm()) if p.grad is not None else 0.0
                for n, p in self.places.items()}  # fmt: skip
        usual = sorted(filter(None, pull.values())) or [1.0]
        generator, self.ways = torch.Generator().manual_seed(2), dict[str, Tensor]()
        for name, place in self.places.items():
            noise = torch.randn(place.shape, generator=generator, dtype=torch.float64)
            less = min(1.0, usual[len(usual) // 2] / pull[name]) if pull[name] else 1.0
            self.ways[name] = less * sizes[name] * noise.to(place)
        for part in pulled.model.modules():
            if isinstance(part, nn.Embedding) and part.padding_idx is not None:
                for name, place in self.places.items():
                    if place is part.weight:  # a row that has no gradient, as it says
                        self.ways[name][part.padding_idx] = 0
        self.start = self.at([], 0.0)

    def at(self, names: Sequence[str], step: float) -> float:
        """The weighted sum of outputs after a step."""
        for name in names:
            self.places[name].data += step * self.ways[name]
        with self.subject.exactly():
            seed(0)
            result = self.subject.call(self.pulled.model, self.pulled.x)
            every = tensors(result) or [first(result)]
            parts = [every[n].detach() * w for n, w in self.pulled.weights.items()]
        for name in names:
            self.places[name].data.copy_(self.before[name])
        self.noise = 2.0**-52 * sum(float(part.norm()) for part in parts)
        return sum(float(part.sum()) for part in parts)

    def slope(self, names: Sequence[str]) -> Slope:
        """The derivative along the directions of some together."""
        up, down = ([self.at(names, sign * s) for s in (STEP, STEP / 2)] for sign in (1, -1))
        central = [(u - d) / (2 * s) for u, d, s in zip(up, down, (STEP, STEP / 2), strict=True)]
        bends = [u - 2 * self.start + d for u, d in zip(up, down, strict=True)]
        # bends fall by four, and by two where there is an edge just here
        rest = abs(4 * bends[1] - bends[0]) / STEP
        error = max(abs(central[0] - central[1]), rest, self.noise / STEP)
        pairs = [(self.places[n].grad, self.ways[n]) for n in names]
        parts = [g * v for g, v in pairs if g is not None]
        given, added = (
            sum(float(p.sum()) for p in parts),
            sum(float(p.square().sum()) for p in parts),
        )
        size = max(abs(given), abs(central[1]), added**0.5)
        return Slope(given, central[1], error, size)

    def flat_part(self, name: str) -> bool:
        """Whether nothing depends on some of the numbers of a place that have a gradient: halves
        of it are followed, of two that in which gradients are off by more."""
        way = self.ways[name]
        some = way.flatten().nonzero()[:, 0]
        try:
            while len(some) > 1:
                slopes = []
                for half in (halves := some.tensor_split(2)):
                    self.ways[name] = torch.zeros_like(way).flatten().index_copy(
                        0, half, way.flatten()[half]).view_as(way)  # fmt: skip
                    slopes.append(self.slope([name]))
                if any(slope.flat for slope in slopes):
                    return True
                first, second = (abs(slope.given - slope.found) for slope in slopes)
                some = halves[0] if first > second else halves[1]
            return False
        finally:
            self.ways[name] = way

    def jumps(self, names: Sequence[str]) -> bool:
        """Whether the sum jumps somewhere along the way, however small the step."""
        if not names:
            return False
        values = [self.at(names, k / SCAN) for k in range(SCAN + 1)]
        steps = [b - a for a, b in pairwise(values)]
        odd = [abs(2 * steps[k] - steps[k - 1] - steps[k + 1]) for k in range(1, SCAN - 1)]
        k = odd.index(max(odd)) + 1
        (low, below), (high, above) = (k / SCAN, values[k]), ((k + 1) / SCAN, values[k + 1])
        for _ in range(HALVES):
            half = (low + high) / 2
            value = self.at(names, half)
            if abs(value - below) > abs(above - value):
                high, above = half, value
            else:
                low, below = half, value
        return abs(above - below) > 2.0 ** (-HALVES / 2) * abs(steps[k])
