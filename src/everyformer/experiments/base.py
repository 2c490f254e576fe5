"""What an experiment is, how it is run, and what it leaves behind."""

from __future__ import annotations

import importlib
import math
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from everyformer.comparison.summary import mean_interval
from everyformer.core.bounds import Positive, Repeats
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.tasks import TASKS
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.family import list_members
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.system.files import file_written_whole, write_text
from everyformer.system.plain import to_json
from everyformer.system.stopping import Stopped
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate
from everyformer.training.loop import train
from everyformer.training.result import TrainResult

Say = Callable[[str], None]
Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]
Arm = TypeVar("Arm")


@dataclass(frozen=True)
class StudySetting(Options):
    """How an experiment is run."""

    seeds: Repeats = 3
    """repetitions with seeds 0, 1, ..."""
    scale: Positive = 1.0
    """steps and samples times this; below 1 only tries whether it runs"""
    data: str | None = None
    """real data, where the experiment wants some"""
    say: Say = print
    """is told what happens"""

    def steps(self, count: int) -> int:
        """``count`` scaled, at least 2."""
        return max(2, round(count * self.scale))


@dataclass(frozen=True)
class Outcome:
    """What was found."""

    numbers: dict[str, list[float]]
    """each measured quantity, one value a seed"""
    holds: bool
    """whether the claim was seen, with its margin"""
    sentence: str
    """what was seen, with the numbers in it"""
    figures: dict[str, Figure] = field(default_factory=dict)
    """pictures by name"""


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
    """what real data it wants, in words; None needs none"""


class Study:
    """An experiment as it is run: arms times seeds, one after the other, and their numbers.

    Args:
        title: how what is said of them begins.
    """

    def __init__(self, setting: StudySetting, title: str) -> None:
        self.setting, self.title = setting, title
        self.numbers: dict[str, list[float]] = {}
        self.losses: dict[str, list[float]] = {}

    def order(self, names: Iterable[str]) -> None:
        """Numbers that come first, in another order than that in which they are kept."""
        self.numbers = {name: [] for name in names}

    def steps(self, count: int) -> int:
        """``count`` scaled, at least 2."""
        return self.setting.steps(count)

    @property
    def source(self) -> str | None:
        """The real data that was given."""
        return self.setting.data

    def seeds(self) -> Iterator[int]:
        """The seeds, from each of which torch's random numbers start anew."""
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
        lr: float = 3e-3,
        weight_decay: float = 0.01,
        loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    ) -> list[float]:
        """Train by AdamW with warm-up and cosine for ``steps``, scaled; the losses of all.

        Args:
            batches: fresh ones, or a dataset and how many of its rows a step reads.
        """
        steps, losses = self.steps(steps), []
        generator = torch.Generator().manual_seed(1000 + self.seed)
        scales: dict[float, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            scales.setdefault(getattr(parameter, "lr_scale", 1.0), []).append(parameter)
        groups = [{"params": own, "lr_scale": scale} for scale, own in scales.items()]
        optimiser = torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)
        warm = max(1, steps // 20)
        model.train()
        tell: Callable[[float], None] = getattr(model, "set_progress", lambda done: None)
        settle: Callable[[], None] = getattr(model, "end_step", lambda: None)
        for step in range(steps):
            tell(step / steps)
            rate = min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimiser.param_groups:
                group["lr"] = lr * rate * group["lr_scale"]
            if isinstance(batches, tuple):
                data, size = batches
                batch = data.train_batch(step, size, self.seed)
                inputs, targets = batch.inputs, batch.targets
            else:
                inputs, targets = batches(generator)
            if loss_of is None:
                loss = model(inputs, targets=targets).loss
            else:
                loss = loss_of(model, inputs, targets)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            settle()
            losses.append(loss.item())
        model.eval()
        return losses

    def models(
        self,
        arms: Mapping[str, Any],
        data: Dataset,
        batch: int,
        steps: int,
        *,
        lr: float = 3e-3,
        **options: Any,
    ) -> Iterator[tuple[str, Model]]:
        """A model of every arm that was trained on the data, with every seed.

        Its losses are ``losses[arm]`` from then on.

        Args:
            arms: name -> member and its own options, or those of the member of that name.
            batch: rows a step. options: those that all have.
        """
        for name, arm in self.each(arms.items()):
            member, own = arm if isinstance(arm, tuple) else (name, arm)
            model = fitting(data, member, **options, **own)
            self.losses[name] = self.fit(model, (data, batch), steps, lr=lr)
            yield name, model

    def train(self, model: Model, data: Dataset, steps: int, **options: Any) -> Model:
        """`train` for so many ``steps``, scaled, evaluating at the end alone.

        Args:
            options: fields of `TrainingConfig`.
        """
        config = TrainingConfig(
            steps=self.steps(steps), seed=self.seed, evaluate_every=None, **options
        )
        finished(train(model, data, config, show=False))
        return model.eval()

    def keep(self, name: str, value: float, said: str = "") -> None:
        """Add a number of this seed, which takes the place of the braces in what is ``said``."""
        self.numbers.setdefault(name, []).append(value)
        if said:
            self.say(f"{name} {said.format(value)}")

    def say(self, text: str) -> None:
        """Tell what has happened, behind title and seed."""
        self.setting.say(f"{self.title}, seed {self.seed}: {text}")

    def mean(self, name: str) -> float:
        """The mean of a number over the seeds."""
        return mean(self.numbers[name])

    def means(self) -> dict[str, float]:
        """The mean of every number, by name."""
        return {name: mean(values) for name, values in self.numbers.items()}

    def latest(self, form: str) -> str:
        """Every number's last value."""
        return ", ".join(f"{name} {values[-1]:{form}}" for name, values in self.numbers.items())


Run = Callable[[Study], Outcome]
_KNOWN: dict[str, list[Experiment]] = {}
"""experiments by the module that holds them"""


def experiment(
    claim: str,
    *,
    members: tuple[str, ...],
    minutes: float,
    data: str | None = None,
    name: str | None = None,
) -> Callable[[Run], Run]:
    """Decorator of what runs an experiment, which is known by its name from then on.

    Args: those of `Experiment`; the name is that of the function unless given.
    """

    def add(run: Run) -> Run:
        title = name or run.__name__.replace("_", "-")
        found = Experiment(
            title, members, claim, minutes, lambda setting: run(Study(setting, title)), data
        )
        _KNOWN.setdefault(run.__module__, []).append(found)
        return run

    return add


def experiments() -> list[Experiment]:
    """All experiments that the files of this package hold, in the order of the members' table."""
    every: list[Experiment] = []
    for file in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"{__package__}.{file.name}")
        every += _KNOWN.get(module.__name__, [])
    order = [member.name for member in list_members()]
    return sorted(every, key=lambda one: min(map(order.index, one.members)))


def find(name: str) -> list[Experiment]:
    """The experiments called ``name``, or those of the member ``name``."""
    known, members = experiments(), [member.name for member in list_members()]
    found = [e for e in known if e.name == name] or [e for e in known if name in e.members]
    if not found and name not in members:
        raise unknown("experiment or member", name, [*(e.name for e in known), *members])
    return found


def perform(experiment: Experiment, setting: StudySetting, folder: Path) -> dict[str, Any]:
    """Run, write result.json and figures below ``folder``, and return the result.

    Raises:
        ConfigError: the experiment wants real data that was not given.
    """
    from everyformer.training.run import check_writable, environment

    if experiment.data is not None and setting.data is None:
        raise ConfigError(
            f"the experiment '{experiment.name}' wants {experiment.data}: give it with --data"
        )
    check_writable(folder)
    start = time.perf_counter()
    outcome = experiment.run(setting)
    pictures = []
    for title, figure in outcome.figures.items():
        path = folder / f"{experiment.name}-{title}.svg"
        with file_written_whole(path) as new:
            figure.savefig(new, bbox_inches="tight", metadata={"Date": None})
            figure.savefig(new.with_suffix(".png"), bbox_inches="tight", dpi=110)
        pictures.append(path.name)
    result = {
        "experiment": experiment.name,
        "members": list(experiment.members),
        "claim": experiment.claim,
        "command": f"everyformer reproduce {experiment.name} --seeds {setting.seeds}"
        + (" --data PATH" if experiment.data else ""),
        "seeds": setting.seeds,
        "scale": setting.scale,
        "holds": outcome.holds,
        "sentence": outcome.sentence,
        "numbers": {name: summary(values) for name, values in outcome.numbers.items()},
        "figures": pictures,
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "environment": {
            key: value
            for key, value in environment().items()
            if key in ("packages", "python", "platform", "cores", "torch_threads")
        },
    }
    write_text(folder / f"{experiment.name}.json", to_json(result, indent=1) + "\n")
    return result


def finished(result: TrainResult) -> TrainResult:
    """A training that no signal stopped; one that was stopped ends the experiment with it."""
    if result.signal is not None:
        raise Stopped(result.signal)
    return result


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, 95% interval over seeds and the values themselves."""
    interval = mean_interval(values) if len(values) > 1 else None
    return {"mean": sum(values) / len(values), "interval": interval, "values": list(values)}


def load(task: str = "lm", **options: Any) -> Dataset:
    """Data of a task, by the fields of `DataConfig`."""
    return load_dataset(DataConfig(**options), task)


def fitting(data: Dataset, member: str, **options: Any) -> Model:
    """A model of ``member`` for the data; ``options`` are its sizes and its own."""
    sizes: dict[str, Any] = {"vocabulary": data.vocabulary, "max_length": data.length}
    if TASKS[data.task].pictures:
        sizes = {"image": data.image}
    if TASKS[data.task].classifies:
        sizes["classes"] = len(data.classes)
    return create_model(member, data.task, **sizes, **options)


@torch.no_grad()
def scored_accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of scored targets (not -100) that are predicted."""
    found = model(inputs).logits.argmax(-1)
    scored = targets != -100
    return float((found == targets)[scored].float().mean())


def accuracy(model: nn.Module, data: Dataset) -> float:
    """`scored_accuracy` on 256 held-out rows."""
    batch = next(iter(data.validation_batches(256, 256)))
    return scored_accuracy(model, batch.inputs, batch.targets)


def held_out(model: nn.Module, data: Dataset, what: str, **options: Any) -> float:
    """``what`` an evaluation on the held-out part gives: loss, bits_per_byte, accuracy ..."""
    found = evaluate(model, data, **options)
    assert found is not None
    return float(found[what])


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)
