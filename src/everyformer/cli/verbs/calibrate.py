"""`everyformer calibrate RUN --data PROMPTS`: the threshold of early exits that keeps a promise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from everyformer.cli.eval_data import for_source, measured
from everyformer.cli.exits import CALIBRATION, CALIBRATION_FORMAT, CERTIFICATE
from everyformer.cli.parsing import TrainedOptions, say, verb
from everyformer.core.bounds import Count, Seed, Share
from everyformer.core.config import MISSING, to_dict
from everyformer.core.errors import DataError, UnsupportedError
from everyformer.core.plugins import command
from everyformer.data.config import DataConfig
from everyformer.lab.exits.learn_then_test import Guarantee
from everyformer.system.console import emit, facts, table

if TYPE_CHECKING:
    import numpy as np

    from everyformer.cli.trained import TrainedRun
    from everyformer.lab.exits.calibration import Prompt
    from everyformer.lab.exits.certificate import Certificate
    from everyformer.lab.exits.costs import Costs

OWN_DATA = "what the run was trained on"
"""stands for the source in help"""


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(TrainedOptions, Guarantee):
    """The words of `everyformer calibrate`."""

    data: DataConfig = field(default_factory=DataConfig)
    """texts that prompts are drawn of, which are like those that the model will be used on
    (default: the part of the run's own that it was not trained on)"""
    lines: bool = False
    """prompts are lines of the texts"""
    prompts: Count = 200
    """how many are drawn at most, of all that there are: the first of a sorted file would not stand
    for the others"""
    prompt_length: Count = 32
    """tokens of a prompt that is cut out of a running text"""
    tokens: Count = 32
    """how many are written behind each"""
    consistency: Literal["text", "risk"] = "text"
    """what must hold: that a text is like the full model's, or that it loses no more than that does
    against what really followed"""
    metric: Literal["tokens", "exact", "bleu", "chrf"] = "tokens"
    """how far two texts are apart: the share of tokens that differ, whether any does, or 1 less
    BLEU or chrF"""
    thresholds: tuple[Share, ...] = (
        *(0.99, 0.97, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
    )
    """from the safest on; choose them before you look at these prompts"""
    first_failure: bool = False
    """stop at the first threshold that fails (default: measure the others too, for pictures)"""
    batch: Count = 32
    """texts written at a time"""
    seed: Seed = 0
    """draws the prompts"""
    json: bool = False
    """machine output"""


@verb(
    CalibrateOptions,
    about="Find the threshold of early exits that keeps a promise on texts like these.",
    examples=(
        "everyformer calibrate runs/calm --data prompts.txt --delta 0.05 --epsilon 0.05",
        "everyformer calibrate runs/calm --data prompts.txt --lines --metric exact",
    ),
    default=CalibrateOptions(run=MISSING, data=DataConfig(source=OWN_DATA)),
)
def run(options: CalibrateOptions) -> int:
    """Write at every threshold, test, and keep the certificate with the run."""
    from everyformer.cli.trained import open_run
    from everyformer.genes.depth.early_exits import exit_of
    from everyformer.lab.exits.calibration import Calibration
    from everyformer.lab.exits.certificate import Certificate
    from everyformer.lab.exits.costs import exit_costs
    from everyformer.lab.exits.learn_then_test import fixed_sequence, require_enough
    from everyformer.system.fingerprint import weights_digest
    from everyformer.system.sealed import write_json
    from everyformer.system.status import status

    guarantee = Guarantee(options.delta, options.epsilon, options.p_value)
    trained = open_run(options.run, options.device)
    model = trained.model().eval()
    exit_of(model)
    prompts, source = _prompts(trained, options), _source(trained, options)
    say(f"{len(prompts):,} prompts, drawn by --seed {options.seed}")
    calibration = Calibration(
        model, prompts, trained.tokenizer(), options.metric, options.consistency, options.tokens,
        options.batch,
    )  # fmt: skip
    require_enough(len(prompts), guarantee)
    by_threshold: dict[float, list[float]] = {}

    def losses(threshold: float) -> np.ndarray:
        with status(f"writing {len(prompts):,} texts at threshold {threshold:g}"):
            measured = calibration.losses(threshold)
        by_threshold[threshold] = measured.tolist()
        return measured

    tested = fixed_sequence(
        options.thresholds, losses, guarantee, to_the_end=not options.first_failure
    )
    with status("measuring what exits save"):
        costs = exit_costs(calibration, tested.threshold)
    certificate = Certificate.of(
        tested,
        consistency=options.consistency,
        metric=options.metric,
        tokens=options.tokens,
        data=calibration.fingerprint,
        model=weights_digest(model),
        source=source,
        depth=calibration.depths[tested.threshold] / costs.layers,
        operations=costs.operations / costs.full_operations,
    )
    certificate.write(trained.path / CERTIFICATE)
    depths = {str(key): depth for key, depth in calibration.depths.items()}
    record = {"losses": {str(k): v for k, v in by_threshold.items()}, "depths": depths}
    record |= {"costs": to_dict(costs), "delta": options.delta, "epsilon": options.epsilon}
    record |= {"p_value": options.p_value, "metric": options.metric}
    write_json(trained.path / CALIBRATION, {"format": CALIBRATION_FORMAT, **record})
    if options.json:
        derived = {name: getattr(certificate, name) for name in ("threshold", "saves", "statement")}
        emit({"run": options.run, "certificate": to_dict(certificate) | derived, "depths": depths,
              "costs": to_dict(costs)})  # fmt: skip
    else:
        _print(certificate, calibration.depths, costs, options)
    return 0


def _print(
    certificate: Certificate,
    depths: dict[float | None, float],
    costs: Costs,
    options: CalibrateOptions,
) -> None:
    """The calibration, for people."""
    accepted = certificate.accepted
    rows = [
        [f"{step.threshold:g}", f"{step.risk:.4f}", f"{step.p:.3g}",
         "yes" if step in accepted else "no", f"{depths[step.threshold]:.2f}"]
        for step in certificate.steps
    ]  # fmt: skip
    if certificate.used is None:
        print(f"{certificate.statement}\n")
    loss = "distance" if options.consistency == "text" else "further loss"
    print(table(["threshold", loss, "p", "passes", f"layers of {costs.layers}"], rows))
    print()
    if certificate.used is not None:
        print(f"{certificate.statement}\n")
    share = costs.operations / costs.full_operations
    print(
        facts(
            {
                "layers a token, timed": f"{costs.depth:.2f} of {costs.layers}",
                "operations a token": f"{costs.operations:.4g}, {share:.2f} of the full model's",
            }
            | {
                f"tokens a second, {_at_once(speed.batch)}": f"{speed.early:,.0f}, "
                f"{speed.early / speed.plain:.2f} of the plain model's {speed.plain:,.0f}; "
                f"{speed.full:,.0f} where none leaves"
                for speed in costs.speeds
            }
        )
    )
    faster = any(speed.early > speed.plain for speed in costs.speeds)
    if certificate.saves and not faster:
        print("\nExits save no time here: the plain model, which knows none, is as fast or faster.")
    exits = "--temperature 0" if certificate.saves and faster else "--exits.full"
    words = f"generate {options.run} {exits} --prompt '...'"
    print(f"next  {command(words)}")


def _at_once(batch: int) -> str:
    return "one text" if batch == 1 else f"{batch} texts"


def _prompts(trained: TrainedRun, options: CalibrateOptions) -> list[Prompt]:
    """Prompts that texts are written for."""
    from everyformer.lab.exits.calibration import Prompt, drawn, drawn_prompts

    if trained.does.translates:
        pairs = trained.dataset(_config(trained, options))
        assert pairs.tokenizer is not None
        encode = pairs.tokenizer.encode
        both = list(zip(*pairs.held_out_pairs(), strict=True))
        return [
            Prompt(tuple(source.tolist()), tuple(encode(reference)))
            for source, reference in drawn(both, options.prompts, options.seed)
        ]
    tokenizer = trained.tokenizer()
    if tokenizer is None or not trained.does.continues:
        raise UnsupportedError(trained.no_text())
    texts = _texts(trained, options)
    if options.lines:
        every = [Prompt(tuple(line.tolist())) for line in texts if len(line)]
        if not every:
            raise DataError("there is no line with anything on it: give prompts, one a line")
        return drawn(every, options.prompts, options.seed)
    return drawn_prompts(
        texts, options.prompt_length, options.tokens, options.prompts, options.seed
    )


def _config(trained: TrainedRun, options: CalibrateOptions) -> DataConfig:
    """The data that prompts are drawn of."""
    config = trained.data if options.data.source == OWN_DATA else options.data
    if config is None:
        raise DataError(
            f"{options.run} does not know its data: say which texts prompts are drawn of with "
            "--data"
        )
    return config


def _source(trained: TrainedRun, options: CalibrateOptions) -> str | None:
    """Fingerprint of that data, as `eval` reads it; None where it is too little to be."""
    config, known = _config(trained, options), trained.data
    if known is not None:
        read = dataclasses.replace(for_source(known, config.source), source=config.source)
        config = measured(trained, read)
    try:
        fingerprint: str = trained.dataset(config).fingerprint
    except DataError:
        return None
    return fingerprint


def _texts(trained: TrainedRun, options: CalibrateOptions) -> list[np.ndarray]:
    """Tokens of the texts, or of their lines."""
    import numpy as np

    from everyformer.data.sources import open_source
    from everyformer.stores.texts import Texts

    tokenizer = trained.tokenizer()
    assert tokenizer is not None
    if options.data.source == OWN_DATA:
        dataset = trained.dataset(config := _config(trained, options)).running_text
        assert dataset is not None
        trained.changed(config, dataset)
        say(f"prompts are drawn of {dataset.name}: {dataset.split}")
        texts = [np.asarray(dataset.validation)]
    else:
        texts = list(Texts(open_source(options.data.source), tokenizer, options.data))
    if not options.lines:
        return texts
    whole = [tokenizer.decode(text.tolist()).splitlines() for text in texts]
    lines = [line for text in whole for line in text if line.strip()]
    return [np.array([*tokenizer.opening, *tokenizer.encode(line)]) for line in lines]
