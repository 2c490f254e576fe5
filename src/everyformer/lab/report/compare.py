"""`compare`: a comparison of members and its report, in one call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everyformer.core.config import from_dict
from everyformer.core.errors import EveryformerError
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.lab.compare.collect import as_lines
from everyformer.lab.compare.compare import Outcome, run_comparison
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.folder import COMPARISONS
from everyformer.lab.compare.trainings import Say
from everyformer.lab.report.terminal import as_html, render
from everyformer.training.names import in_full

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Comparison(Outcome):
    """Result of a comparison, which prints as its table."""

    def __str__(self) -> str:
        return render(self.results) if self.results else repr(self)

    def __repr__(self) -> str:
        members = ", ".join(row["member"] for row in self.rows)
        return f"Comparison([{members}], folder={str(self.folder)!r})"

    def _repr_html_(self) -> str | None:
        """The table in a notebook."""
        return as_html(self.results) if self.results else None

    def to_pandas(self) -> pandas.DataFrame:
        """The lines of results.csv, one a seed of each member (docs/compare.md).

        Raises:
            EveryformerError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise EveryformerError(
                "to_pandas needs the package 'pandas', which is not installed; install it with: "
                "pip install pandas"
            ) from error
        return DataFrame(as_lines(self.results) if self.results else [])


def compare(
    members: Iterable[str] | None = None, *, say: Say = lambda text: None, **options: Any
) -> Comparison:
    """Compare members on your data, on equal footing.

    Args:
        members: names; options: what the command line takes, by the same names
            (``data="my.txt", budget_seconds=60, lengths=(256, 1024), position="rope"``), or tables
            of it (``training={"steps": 500, "lr": 3e-4}``). With ``resume=True`` what the
            comparison in ``out`` was started with need not be given again.
        say: called with each line of progress.
    """
    from everyformer.lab.report.comparison import write_report

    done = run_comparison(described(members, **options), write_report, say=say)
    return Comparison(**vars(done))


def described(members: Iterable[str] | None = None, **options: Any) -> CompareConfig:
    """The comparison that `compare` would run."""
    values = in_full(CompareConfig, options)
    if members is not None:
        values["members"] = [members] if isinstance(members, str) else list(members)
    values |= {gene: None for gene in GENES if values.get(gene) in NONE}
    usual = CompareConfig()
    if values.get("resume"):
        named = members is not None
        usual = (
            COMPARISONS.started(CompareConfig, values.get("out", usual.out), named=named) or usual
        )
    return from_dict(CompareConfig, values, "", usual)
