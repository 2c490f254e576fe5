"""`compare`: a comparison of members and its report, in one call."""

from collections.abc import Iterable
from typing import Any

from everyformer.comparison.compare import Comparison, run_comparison
from everyformer.comparison.config import CompareConfig, usual_training
from everyformer.comparison.trainings import Say
from everyformer.core.config import from_dict
from everyformer.training.names import in_full


def compare(
    members: Iterable[str] | None = None, *, say: Say = lambda text: None, **options: Any
) -> Comparison:
    """Compare members on your data, on equal footing.

    Args:
        members: names; options: what the command line takes, by the same names
            (``data="my.txt", budget_seconds=60, lengths=(256, 1024), position="rope"``), or tables
            of it (``training={"steps": 500, "lr": 3e-4}``).
        say: is told what happens, a line at a time.
    """
    from everyformer.report.comparison import write_report

    return run_comparison(described(members, **options), write_report, say=say)


def described(members: Iterable[str] | None = None, **options: Any) -> CompareConfig:
    """The comparison that `compare` would run."""
    values = in_full(CompareConfig, options)
    if members is not None:
        values["members"] = list(members)
    data = values.get("data")
    environment = data.get("env") if isinstance(data, dict) else getattr(data, "env", None)
    usual = CompareConfig(training=usual_training(environment))
    return from_dict(CompareConfig, values, "", usual)
