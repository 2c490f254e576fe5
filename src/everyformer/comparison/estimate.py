"""`Estimate`: how long a comparison will take, corrected by what its parts really took."""

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.decoding import POSITION_SEQUENCES, PROMPT_SHARE, SAMPLE_TOKENS
from everyformer.comparison.plan import Entrant, Job
from everyformer.comparison.results import Calibrated
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import Dataset
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import RETRIEVAL
from everyformer.training.config import TrainingConfig
from everyformer.training.progress import Part

START = 0.5
"""seconds until a process that trains takes its first step"""
EVALUATION = 0.4
"""of a training step: time of an evaluation's pass over as many sequences"""
PAGE = 3.0
"""seconds of the report"""


class Estimate:
    """Seconds of every training of a comparison, and of the reading, writing and drawing after it.

    It also numbers the trainings, and keeps what they really took.
    """

    def __init__(
        self,
        config: CompareConfig,
        ready: list[Entrant],
        dataset: Dataset,
        calibrated: dict[str, Calibrated],
    ) -> None:
        able = [entrant for entrant in ready if entrant.config is not None]
        # of the grid, the best rate is also that of the first seed
        each = config.seeds + max(len(config.lr_grid) - 1, 0)
        self._each = {
            entrant.member: _training_seconds(
                config.training, entrant, dataset, calibrated.get(entrant.member)
            )
            for entrant in able
        }
        self.trainings = each * len(able)
        self.seconds = each * sum(self._each.values()) + PAGE
        self._done: dict[str, float] = {}
        """trainings that are over, with what was estimated of them"""
        self._expected = self._spent = 0.0
        """seconds of those that were run in this sitting"""

    def part(self, planned: Job) -> Part:
        """Share of a training in the whole."""
        done, each = sum(self._done.values()), self._each[planned.member]
        pace = self._spent / self._expected if self._expected else 1.0
        return Part(
            number=len(self._done) + 1,
            of=self.trainings,
            begin=done / self.seconds,
            end=(done + each) / self.seconds,
            after=(self.seconds - done - each) * pace,
        )

    def over(self, planned: Job, seconds: float | None = None) -> None:
        """Note that a training need not be done again, and how long it took in this sitting."""
        expected = self._done[planned.folder] = self._each[planned.member]
        if seconds is not None:
            self._expected += expected
            self._spent += seconds


def _training_seconds(
    config: TrainingConfig, entrant: Entrant, dataset: Dataset, known: Calibrated | None
) -> float:
    """Seconds of one training in its process, with the reading and writing after it.

    Where the member could not be timed, only those of its budget."""
    if known is None:
        return START + (config.budget_seconds or 0.0)
    assert entrant.config is not None
    task, row = TASKS[dataset.task], EVALUATION * known["seconds"] / config.batch
    evaluations = 1 + (known["steps"] // config.evaluate_every if config.evaluate_every else 0)
    rows: float = evaluations * _held_out(dataset, config.evaluate_sequences)
    writing = 0.0
    if task.continues:
        rows += _held_out(dataset, POSITION_SEQUENCES)
        rows += _stored(entrant.config) / dataset.length
        token = max(known["decode_ms"].values(), default=0.0) / 1000
        if known["state_bytes"] is None:
            token = max(token, PROMPT_SHARE * row)
        writing = SAMPLE_TOKENS * token
    return START + known["seconds"] * known["steps"] + row * rows + writing


def _held_out(dataset: Dataset, limit: int | None) -> int:
    """Sequences of an evaluation that reads up to ``limit``; policies are evaluated by playing."""
    if TASKS[dataset.task].interacts:
        return 0
    return sum(len(batch.inputs) for batch in dataset.validation_batches(64, limit))


def _stored(config: ModelConfig) -> int:
    """Tokens that are read for a store of the training text, in windows that overlap by half."""
    retrieval = RETRIEVAL.of(config)
    return 0 if retrieval is None else 2 * int(retrieval.options.size)
