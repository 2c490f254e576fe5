"""Curves of `everyformer show RUN curves`, those of several seeds as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everyformer.cli.found import compared, found_run, is_comparison
from everyformer.cli.show.options import ShowOptions, folder_of, tell
from everyformer.core.errors import ConfigError
from everyformer.system.files import expanded
from everyformer.system.plain import to_json

if TYPE_CHECKING:
    from everyformer.lab.compare.results import Curve, Metric

CURVES = "curves"


class Training(NamedTuple):
    """One training, and how it went."""

    member: str
    kind: str
    """the same of trainings that differ by their seeds alone"""
    source: str
    """the run or comparison that was named"""
    data: dict[str, Any]
    metric: Metric
    curve: Curve


def draw_curves(options: ShowOptions) -> int:
    """Draw the curves of all runs that are named, and print where the picture is.

    Raises:
        ConfigError: they cannot stand in one figure, since they are of other data.
    """
    from everyformer.lab.report.curves import Quantity, draw_seeds
    from everyformer.lab.show.style import save_figure

    trainings = [each for source in (options.run, *options.others) for each in _trainings(source)]
    quantities = {Quantity.of_data(each.data, each.metric): each for each in trainings}
    datas = {str(each.data["name"]): each for each in trainings}
    for differing in (quantities, datas):
        if len(differing) > 1:
            one, other = list(differing.values())[:2]
            raise ConfigError(
                f"{one.source} and {other.source} learned from other data ({one.data['name']} and "
                f"{other.data['name']}), so their curves do not compare: name runs on the same"
            )
    [drawn] = quantities
    figure = draw_seeds(_grouped(trainings), drawn, "tokens")
    folder = folder_of(options, expanded(options.run))
    path = save_figure(figure, folder / f"{CURVES}.{options.format}")
    return tell(options, path, str(figure.get_label()))


def _trainings(source: str) -> list[Training]:
    """The run, or all that a comparison has trained.

    Raises:
        ConfigError: a saved model.
        CheckpointError: neither is there.
    """
    from everyformer.cli.trained import open_run
    from everyformer.training.curves import curve

    if is_comparison(source):
        return _compared(source)
    trained = open_run(source)
    if trained.saved:
        raise ConfigError(f"{source} is a saved model, which does not know how it was trained")
    values, rows = trained.values, curve(trained.path)
    metric: Metric = "loss"
    if rows["evaluations"]:
        metric = trained.does.metric(rows["evaluations"][-1]["evaluation"])
    described = {name: values[name] for name in ("model", "data", "tokenizer")}
    training = {**values["training"], "seed": None}
    kind = to_json([described, training], sort_keys=True)
    return [Training(trained.config.member, kind, source, values["data"], metric, rows)]


def _compared(source: str) -> list[Training]:
    # says what to do where there is no whole result yet
    found_run(source)
    results = compared(source)
    return [
        Training(
            run["member"],
            to_json([source, run["member"], run["lr"]]),
            source,
            results["data"],
            results["metric"],
            run,
        )
        for run in results["runs"]
        if run["status"] == "done"
    ]


def _grouped(every: Sequence[Training]) -> dict[str, list[Curve]]:
    """Curves of trainings that differ by their seeds alone, named by the member; by the first run
    too where several groups are of one."""
    groups: dict[str, list[Training]] = {}
    for each in every:
        groups.setdefault(each.kind, []).append(each)
    firsts = [trainings[0] for trainings in groups.values()]
    members = [first.member for first in firsts]
    named: dict[str, list[Curve]] = {}
    for first, trainings in zip(firsts, groups.values(), strict=True):
        alone = members.count(first.member) == 1
        name = first.member if alone else f"{first.member} ({Path(first.source).name})"
        # of a comparison with several learning rates
        name = name if name not in named else f"{name} {len(named) + 1}"
        named[name] = [each.curve for each in trainings]
    return named
