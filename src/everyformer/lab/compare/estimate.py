"""`Estimate`: how long a comparison will take, corrected by what its parts really took."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence

from everyformer.data.dataset import Dataset
from everyformer.genes.retrieval import RETRIEVAL
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.decoding import POSITION_SEQUENCES, PROMPT_SHARE, SAMPLE_TOKENS
from everyformer.lab.compare.plan import Candidate, Job
from everyformer.lab.compare.results import Calibrated
from everyformer.training.config import TrainingConfig
from everyformer.training.progress import Part

START = 1.5
"""seconds until a process that trains takes its first step, and from its end to the next"""
EVALUATION = 0.4
"""of a training step: time of an evaluation's pass over as many sequences"""
PAGE, PAGE_OF_MEMBER = 2.5, 0.8
"""seconds of the report, and more for each member, whose inside is drawn"""
PAGE_SO_FAR = 1.0
"""seconds of a page after a member"""
PICTURED = 6
"""members at most whose inside is drawn"""
OFF, SMALL = 1.25, 10.0
"""factor and seconds by which the time left must differ from the last report for a new one"""


class Estimate:
    """Seconds of every training of a comparison, and of the reading, writing and drawing after it.

    It also numbers the trainings, and keeps what they really took. What is left of a kind of work
    (layers that are timed, trainings) is scaled by how long that kind took so far, over what was
    estimated of it.

    Args:
        layers: seconds of the lengths at which a layer is still to be timed.
        at_once: trainings that run side by side.
    """

    def __init__(
        self,
        config: CompareConfig,
        ready: list[Candidate],
        dataset: Dataset,
        calibrated: dict[str, Calibrated],
        layers: Mapping[int, float] | None = None,
        at_once: int = 1,
    ) -> None:
        able = [candidate for candidate in ready if candidate.config is not None]
        # of the grid, the best rate is also that of the first seed
        each = config.first_seeds + max(len(config.lr_grid) - 1, 0)
        self._each = {
            candidate.member: _training_seconds(
                config.training, candidate, dataset, calibrated.get(candidate.member)
            )
            + PAGE_SO_FAR / each
            for candidate in able
        }
        self.trainings, self._at_once = each * len(able), at_once
        self._page = PAGE + PAGE_OF_MEMBER * min(len(able), PICTURED)
        self._layers = dict(layers or {})
        self.seconds = each * sum(self._each.values()) + self._page
        """of all trainings and the page"""
        self._seeds = dict.fromkeys(self._each, config.first_seeds)
        self._done: dict[str, float] = {}
        """trainings that are over, with what was estimated of them"""
        self._paces: dict[str, tuple[float, float]] = {}
        """seconds that a kind of work was expected to take, and took, in this session"""
        self._end = math.inf
        """by the clock, as it was reported last"""

    @property
    def left(self) -> float:
        """Seconds until the end."""
        trainings = self.seconds - self._page - sum(self._done.values())
        return sum(self._layers.values()) * self._pace("layers") + (
            trainings / self._at_once + self._page
        ) * self._pace("trainings")

    @property
    def remaining(self) -> int:
        """Trainings that are not over."""
        return self.trainings - len(self._done)

    def more(self, members: Sequence[str], seeds: int) -> None:
        """Note that ``members`` will have so many seeds."""
        for member in members:
            new, self._seeds[member] = seeds - self._seeds[member], seeds
            self.trainings += new
            self.seconds += new * self._each[member]

    def part(self, planned: Job, beside: int = 0) -> Part:
        """Share of a training in the whole, while so many others run ``beside`` it."""
        done, each = sum(self._done.values()), self._each[planned.member]
        return Part(
            number=len(self._done) + beside + 1,
            of=self.trainings,
            begin=done / self.seconds,
            end=(done + each) / self.seconds,
            after=self.left - each / self._at_once * self._pace("trainings"),
        )

    def over(self, planned: Job, seconds: float | None = None) -> None:
        """Note that a training need not be done again, and how long it took in this session."""
        expected = self._done[planned.folder] = self._each[planned.member]
        if seconds is not None:
            self._took("trainings", expected, seconds)

    def timed(self, length: int, seconds: float) -> None:
        """Note how long the timing of layers at a length took."""
        self._took("layers", self._layers.pop(length), seconds)

    def announce(self) -> float:
        """Seconds left, which are reported now."""
        self._end = time.perf_counter() + self.left
        return self.left

    def news(self) -> float | None:
        """Seconds left, if they are far from what was reported last."""
        before, now = (max(1.0, end) for end in (self._end - time.perf_counter(), self.left))
        far = max(before, now) > OFF * min(before, now) and abs(before - now) > SMALL
        return self.announce() if far else None

    def _took(self, kind: str, expected: float, seconds: float) -> None:
        before = self._paces.get(kind, (0.0, 0.0))
        self._paces[kind] = (before[0] + expected, before[1] + seconds)

    def _pace(self, kind: str) -> float:
        expected, spent = self._paces.get(kind, (0.0, 0.0))
        return spent / expected if expected else 1.0


def _training_seconds(
    config: TrainingConfig, candidate: Candidate, dataset: Dataset, known: Calibrated | None
) -> float:
    """Seconds of one training in its process, with the reading and writing after it.

    A step takes what it took in the median round, when the machine was as busy as it is. Where the
    member could not be timed, only those of its budget."""
    if known is None:
        return START + (config.budget_seconds or 0.0)
    assert candidate.config is not None
    step = statistics.median(known["rounds"])
    task, row = dataset.does, EVALUATION * step / config.batch
    evaluations = 1 + (known["steps"] // config.evaluate_every if config.evaluate_every else 0)
    rows: float = evaluations * _held_out(dataset, config.evaluate_sequences)
    writing = 0.0
    if task.continues:
        rows += _held_out(dataset, POSITION_SEQUENCES)
        if (retrieval := RETRIEVAL.of(candidate.config)) is not None:
            # the training text is read for a store, in windows that overlap by half
            rows += 2 * int(retrieval.options.size) / dataset.length
        token = min(known["decode_ms"].values(), default=0.0) / 1000
        if known["state_bytes"] is None:
            token = max(token, PROMPT_SHARE * row)
        writing = min(SAMPLE_TOKENS, (1 - PROMPT_SHARE) * dataset.length) * token
    return START + step * known["steps"] + row * rows + writing


def _held_out(dataset: Dataset, limit: int | None) -> int:
    """Sequences of an evaluation that reads up to ``limit``."""
    return sum(len(batch.inputs) for batch in dataset.validation_batches(64, limit))
