"""Experiments by name, and the files that each leaves."""

import importlib
import pkgutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everyformer.core.errors import ConfigError, unknown
from everyformer.core.student import mean_interval
from everyformer.family import list_members
from everyformer.lab.experiments.measures import mean
from everyformer.lab.experiments.study import KNOWN, Experiment, StudySetting
from everyformer.system.files import file_written_whole, write_text
from everyformer.system.plain import to_json


def experiments() -> list[Experiment]:
    """All experiments that the files of this package hold, in the order of the members' table."""
    every: list[Experiment] = []
    for file in pkgutil.iter_modules([str(Path(__file__).parent)]):
        module = importlib.import_module(f"{__package__}.{file.name}")
        every += KNOWN.get(module.__name__, [])
    order = [member.name for member in list_members()]
    return sorted(every, key=lambda one: min(map(order.index, one.members)))


def find(name: str) -> list[Experiment]:
    """The experiments called ``name``, or those of the member ``name``."""
    known, members = experiments(), [member.name for member in list_members()]
    chosen = [e for e in known if e.name == name] or [e for e in known if name in e.members]
    if not chosen and name not in members:
        raise unknown("experiment or member", name, [*(e.name for e in known), *members])
    return chosen


def perform(experiment: Experiment, setting: StudySetting, folder: Path) -> dict[str, Any]:
    """Run, write result.json and figures below ``folder``, and return the result.

    Raises:
        ConfigError: the experiment wants real data that was not given.
    """
    from everyformer.training.run import check_writable
    from everyformer.training.surroundings import environment

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
        "beside": {name: summary(values) for name, values in outcome.beside.items()},
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


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, 95% interval over seeds and the values themselves."""
    interval = mean_interval(values) if len(values) > 1 else None
    return {"mean": mean(values), "interval": interval, "values": list(values)}
