"""From a comparison to jobs: one complete model a member, matched where requested."""

import dataclasses
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from everyformer.core.config import Choice, to_dict
from everyformer.core.errors import ConfigError, GeneError, MissingExtraError
from everyformer.data.dataset import Dataset
from everyformer.family import info
from everyformer.genes import GENES
from everyformer.genes.config import Architecture, ModelConfig
from everyformer.lab.compare.config import OWN, CompareConfig
from everyformer.models.build import build_model
from everyformer.models.draft import require_read, scales_embedding
from everyformer.training.config import Precision
from everyformer.training.spec import RunSpec, model_config, preset, value_of
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.verdict import LawResult

SIZES = frozenset({"width", "layers", "heads", "max_length", "decoder_layers", "patch", "causal"})
"""what a comparison sets for all"""
_NO_WORD = re.compile(r"[^\w@.-]+")
TOLERANCE = 0.10
"""how far a matched parameter count may be off"""


@dataclass(frozen=True)
class Candidate:
    """One member, ready to be trained, or the reason why it cannot be."""

    member: str
    run: RunSpec | None
    config: ModelConfig | None
    """the complete model of the run"""
    parameters: int | None
    error: str | None = None
    steps: int | None = None
    """the budget in steps that its seconds become; None: its trainings have the budget as it is"""
    precision: Precision | None = None
    """what `precision` auto came to; None: another was given, or each training finds out"""
    broken: tuple[LawResult, ...] = ()
    """laws that it breaks, or that could not judge it, of a third-party model"""


@dataclass(frozen=True)
class Job:
    """One training: a member, a seed, a learning rate; ``folder`` is below the comparison's."""

    member: str
    seed: int
    lr: float
    folder: str
    run: RunSpec
    chosen: bool = True
    """False: of the grid, and another learning rate was better"""


def candidates(config: CompareConfig, dataset: Dataset) -> list[Candidate]:
    """A complete model for each member; a member that cannot be built carries its error.

    Raises:
        ConfigError: an option given for one member alone is unknown or wrong.
    """
    own = own_options(config)
    ready: list[Candidate] = []
    target: int | None = None
    for member in config.members:
        try:
            run = _run_of(config, dataset, member, own.get(member, {}))
            require_read(run.member, dataset.task, run.model)
            complete = model_config(run, dataset)
            count = count_parameters(complete)
            if config.match == "parameters" and target is not None:
                complete, count = match_parameters(complete, target)
                sized = dataclasses.replace(run.model, width=complete.width)
                run = dataclasses.replace(run, model=sized)
            ready.append(Candidate(member, run, complete, count))
            target = target or count
        except MissingExtraError:
            raise  # before a budget is spent on the others
        except ConfigError as error:
            if member in own and not isinstance(error, GeneError):
                raise
            ready.append(Candidate(member, None, None, None, str(error)))
        except FAILURES as error:  # a member that is broken must not keep the others from running
            ready.append(Candidate(member, None, None, None, describe(error)))
    return ready


def own_options(config: CompareConfig) -> dict[str, dict[str, Any]]:
    """``member.option=value`` items as options by member."""
    chosen: dict[str, dict[str, Any]] = {}
    for item in config.options:
        path, equals, text = item.partition("=")
        member, dot, option = path.rpartition(".")
        if not equals or not dot or member not in config.members:
            raise ConfigError(
                f"`options` takes member.option=value with a member that is compared, not '{item}'"
            )
        chosen.setdefault(member, {})[option.replace("-", "_")] = value_of(text)
    return chosen


def check_design(config: CompareConfig) -> None:
    """Refuse what says nothing about a comparison of this kind.

    Raises:
        ConfigError: names what does not go together.
    """
    most, first = config.until_settled, config.members[0]
    option = "power" if most is None else "until_settled"
    alone = getattr(config, option) is not None and len(config.members) < 2
    wrong = {
        f"`{option}` is about a difference between members, and {first} is the only one: name "
        f"another, or it again as {first}@again": alone,
        "`margin` sets when to stop with `until_settled`: give the most seeds": (
            config.margin is not None and most is None
        ),
        "`until_settled` judges every seed alike, but `lr_grid` chooses a rate by the first: "
        "compare with the grid, then give the rate that was chosen and other seeds": (
            most is not None and bool(config.lr_grid)
        ),
        f"`until_settled` is the most seeds, {most}, but `seeds` are {config.seeds} already: give "
        "more of the one or fewer of the other": most is not None and config.seeds > most,
    }
    for words in (words for words, there in wrong.items() if there):
        raise ConfigError(words)


def jobs(config: CompareConfig, ready: list[Candidate]) -> list[Job]:
    """Every training: members by the seeds that all have, or by the learning rates of the grid for
    the first seed."""
    rates = config.lr_grid or (config.training.lr,)
    first = config.training.seed
    count = 1 if config.lr_grid else config.first_seeds
    able = [candidate for candidate in ready if candidate.config is not None]
    return [
        job(config, e, seed, lr)
        for e in able
        for seed in range(first, first + count)
        for lr in rates
    ]


def job(config: CompareConfig, candidate: Candidate, seed: int, lr: float) -> Job:
    """One training of an entrant."""
    assert candidate.run is not None
    training = dataclasses.replace(config.training, seed=seed, lr=lr)
    if candidate.steps is not None:
        training = dataclasses.replace(training, steps=candidate.steps, budget_seconds=None)
    if candidate.precision is not None:
        training = dataclasses.replace(training, precision=candidate.precision)
    run = dataclasses.replace(candidate.run, training=training)
    folder = f"runs/{_NO_WORD.sub('-', candidate.member)}-seed{seed}"
    if lr != config.training.lr:
        folder += f"-lr{lr:g}"
    return Job(candidate.member, seed, lr, folder, run)


def count_parameters(config: ModelConfig) -> int:
    """Parameters of a model, tied ones once, without allocating it."""
    # code of others may look at numbers
    with torch.device("meta" if config.outside is None else "cpu"):
        model = build_model(config)
    return sum(p.numel() for p in model.parameters())


def preset_changes(config: ModelConfig) -> dict[str, Any]:
    """Choices besides sizes and the genes themselves that are not everybody's: init, dropout ..."""
    neutral, chosen = to_dict(Architecture()), to_dict(config)
    usual = dataclasses.replace(config, init=neutral["init"]).with_genes(
        position=Choice("sinusoidal")
    )
    neutral["scale_embedding"] = scales_embedding(usual)
    changes = {
        name: chosen[name]
        for name, usual in neutral.items()
        if name not in SIZES and chosen[name] != usual
    }
    changes |= {
        name: config.genes[name].name
        for name, gene in GENES.items()
        if gene.training_detail and config.genes[name].name != gene.default
    }
    parts = ("block", "pixels", "summaries")
    inner = {part: changes.pop(part) for part in parts if part in changes}
    for part, values in inner.items():
        changes |= {key: v for key, v in values.items() if v != neutral[part][key]}
    return changes


def match_parameters(config: ModelConfig, target: int) -> tuple[ModelConfig, int]:
    """The width (a multiple of 2 x heads) whose parameter count is nearest to ``target``.

    Raises:
        GeneError: no width comes within `TOLERANCE`.
    """
    step = 2 * config.heads
    widened: Callable[[int], ModelConfig] = lambda n: dataclasses.replace(config, width=n * step)  # noqa: E731
    low, high = 1, 2
    while (count := count_parameters(widened(high))) < target:
        if config.outside is not None and count == count_parameters(widened(low)):
            raise GeneError(
                f"{config.member}: its {count:,} parameters do not follow the width: let what "
                "makes it take `width`, or compare with `match='width'`"
            )
        low, high = high, 2 * high
    between = range(low + 1, high)
    high = low + 1 + bisect_left(between, target, key=lambda n: count_parameters(widened(n)))
    best = min(map(widened, (high - 1, high)), key=lambda c: abs(count_parameters(c) - target))
    count = count_parameters(best)
    if abs(count / target - 1) > TOLERANCE:
        raise GeneError(
            f"{config.member}: no width comes within {TOLERANCE:.0%} of {target:,} parameters "
            f"(nearest: width {best.width} with {count:,}); compare with `match='width'`"
        )
    return best, count


def _run_of(config: CompareConfig, dataset: Dataset, member: str, own: dict[str, Any]) -> RunSpec:
    """The member's own row, under what holds for all, under its own options."""
    genes = {gene: choice for gene, choice in config.genes.items() if choice.name != OWN}
    row = preset(member, dataset.task, **{**config.model, **genes, **own})
    data = dataclasses.replace(config.data, **info(member).genes.data)
    return dataclasses.replace(row, task=dataset.task, data=data, training=config.training)
