"""`everyformer reproduce NAME`: the signature experiment of a member, on this machine."""

from dataclasses import dataclass

import tyro

from everyformer.cli.parsing import say, verb
from everyformer.core.bounds import Positive, Repeats
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.system.console import emit, table
from everyformer.system.files import expanded, require_no_file


@dataclass(frozen=True)
class ReproduceOptions(Options):
    """The words of `everyformer reproduce`."""

    name: tyro.conf.Positional[str]
    """a member, or one experiment by its name"""
    seeds: Repeats = 3
    """repetitions"""
    data: str | None = None
    """real data, for the experiments that want some"""
    scale: Positive = 1.0
    """steps and samples times this; below 1 only tries whether it runs"""
    out: str = "runs/reproduce"
    """where results and figures go"""
    json: bool = False
    """machine output"""


@verb(
    ReproduceOptions,
    about="Put a member's claim to the test: numbers over seeds, and a figure.",
    examples=("everyformer reproduce gmlp", "everyformer reproduce saturation --seeds 5"),
)
def run(options: ReproduceOptions) -> int:
    """Run the experiments; exit code 1 if a claim was not seen."""
    from everyformer.lab.experiments.base import find, perform
    from everyformer.lab.experiments.study import StudySetting

    require_no_file(expanded(options.out))
    chosen = find(options.name)
    if not chosen:
        raise ConfigError(f"no experiment of '{options.name}' is built yet")
    ready = [e for e in chosen if e.data is None or options.data is not None]
    for experiment in chosen:
        if experiment not in ready:
            say(f"{experiment.name}: left out, it wants {experiment.data}; give it with --data")
    if not ready:
        raise ConfigError(f"nothing of '{options.name}' runs without --data")
    results = []
    for experiment in ready:
        say(f"{experiment.name}: about {experiment.minutes:g} minutes; {experiment.claim}")
        setting = StudySetting(options.seeds, options.scale, options.data, say)
        results.append(perform(experiment, setting, expanded(options.out)))
    if options.json:
        emit(results)
    for result in results if not options.json else []:
        print(f"\n{result['experiment']}: {'seen' if result['holds'] else 'NOT seen'}")
        print(f"{result['sentence']}\nclaim: {result['claim']}")
        rows = []
        for name, values in (result["numbers"] | result["beside"]).items():
            low, high = values["interval"] or (None, None)
            span = None if low is None else f"{low:.4g} to {high:.4g}"
            rows.append((name, values["mean"], span))
        print(table(("measured", "mean", "95% interval over seeds"), rows))
        for figure in result["figures"]:
            print(f"figure  {expanded(options.out) / figure}")
    return 0 if all(result["holds"] for result in results) else 1
