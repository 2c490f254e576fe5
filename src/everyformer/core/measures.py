"""Measures of evaluations, and the baselines that they are held against.

`METRICS` are those that models are ranked by, one record each; a task of another package adds its
own. `MEANS` are reported with losses (`everyformer.core.tally`). A `Baseline` is the measure of an
answer that reads no input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Metric = str
"""a name in `METRICS`"""


@dataclass(frozen=True)
class MetricInfo:
    """Meaning and notation of a metric."""

    unit: str
    """heading of a column, label of an axis"""
    better: Literal["lower", "higher"]
    format: str
    """of a value, as `format` takes it"""
    template: str
    """a written value, in place of {}, within a sentence"""
    constant: str
    """the same measure of an answer that reads nothing of the input, in an evaluation"""
    words: str
    """that answer"""
    share: bool = False
    """whether it lies between 0 and 1 and is written in percent"""

    @property
    def sign(self) -> int:
        """Sign that makes the smallest product with a value the best."""
        return 1 if self.better == "lower" else -1

    @property
    def scale(self) -> int:
        """Factor of an axis."""
        return 100 if self.share else 1

    @property
    def axis(self) -> str:
        """Label of an axis."""
        return f"{self.unit} ({'%, ' if self.share else ''}{self.better} is better)"

    def written(self, value: float) -> str:
        """A value as a table shows it."""
        return format(value, self.format)

    def difference(self, value: float) -> str:
        """A difference between two values, to two digits, with its unit."""
        return f"{100 * value:.2g} points" if self.share else f"{value:.2g} {self.unit}"

    def sentence(self, value: float) -> str:
        """A value as a sentence has it."""
        return self.template.format(self.written(value))


_LOWER = "(lower is better)"
_COUNTING, _MEAN = "counting tokens", "always giving the mean"
METRICS: dict[Metric, MetricInfo] = {
    "bits_per_byte": MetricInfo(
        "bits per byte", "lower", ".3f", f"{{}} bits per byte {_LOWER}",
        "counting_bits_per_byte", _COUNTING,
    ),
    "bits_per_dim": MetricInfo(
        "bits per dimension", "lower", ".3f", f"{{}} bits per dimension {_LOWER}",
        "counting_bits_per_dim", "counting intensities",
    ),
    "loss": MetricInfo(
        "nats per token", "lower", ".3f", f"{{}} nats per token {_LOWER}",
        "counting_loss", _COUNTING,
    ),
    "action_loss": MetricInfo(
        "loss per action", "lower", ".4g", f"a loss of {{}} an action {_LOWER}",
        "counting_action_loss", "always giving the commonest action, or the mean",
    ),
    "accuracy": MetricInfo(
        "accuracy", "higher", ".1%", "{} of the validation set right",
        "majority_accuracy", "always giving the commonest class", share=True,
    ),
    "answers": MetricInfo(
        "answers right", "higher", ".1%", "{} of the answers right",
        "shortcut_answers", "the best cheap rule that is known", share=True,
    ),
    "mae": MetricInfo(
        "mean absolute error", "lower", ".4g", f"a mean absolute error of {{}} {_LOWER}",
        "mean_mae", _MEAN,
    ),
    "scaled_rmse": MetricInfo(
        "RMSE in standard deviations", "lower", ".4g",
        f"a root mean square error of {{}} standard deviations {_LOWER}",
        "mean_scaled_rmse", _MEAN,
    ),
    "rmse": MetricInfo(
        "root mean square error", "lower", ".4g",
        f"a root mean square error of {{}} {_LOWER}", "mean_rmse", _MEAN,
    ),
    "r2": MetricInfo("R²", "higher", ".3f", "an R² of {} (1 is best)", "mean_r2", _MEAN),
}  # fmt: skip


class Mean(NamedTuple):
    """Names of a mean."""

    name: str
    """in evaluations and results"""
    title: str
    """in a sentence or over a column"""
    brief: str
    """where there is little room"""


MEANS = {
    "depth": Mean("mean_depth", "steps of layers that a token takes", "steps a token"),
    "span": Mean("mean_span", "tokens that a head looks back, ramp included", "span of a head"),
}
"""means over tokens, or over the heads that read them"""


class Baseline(NamedTuple):
    """An answer that needs no model."""

    value: float
    """its measure on the same held-out data"""
    words: str
    """a description, for a sentence"""
    metric: Metric


NOT_BETTER = "not surely better than"
"""begins the sentence of an evaluation that does not beat its baseline"""


def constant(metrics: Sequence[Metric], evaluation: Mapping[str, Any]) -> Baseline | None:
    """The baseline in the first of the measures that an evaluation has; None where it has none."""
    metric = next((name for name in metrics if name in evaluation), None)
    if metric is None or METRICS[metric].constant not in evaluation:
        return None
    info = METRICS[metric]
    return Baseline(float(evaluation[info.constant]), info.words, metric)


def beats(evaluation: Mapping[str, Any], base: Baseline) -> bool:
    """True if the whole 95% interval is better, where it is known; of one row nothing is sure."""
    around = evaluation.get(f"{base.metric}_interval")
    if around is None and evaluation.get("sequences") == 1:
        return False
    lower = METRICS[base.metric].better == "lower"
    worst = around[lower] if around else evaluation[base.metric]
    return bool(worst < base.value if lower else worst > base.value)


def sentence(base: Baseline, better: bool) -> str:
    """Whether the baseline is beaten, with its value."""
    than = "better than" if better else NOT_BETTER
    return f"{than} {base.words} ({base.metric.replace('_', ' ')} {base.value:.4g})"
