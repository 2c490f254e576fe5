"""Experiments: a claim, arms, seeds, what is measured and a margin, and the file each leaves.

A file of this package holds functions that are decorated with `experiment`. Each declares its arms
and what is measured of a trained model (`Study.measure`, or the loops that it is made of), and ends
with `Study.outcome`: whether the claim holds with its margin, a sentence whose numbers are in
brackets (``[arm|.1%]`` is the mean over seeds of the number named ``arm``), and figures, which are
declared too (`everyformer.lab.experiments.figures`).
"""

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from everyformer.core.bounds import Positive, Repeats
from everyformer.core.config import Options
from everyformer.data.dataset import Dataset
from everyformer.lab.experiments.figures import Declared, drawn
from everyformer.lab.experiments.measures import joined, mean, model_for
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.system.signals import Stopped
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.optimiser import clip_gradients, set_learning_rate
from everyformer.training.result import TrainResult

Say = Callable[[str], None]
Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]
Loss = Callable[[Any, Tensor, Tensor], Tensor]
Schedule = Callable[[int, int], float]
"""learning rate of a step, from 0, of so many steps"""
Arm = TypeVar("Arm")
T = TypeVar("T")
COUNTED = 20
"""first steps of a training whose targets are counted, for `Outcome.beside`"""


@dataclass(frozen=True)
class StudySetting(Options):
    """Seeds, size, data and messages of a run."""

    seeds: Repeats = 3
    """repetitions with seeds 0, 1, ..."""
    scale: Positive = 1.0
    """steps and samples times this; below 1 only tries whether it runs"""
    data: str | None = None
    """real data, where the experiment wants some"""
    say: Say = print
    """reads what happens"""

    def steps(self, count: int) -> int:
        """``count`` scaled, at least 2."""
        return max(2, round(count * self.scale))


@dataclass(frozen=True)
class Outcome:
    """Numbers, verdict, sentence and figures of an experiment."""

    numbers: dict[str, list[float]]
    """each measured quantity, one value a seed"""
    holds: bool
    """whether the claim was seen, with its margin"""
    sentence: str
    """the result in words, with its numbers"""
    figures: dict[str, Figure] = field(default_factory=dict)
    """pictures by name"""
    beside: dict[str, list[float]] = field(default_factory=dict)
    """what an answer reaches that reads nothing of the inputs, one value for each training"""


@dataclass(frozen=True)
class Experiment:
    """One claim, put to the test."""

    name: str
    members: tuple[str, ...]
    """the members whose claim it is"""
    claim: str
    """what should be seen, and by what margin"""
    minutes: float
    """on two CPU cores with three seeds"""
    run: Callable[[StudySetting], Outcome]
    data: str | None = None
    """the real data it needs, in words; None: none"""


class Study:
    """Arms times seeds of an experiment, one after the other, and their numbers.

    Args:
        title: first word of all messages.
    """

    def __init__(self, setting: StudySetting, title: str) -> None:
        self.setting, self.title = setting, title
        self.source = setting.data
        self.steps = setting.steps
        self.numbers: dict[str, list[float]] = {}
        self.losses: dict[str, list[list[float]]] = {}
        self.beside: dict[str, list[float]] = {}

    def order(self, names: Iterable[str]) -> None:
        """Numbers that come first, in another order than that in which they are measured."""
        self.numbers = {name: [] for name in names}

    def seeds(self) -> Iterator[int]:
        """The seeds, from each of which torch's random numbers start again."""
        for seed in range(self.setting.seeds):
            self.seed = seed
            torch.manual_seed(seed)
            yield seed

    def arms(self, arms: Iterable[Arm]) -> Iterator[Arm]:
        """The arms of a seed, all from the same random numbers."""
        for arm in arms:
            torch.manual_seed(self.seed)
            yield arm

    def each(self, arms: Iterable[Arm]) -> Iterator[Arm]:
        """The arms, with every seed."""
        for _ in self.seeds():
            yield from self.arms(arms)

    def fit(
        self,
        model: nn.Module,
        batches: Batches | tuple[Dataset, int],
        steps: int,
        *,
        lr: float | Schedule = 3e-3,
        weight_decay: float = 0.01,
        loss_of: Loss | None = None,
        arm: str | None = None,
    ) -> list[float]:
        """Losses of ``steps``, scaled, of AdamW at a rate of `cosine`, all weights decaying.

        `everyformer.training.loop.train` has other random numbers, decay and warm-up; the recorded
        numbers are those of this loop.

        Args:
            batches: fresh ones, or a dataset and the rows of a step.
            loss_of: loss of model, inputs and targets (default: the model's).
            arm: ``losses[arm]`` has them from then on.
        """
        steps, losses, answers = self.steps(steps), [], torch.zeros(0)
        generator = torch.Generator().manual_seed(1000 + self.seed)
        schedule = lr if callable(lr) else functools.partial(cosine, lr)
        groups = [
            {"params": [weight], "lr_scale": getattr(weight, "lr_scale", 1.0)}
            for weight in model.parameters()
        ]
        optimiser = torch.optim.AdamW(groups, weight_decay=weight_decay)
        parts: Any = model.train()
        for step in range(steps):
            if hasattr(model, "set_progress"):
                parts.set_progress(step / steps)
            set_learning_rate(optimiser, schedule(step, steps))
            if isinstance(batches, tuple):
                batch = batches[0].train_batch(step, batches[1], self.seed)
                inputs, targets = batch.inputs, batch.targets
            else:
                inputs, targets = batches(generator)
            if step < COUNTED:
                answers = _added(answers, targets)
            loss: Tensor = (loss_of or _loss)(model, inputs, targets)
            optimiser.zero_grad()
            loss.backward()
            clip_gradients(model.parameters(), 1.0)
            optimiser.step()
            if hasattr(model, "end_step"):
                parts.end_step()
            losses.append(loss.item())
        model.eval()
        if arm is not None:
            self.losses.setdefault(arm, []).append(losses)
        self._commonest(batches, answers)
        return losses

    def _commonest(self, batches: Batches | tuple[Dataset, int], counts: Tensor) -> None:
        """Keep what always answering the commonest target reaches, and knowing how common each is,
        or each after the one or two before it."""
        data = batches[0] if isinstance(batches, tuple) else None
        if data is not None:
            name = f"{data.name} ({data.task})"
        else:
            name = getattr(batches, "__name__", "targets").replace("_", " ")
            name = "targets" if name == "batches" else name
        reached: dict[str, Any] = {}
        if counts.numel():
            shares = counts / counts.sum()
            reached[f"always the commonest of {name}, right"] = shares.max()
            reached[f"counting {name}, nats"] = torch.special.entr(shares).sum()
        if data is not None and data.counting is not None:
            reached[f"counting {name}, nats"] = data.counting
        for answer, value in reached.items():
            self.beside.setdefault(answer, []).append(float(value))

    def models(
        self,
        arms: Mapping[str, Any],
        batches: Batches | tuple[Dataset, int],
        steps: int,
        *,
        member: str | None = None,
        lr: float = 3e-3,
        **options: Any,
    ) -> Iterator[tuple[str, Any]]:
        """A trained model of every arm, with every seed; ``losses[arm]`` has those of each seed.

        Args:
            arms: name -> member and its options, or those of ``member`` (default: of that name).
            batches: as those of `fit`; a dataset says task and sizes.
            options: those that all models have.
        """
        for name, arm in self.each(arms.items()):
            which, special = arm if isinstance(arm, tuple) else (member or name, arm)
            if isinstance(batches, tuple):
                model = model_for(batches[0], which, **options, **special)
            else:
                model = create_model(which, **options, **special)
            self.fit(model, batches, steps, lr=lr, arm=name)
            yield name, model

    def measure(
        self,
        arms: Mapping[str, Any],
        batches: Batches | tuple[Dataset, int],
        steps: int,
        measured: Callable[[Any], float],
        template: str = "{:.1%}",
        **options: Any,
    ) -> None:
        """Keep a number of a trained model of every arm, with every seed.

        Args:
            measured: the number of a model. template: see `keep`. Others are those of `models`.
        """
        for name, model in self.models(arms, batches, steps, **options):
            self.keep(name, measured(model), template)

    def train(self, model: Model, data: Dataset, steps: int, **options: Any) -> Model:
        """`train` for so many ``steps``, scaled, evaluating at the end alone.

        Args:
            options: fields of `TrainingConfig`.
        """
        fields: dict[str, Any] = {"evaluate_every": None, **options}
        config = TrainingConfig(steps=self.steps(steps), seed=self.seed, **fields)
        evaluation = finished(train(model, data, config, show=False)).evaluation
        if (base := data.does.baseline(evaluation or {})) is not None:
            name = f"{base.words}, {base.metric.replace('_', ' ')} on {data.name}"
            self.beside.setdefault(name, []).append(base.value)
        return model.eval()

    def fresh(self, batches: Callable[..., T], seed: int, *rows: int) -> T:
        """A batch that no training has seen: of this seed's own random numbers from ``seed`` on."""
        return batches(torch.Generator().manual_seed(seed + self.seed), *rows)

    def keep(self, name: str, value: float, template: str = "") -> None:
        """Add a number of this seed, which takes the place of the braces in ``template``."""
        self.numbers.setdefault(name, []).append(value)
        if template:
            self.say(f"{name} {template.format(value)}")

    def say(self, text: str) -> None:
        """Send a message that begins with title and seed."""
        self.setting.say(f"{self.title}, seed {self.seed}: {text}")

    def mean(self, name: str) -> float:
        """The mean of a number over the seeds."""
        return mean(self.numbers[name])

    def means(self) -> dict[str, float]:
        """The mean of every number, by name."""
        return {name: mean(values) for name, values in self.numbers.items()}

    def series(self, name: str, x: Iterable[Any]) -> list[float]:
        """Means of the numbers whose names are ``name`` with each of ``x`` in its braces."""
        return [self.mean(name.format(value)) for value in x]

    def curves(self, name: str, x: Iterable[Any]) -> list[list[float]]:
        """Numbers as those of `series`, a list for every seed."""
        return [list(run) for run in zip(*(self.numbers[name.format(n)] for n in x), strict=True)]

    def latest(self, form: str) -> str:
        """Every number's last value."""
        return joined({name: values[-1] for name, values in self.numbers.items()}, form)

    def joined(self, form: str, name: str = "{}", x: Iterable[Any] | None = None) -> str:
        """Means of all numbers, or of those whose names have one of ``x`` in their braces."""
        return joined({n: self.mean(name.format(n)) for n in x or self.numbers}, form)

    def outcome(self, holds: bool, sentence: str, **figures: Declared) -> Outcome:
        """The result, with means in the brackets of the sentence and figures by name."""

        def number(match: re.Match[str]) -> str:
            return format(self.mean(match[1]), match[2])

        said = re.sub(r"\[([^\[|]+)\|([^\]]+)\]", number, sentence)
        pictures = {name: drawn(declared) for name, declared in figures.items()}
        return Outcome(self.numbers, bool(holds), said, pictures, self.beside)


def cosine(peak: float, step: int, steps: int) -> float:
    """Learning rate that rises over a twentieth of the steps, and falls as half a cosine does."""
    rise = min(1.0, (step + 1) / max(1, steps // 20))
    return peak * (rise * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _added(counts: Tensor, targets: Tensor) -> Tensor:
    """``counts`` and those of the targets that are scored; numbers have none."""
    if targets.is_floating_point():
        return counts
    new = targets[targets >= 0].bincount(minlength=len(counts)).float()
    new[: len(counts)] += counts
    return new


def _loss(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = model(inputs, targets=targets).loss
    return loss


Run = Callable[[Study], Outcome]
KNOWN: dict[str, list[Experiment]] = {}
"""experiments by the module that holds them"""


def experiment(
    claim: str,
    *,
    members: tuple[str, ...],
    minutes: float,
    data: str | None = None,
    name: str | None = None,
) -> Callable[[Run], Run]:
    """Decorator of the function that runs an experiment, which is known by its name from then on.

    Args: those of `Experiment`; the default of the name is the function's.
    """

    def add(run: Run) -> Run:
        title = name or run.__name__.replace("_", "-")
        performed = Experiment(
            title, members, claim, minutes, lambda setting: run(Study(setting, title)), data
        )
        KNOWN.setdefault(run.__module__, []).append(performed)
        return run

    return add


def finished(result: TrainResult) -> TrainResult:
    """A training that no signal stopped; one that was stopped ends the experiment with it."""
    if result.signal is not None:
        raise Stopped(result.signal)
    return result
