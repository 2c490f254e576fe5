"""`Certificate`: what a calibration has shown, kept with the model that it was shown of.

It holds for prompts that come from where the calibration's came from, and for the model that was
calibrated, weights and all: `Certificate.require` refuses it elsewhere. It has no date, so that the
same calibration writes the same file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from everyformer.core.bounds import Amount, Count, Share
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.lab.exits.learn_then_test import FixedSequence
from everyformer.system.sealed import read_json, write_json

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
    depth: Share | None = None
    """layers of a token at the threshold, as a share of all; None: not known, as are those below"""
    operations: Amount | None = None
    """of a token, as a share of the full model's"""

    @classmethod
    def of(cls, sequence: FixedSequence, **more: Any) -> Certificate:
        """The certificate of a test; ``more`` are the fields of this class."""
        tested = {field.name: getattr(sequence, field.name) for field in fields(FixedSequence)}
        return cls(**tested, **more)

    @property
    def used(self) -> float | None:
        """The threshold that tokens leave by; None where none passed or by which none left."""
        return None if self.depth == 1 else self.threshold

    @property
    def saves(self) -> bool:
        """True if exits save any operations, as far as that is known."""
        return self.used is not None and (self.operations is None or self.operations < 1)

    @property
    def statement(self) -> str:
        """The guarantee in a sentence, or that there is nothing to guarantee."""
        tested = f"{self.metric}, {self.n:,} prompts, '{self.p_value}'"
        if self.used is None:
            passed = (
                f"threshold {self.threshold:g} passed" if self.accepted else "no threshold passed"
            )
            nobody = ", but no token of the prompts left by it" if self.accepted else ""
            return (
                f"No token ever leaves early, so exits save nothing: {passed} the test at "
                f"delta={self.delta:g}, epsilon={self.epsilon:g} ({tested}){nobody}. The full "
                f"model is used, without exits. {self._mend}"
            )
        risk = {"text": "distance from the full model's text", "risk": "loss beyond the full model"}
        more = (
            ""
            if self.saves
            else f" They save nothing: a token takes {self.operations:.2f} times the full model's "
            "operations, since asking layers costs more than leaving spares."
        )
        return (
            f"Exits at threshold {self.used:g} have an expected {risk[self.consistency]} of "
            f"at most {self.delta:g}, with probability at least {1 - self.epsilon:g} over the "
            f"calibration prompts ({tested}, {self.tokens:,} tokens each, the likeliest).{more}"
        )

    @property
    def _mend(self) -> str:
        """Remedies where no token leaves."""
        failed = next(iter(self.steps[len(self.accepted) :]), None)
        if failed is None:
            mend = f"Lower --thresholds than {self.steps[-1].threshold:g} may let some"
        elif failed.risk < self.delta:
            mend = (
                f"A loss of {failed.risk:.3g} at {failed.threshold:g} is below delta, but not "
                f"surely: more --prompts than {self.n:,} may pass it, or a larger --delta"
            )
        else:
            mend = (
                f"The loss at {failed.threshold:g} is {failed.risk:.3g}: a larger --delta than "
                "that may pass it"
            )
        return f"{mend}; training longer with exits makes layers sure earlier."

    def require(self, model: str) -> None:
        """Refuse to be used for another model, by its fingerprint, than it was made with.

        Raises:
            CheckpointError: it differs; names both fingerprints.
        """
        if model != self.model:
            raise CheckpointError(
                f"the certificate was made with another model (fingerprint {self.model}, given "
                f"{model}): calibrate again with: everyformer calibrate"
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
                f"{path} is no certificate that this everyformer reads ({error}); calibrate again "
                "with: everyformer calibrate"
            ) from error
