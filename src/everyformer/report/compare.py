"""`compare`: a comparison of members and its report, in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everyformer.comparison.compare import Comparison, run_comparison
from everyformer.comparison.config import CompareConfig
from everyformer.comparison.trainings import Say
from everyformer.core.config import from_dict


def compare(
    members: Iterable[str] | None = None, *, say: Say = lambda text: None, **options: Any
) -> Comparison:
    """Compare members on your data, on equal footing.

    Args:
        members: names; options: fields of `CompareConfig`, nested ones as dictionaries
            (``data={"source": "my.txt"}, training={"budget_seconds": 60}``).
        say: is told what happens, a line at a time.
    """
    from everyformer.report.comparison import write_report

    values = dict(options)
    if members is not None:
        values["members"] = list(members)
    config = from_dict(CompareConfig, values, "", CompareConfig())
    return run_comparison(config, write_report, say=say)
