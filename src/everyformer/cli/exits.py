"""Thresholds of a run's early exits: as is asked, or its certificate says, or its training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from everyformer.cli.parsing import say
from everyformer.core.errors import ConfigError
from everyformer.core.plugins import command
from everyformer.lab.exits.options import ExitConfig

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun

CERTIFICATE = "certificate.json"
"""beside the weights of a run"""
CALIBRATION = "calibration.json"
"""beside the certificate: what pictures are drawn of"""
CALIBRATION_FORMAT = "everyformer-calibration"


def settle_exits(
    trained: TrainedRun,
    model: Any,
    options: ExitConfig,
    data: str | None = None,
    *,
    tokens: float | None = None,
    likeliest: bool = True,
) -> None:
    """Let the tokens of ``model`` leave as is asked, or as the run says, and tell which.

    Args:
        data: fingerprint of what it is going to read, where that is known.
        tokens: that it is going to write, where it writes; infinite: without an end.
        likeliest: whether each of them is the likeliest.

    Raises:
        ConfigError: something is asked of a model without early exits.
        CheckpointError: the run's certificate is of another model, or damaged.
    """
    from everyformer.genes.depth.early_exits import exits_of, set_threshold
    from everyformer.lab.exits.certificate import Certificate
    from everyformer.system.fingerprint import weights_digest

    chosen = [
        name
        for name in ("threshold", "thresholds", "full")
        if getattr(options, name) != getattr(ExitConfig(), name)
    ]
    if len(chosen) > 1:
        raise ConfigError(
            f"--exits.{chosen[0]} and --exits.{chosen[1]} both say where tokens leave: give one of "
            "them"
        )
    if not exits_of(model) and options == ExitConfig():
        return
    file = trained.path / CERTIFICATE
    if options != ExitConfig():
        set_threshold(model, options.thresholds or options.threshold)
    elif file.exists():
        certificate = Certificate.read(file)
        certificate.require(weights_digest(trained.model()))
        set_threshold(model, certificate.used)
        say(certificate.statement)
        other = [] if likeliest else ["draws its tokens (--temperature 0 takes the likeliest)"]
        if tokens not in (None, certificate.tokens):
            other.append("has no end" if tokens == math.inf else f"has {tokens:,} tokens")
        if other and certificate.used is not None:
            say(f"This text {' and '.join(other)}, so nothing of it is promised.")
        if None not in (data, certificate.source) and data != certificate.source:
            say(
                "Its prompts were drawn of other data than these, of which it promises nothing: "
                f"{command(f'calibrate {trained.path} --data ...')} does"
            )
    elif exits_of(model)[0].has_threshold:
        say(
            "tokens leave as in training, which promises nothing: "
            f"{command(f'calibrate {trained.path}')} finds the threshold that keeps a promise"
        )
