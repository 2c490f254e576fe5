"""Results of a comparison, as its files hold them: trainings, rows of the table, the whole.

result.json holds a `Result`, results.json `Results`; all values are plain.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from everyformer.core.measures import MEANS, Mean
from everyformer.core.measures import Metric as Metric
from everyformer.core.tasks import TASKS, Task
from everyformer.lab.bench.points import Point
from everyformer.training.config import Precision
from everyformer.training.curves import Curve as Curve
from everyformer.training.curves import Evaluation as Evaluation
from everyformer.training.curves import Logged as Logged

Interval = list[float]
"""low and high end"""
Axis = Literal["seconds", "tokens", "flops"]
"""what a training has spent"""


class Sample(TypedDict):
    """The beginning of a validation text, and what the model makes of it."""

    prompt: str
    text: str


class Failed(TypedDict):
    """Reason why a training or a member has no result."""

    status: Literal["failed"]
    error: str | None


class Calibrated(TypedDict):
    """Training speed of a member, measured with all members in turn before any is trained."""

    seconds: float
    """a step, in the fastest round of all"""
    rounds: list[float]
    """seconds a step in each round; that of the first, shorter one where there was no time for more
    of them"""
    cpu_seconds: float
    """of all threads a step, in that round"""
    steps: int
    """of the budget"""
    precision: Precision
    """in which it was timed and is trained: what `precision` auto came to"""
    peak_bytes: int | None
    """by which a few steps raise the memory of the process that times all members"""
    tokens_per_second: float
    """of training: the median round"""
    speed_spread: Interval | None
    """quartiles of that over the rounds; None of fewer than five"""
    decode_ms: dict[str, float]
    """milliseconds a token by tokens before it, the median round"""
    decode_spread: dict[str, Interval]
    """quartiles of those milliseconds"""
    decode_bytes: dict[str, int]
    """memory of a text as it is written, by its tokens; none where there is no exact state"""
    state_bytes: int | None
    """of the longest of them"""
    longest: int | None
    """tokens that its tables can hold; None: any number"""


class Trained(TypedDict):
    """Result of a training."""

    status: Literal["done"]
    steps: int
    tokens: int
    seconds: float
    flops: int
    tokens_per_second: float
    """in this training, at its hour: members are compared by `Calibrated`"""
    evaluation: Evaluation
    """at the last step"""
    chosen_by: NotRequired[float]
    """the loss that a learning rate is chosen by; without it that of the evaluation"""
    leaks: NotRequired[str]
    """why its loss is none of a model that writes"""
    load: NotRequired[float | None]
    """threads on the machine that wanted a core during the training, its threads included (mean)"""
    limits: NotRequired[list[str]]
    """what the model cannot, in sentences"""
    by_position: NotRequired[list[list[float]]]
    """[first position, mean loss] of each part of the window"""
    sample: NotRequired[Sample | None]
    config: NotRequired[dict[str, Any]]
    """the model's, in the training's file"""


Result = Trained | Failed


class Planned(Curve):
    """Member, seed and learning rate of a training."""

    member: str
    seed: int
    lr: float
    folder: str


class CompletedRun(Planned, Trained):
    """A training with its curve."""


class FailedRun(Planned, Failed):
    """A training that failed, with its curve."""


Run = CompletedRun | FailedRun


class FailedRow(Failed):
    """The row of a member that cannot be built, or of which a training failed."""

    member: str


class TableRow(TypedDict):
    """A member's row of the table: means over its trainings, one a seed."""

    member: str
    status: Literal["done"]
    parameters: int
    seeds: int
    quality: float
    interval: Interval | None
    """of 95%"""
    interval_of: Literal["seeds", "validation sequences"]
    values: list[float]
    """the quality of each seed"""
    lr: NotRequired[float]
    """peak learning rate of its trainings"""
    tokens_per_second: float | None
    """this and what else is measured in turn is None or empty where it could not be timed"""
    trained_tokens_per_second: float
    """in its trainings, each at its hour"""
    tokens: float
    flops: float
    steps: float
    peak_bytes: int | None
    decode_ms: dict[str, float]
    """milliseconds a token, by tokens before it"""
    decode_bytes: NotRequired[dict[str, int]]
    """memory of a text by its tokens"""
    state_bytes: int | None
    """of the longest of them"""
    longest: NotRequired[int | None]
    """tokens that its tables can hold"""
    mean_depth: NotRequired[float | None]
    """steps of layers that a held-out token takes, where that differs by token"""
    mean_span: NotRequired[float | None]
    """tokens that a head looks back, ramp included, where that is learned"""
    leaks: str | None
    by_position: list[list[float]] | None
    sample: Sample | None
    seconds_to_slowest: NotRequired[float | None]
    """until the quality of the last in the table; these four are known when all rows are"""
    parameter_ratio: NotRequired[float | None]
    """to the first member"""
    beats_attention_from: NotRequired[int | None]
    """tokens"""
    preset: NotRequired[dict[str, Any]]
    """what its preset changes besides its genes"""
    baseline: float | None
    """the quality of an answer that reads nothing of the input; None where there is
    none (see `core.measures`)"""
    baseline_words: str
    """a description of that answer"""
    beats_baseline: bool | None
    """whether every training surely beats that, by its interval over held-out sequences"""
    seconds: float
    """of training, without evaluations"""
    speed_spread: Interval | None
    """quartiles of the tokens a second"""
    decode_spread: dict[str, Interval]
    """quartiles of the milliseconds a token"""
    limits: list[str]
    """what the model cannot, in sentences"""
    calibrated: Calibrated | None
    """what was measured with all members in turn; None where it could not be timed"""
    load: float | None
    """threads on the machine that wanted a core, its included: the highest mean of a training"""
    group: str
    """of the family; see `Member`"""
    letters: list[str]
    """of the tiers that it is in: members with a letter in common cannot be told apart"""
    same_as: list[str]
    """members with the same losses to the last digit"""


class Contrast(TypedDict):
    """Two members, the one with the better mean first (`everyformer.lab.compare.contrasts`)."""

    better: str
    worse: str
    difference: float
    """mean over seeds"""
    interval: Interval
    """that holds with those of all pairs in 95% of comparisons"""
    probability: float
    """of a difference as large between equal members, corrected for the number of pairs"""
    apart: bool
    """whether they are told apart"""


class Power(TypedDict):
    """Seeds that it takes to see a difference."""

    difference: float
    seeds: int | None
    """that see it in 8 of 10 comparisons; None: too many, or unknown from one training each"""


class Verdict(TypedDict):
    """Order that the numbers support."""

    best: list[str]
    """members that share the first tier, best first; one where the winner is settled"""
    doubts: list[str]
    """why no winner may be named, in sentences without a full stop"""
    useful: bool
    """whether the first of the table surely beats an answer that reads nothing of the input"""
    smallest: float | None
    """the smallest difference that would have told two members apart; None: one training each"""
    power: NotRequired[Power | None]
    """the difference that matters, as it was given"""
    looks: NotRequired[int]
    """that were planned, among which the 5% by which it may err are shared"""
    ended: NotRequired[Literal["winner", "margin", "seeds"] | None]
    """why no further seeds were added: the winner is settled, those of the first tier differ by
    less than the margin, or all seeds are spent; None: more come, or their number was fixed"""


class Results(TypedDict):
    """Everything that a report is drawn from."""

    format: str
    command: str
    config: dict[str, Any]
    environment: dict[str, Any]
    data: dict[str, Any]
    """see `Dataset.summary`"""
    metric: Metric
    better: str
    rows: list[TableRow | FailedRow]
    """best first"""
    runs: list[Run]
    tried: NotRequired[list[Run]]
    """trainings by the learning rates of the grid that were not chosen"""
    bench: list[dict[str, Any]]
    """see `points`"""
    contrasts: list[Contrast]
    """all pairs; none with one training each"""
    verdict: Verdict
    waiting: list[str]
    """members whose trainings are still to come; none in a finished comparison"""
    next: list[list[str]]
    """what to do with the best now: [in words, the command]"""


def finished(results: Results) -> list[TableRow]:
    """Rows of members that were trained to the end, best first."""
    return [row for row in results["rows"] if row["status"] == "done"]


def reported(row: TableRow, mean: Mean) -> float | None:
    """Value of ``mean`` in a member's evaluations; None: there is none."""
    value: float | None = dict(row).get(mean.name)  # type: ignore[assignment]
    return value


def reported_means(rows: Sequence[TableRow]) -> list[Mean]:
    """The means that some of ``rows`` tell."""
    return [mean for mean in MEANS.values() if any(reported(row, mean) is not None for row in rows)]


def points(results: Results) -> list[Point]:
    """Measurements of one layer of each member."""
    return [Point(**values) for values in results["bench"]]


def quality_of(evaluation: Evaluation, metric: Metric) -> float:
    """The number that members are ranked by."""
    return float(evaluation[metric])


def interval_of(evaluation: Evaluation, metric: Metric) -> Interval | None:
    """Its 95% interval over validation sequences; None where it is not known."""
    return evaluation.get(f"{metric}_interval")


def task_of(data: Mapping[str, Any]) -> Task:
    """The task of the ``data`` of `Results`."""
    return TASKS[data["task"]]
