"""`Certificate`: what a calibration has shown, kept beside the model that it was shown of.

It holds for prompts that come from where the calibration's came from, and for the model that was
calibrated, weights and all: `Certificate.require` refuses it elsewhere. It has no date, so that the
same calibration writes the same file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from everyformer.core.bounds import Count
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.core.sealed import read_json, write_json
from everyformer.core.wording import listed
from everyformer.guarantees.learn_then_test import FixedSequence

FORMAT = "everyformer-certificate"

Consistency = Literal["text", "risk"]


@dataclass(frozen=True, kw_only=True)
class Certificate(FixedSequence):
    """A fixed sequence test, with what its losses were measured by and on."""

    consistency: Consistency
    """text: the loss is the distance of a text from the full model's; risk: how much more it loses
    than the full model's text, against references"""
    metric: str
    """of the loss"""
    tokens: Count
    """how many each text has at most"""
    data: str
    """fingerprint of the calibration prompts"""
    model: str
    """fingerprint of the model"""
    source: str | None = None
    """fingerprint of the data that the prompts were drawn of; None: they are not known as data"""

    @classmethod
    def of(
        cls,
        found: FixedSequence,
        *,
        consistency: Consistency,
        metric: str,
        tokens: int,
        data: str,
        model: str,
        source: str | None = None,
    ) -> Certificate:
        """What ``found`` shows of a model on prompts drawn of data, given by their fingerprints."""
        tested = {field.name: getattr(found, field.name) for field in fields(FixedSequence)}
        return cls(
            **tested,
            consistency=consistency,
            metric=metric,
            tokens=tokens,
            data=data,
            model=model,
            source=source,
        )

    @property
    def statement(self) -> str:
        """The guarantee in a sentence."""
        tested = f"{self.n:,} prompts, '{self.p_value}'"
        if self.threshold is None:
            return (
                f"No threshold passed the test at delta={self.delta:g}, epsilon={self.epsilon:g} "
                f"({self.metric}, {tested}): the full model is used, without exits."
            )
        risk = {"text": "distance from the full model's text", "risk": "loss beyond the full model"}
        return (
            f"Exits at threshold {self.threshold:g} have an expected {risk[self.consistency]} of "
            f"at most {self.delta:g} ({self.metric}), with probability at least "
            f"{1 - self.epsilon:g} over the calibration prompts ({tested}, {self.tokens:,} tokens "
            "each, the likeliest)."
        )

    def require(self, *, data: str | None = None, model: str | None = None) -> None:
        """Refuse to be used for other data or another model than it was made with.

        Args:
            data: fingerprint of the prompts; None where none are at hand to compare.
            model: fingerprint of the model; likewise.

        Raises:
            CheckpointError: either differs; names which, with the fingerprints.
        """
        differing = [
            f"{kind} (fingerprint {own}, given {given})"
            for kind, own, given in (
                ("other data", self.data, data),
                ("another model", self.model, model),
            )
            if given is not None and given != own
        ]
        if differing:
            raise CheckpointError(
                f"the certificate was made with {listed(differing)}: calibrate anew with: "
                "everyformer calibrate"
            )

    def write(self, path: Path) -> None:
        """Write it to a sealed JSON file, whole or not at all; the threshold stands in it too."""
        write_json(path, {"format": FORMAT, **to_dict(self), "threshold": self.threshold})

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """The certificate in a file.

        Raises:
            DamagedError: the file is missing, cut short or changed.
            CheckpointError: it holds something else.
        """
        values = read_json(path, FORMAT)
        for derived in ("format", "version", "threshold"):
            values.pop(derived, None)
        try:
            return from_dict(cls, values)
        except ConfigError as error:
            raise CheckpointError(
                f"{path} is no certificate that this everyformer reads ({error}); calibrate anew "
                "with: everyformer calibrate"
            ) from error
