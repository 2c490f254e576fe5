"""Probes as a kind of data: ``--data mqar --data.options pairs=8``.

The training stream is read by the run's seed where every row is fresh, and in shuffled epochs where
there are ``rows`` of them. Held-out rows are `HELD_OUT` of the validation stream, or of the test
stream with ``held_out=test``: rates are chosen by the one and reported by the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError, nearest
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.config import named_values
from everyformer.data.dataset import Dataset
from everyformer.data.kind import Kind, Request, first_served
from everyformer.data.selection import epoch_rows, spread
from everyformer.lab.suites.mad import (
    Compression,
    FuzzyRecall,
    Memorization,
    NoisyRecall,
    Recall,
    SelectiveCopying,
)
from everyformer.lab.suites.mqar import Mqar
from everyformer.lab.suites.others import Induction, MarkedCopying, Needle
from everyformer.lab.suites.probe import BLOCK, STREAMS, VERSION, Probe, Rows, Stream
from everyformer.lab.suites.state import S3, S5, Modular, Parity

PROBES: dict[str, type[Probe]] = {
    probe.name: probe
    for probe in (
        *(Recall, NoisyRecall, FuzzyRecall, SelectiveCopying, Memorization, Compression),
        *(Mqar, Parity, Modular, S3, S5),
        *(Induction, MarkedCopying, Needle),
    )
}
FAMILIES = {name.partition(":")[0] for name in PROBES if ":" in name}
HELD_OUT = 1024
"""rows of either stream"""


class ProbeData(Kind):
    """A probe by its name."""

    name = "probe"

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.probe = PROBES[self.config.source]
        # options are those of the probe
        self.Options = self.probe.Options  # type: ignore[misc]
        self.alone = ": its options are written --data.options length=64"

    @classmethod
    def recognises(cls, request: Request) -> bool:
        """True of a probe's name.

        Raises:
            ConfigError: it begins as those of a family do, and is none.
        """
        source = request.config.source
        if source not in PROBES and source.partition(":")[0] in FAMILIES and ":" in source:
            raise ConfigError(f"no probe '{source}'; {nearest(source, [*PROBES])}")
        return source in PROBES

    @property
    def called(self) -> str:
        return f"the probe '{self.config.source}'"

    @property
    def task(self) -> str:
        served = self.probe.tasks()
        word = self.request.word
        if word is None and not {*served} & {*self.request.able}:
            word = next(iter(self.request.able))
        if word is not None and word not in served:
            leaks = not (self.probe.both_ways or self.probe.task)
            reason = ", whose answers are inputs further on" if leaks else ""
            raise ConfigError(
                f"{self.called}{reason}, is of the task {' or '.join(served)}, not {word}: "
                "choose a member that has it"
            )
        return word or first_served(served, self.request.able)

    def check(self) -> None:
        super().check()
        if self.config.length != type(self.config)().length:
            raise ConfigError(f"`data.length` has no meaning for {self.called}{self.alone}")

    def load(self) -> Dataset:
        values = named_values(self.config.options, "`data.options`")
        options = from_dict(self.probe.Options, values, "data.options=")
        probe = self.probe(options, self.config.seed)
        seed = self.config.seed
        usual = to_dict(self.probe.Options())
        # an option that a later version adds changes no rows until it is given
        changed = {name: v for name, v in to_dict(options).items() if v != usual[name]}
        rows = "without end" if options.rows is None else f"{options.rows:,} rows"
        return ProbeDataset(
            name=probe.name,
            task=self.task,
            kind="text",
            vocabulary=probe.vocabulary,
            length=probe.length,
            split=f"generated, {rows}; {HELD_OUT:,} rows of the {options.held_out} stream are held "
            f"out; chance {probe.chance:.3f}, shortcut {probe.shortcut:.3f}{probe.overlap}",
            fingerprint=digest(VERSION, probe.name, changed, seed),
            probe=probe,
            seed=seed,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeDataset(Dataset):
    """Rows of a probe."""

    probe: Probe
    seed: int
    """the data's"""
    _blocks: dict[tuple[Stream, int, int], Rows] = field(default_factory=dict, repr=False)

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        count = self.probe.options.rows
        if count is not None:
            return self.take("training", epoch_rows(np.arange(count), step, size, seed, portion))
        return self.take("training", step * size + np.arange(*portion.of(size)), seed)

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        chosen = spread(HELD_OUT, limit)
        for first in range(0, len(chosen), size):
            yield self.take(self.probe.options.held_out, chosen[first : first + size])

    @property
    def shortcut(self) -> float:
        return self.probe.shortcut

    @property
    def tested(self) -> Self | None:
        options = replace(self.probe.options, held_out="test")
        if options == self.probe.options:
            return None
        # what was drawn is drawn again alike
        return replace(self, probe=type(self.probe)(options, self.seed), _blocks={})

    def take(self, stream: Stream, rows: np.ndarray, run: int = 0) -> Batch:
        """These rows of a stream; ``run`` is the seed of a run whose rows are fresh."""
        blocks = {n: self._block(stream, run, n) for n in np.unique(rows // BLOCK).tolist()}
        each = [(blocks[row // BLOCK], row % BLOCK) for row in rows.tolist()]
        inputs, targets = (
            torch.from_numpy(np.stack([block[part][row] for block, row in each])) for part in (0, 1)
        )
        return Batch(inputs, targets)

    def _block(self, stream: Stream, run: int, number: int) -> Rows:
        key = stream, run, number
        if key not in self._blocks:
            endless = stream == "training" and self.probe.options.rows is None
            if endless and len(self._blocks) > KEPT:
                self._blocks.clear()
            made = np.random.default_rng((VERSION, self.seed, STREAMS.index(stream), run, number))
            self._blocks[key] = self.probe.make(made, BLOCK, stream != "training")
        return self._blocks[key]


KEPT = 64
"""blocks that are remembered of an endless stream"""
