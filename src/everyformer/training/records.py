"""Records of a run: all that the loop reads from and writes into its directory, if it has one."""

import shutil
from pathlib import Path
from typing import Any

from torch import nn

from everyformer.core.config import differences, from_dict, to_dict
from everyformer.core.errors import CheckpointError
from everyformer.data.dataset import Dataset
from everyformer.system.plain import from_json, to_json
from everyformer.training.checkpoint import (
    CheckpointParts,
    TrainingState,
    checkpoint_path,
    checkpoints,
    drop_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    read_state,
    save_checkpoint,
    save_state,
)
from everyformer.training.config import TrainingConfig
from everyformer.training.distributed import World
from everyformer.training.logging import MetricsLog
from everyformer.training.run import RunDirectory


class Records:
    """Records of one sitting; only the first process of a world writes.

    ``changed`` lists the training options that differ from those that the run was begun with.
    """

    def __init__(self, run: RunDirectory | None, world: World) -> None:
        self.path = None if run is None else run.path
        self._run, self._world = run, world
        self._log: MetricsLog | None = None
        self._saved = 0
        self.changed: list[str] = []

    def load(self, state: TrainingState, parts: CheckpointParts, values: dict[str, Any]) -> None:
        """Fill ``state`` and ``parts`` from the newest whole checkpoint, if one was saved.

        Raises:
            CheckpointError: ``values`` are of another model or other data than the run's, or no
                checkpoint is whole.
        """
        if self._run is None:
            raise CheckpointError("resume needs a run directory: give 'run'")
        result, folder = None, self._run.checkpoints
        if self._world.first and (saved := self._run.config()) is not None:
            self._check_same(saved, from_json(to_json(values)))
            result = newest_checkpoint(folder)
        # all processes take the checkpoint that the first one found whole
        [step] = self._world.from_first([-1 if result is None else result[1].steps])
        if step < 0:
            return
        path = checkpoint_path(folder, int(step))
        vars(state).update(vars(read_state(path) if result is None else result[1]))
        load_checkpoint(path, parts)
        self._saved = state.steps

    def open(self, state: TrainingState, values: dict[str, Any]) -> None:
        """Write what the run is, and begin its curves or go on with them after ``state``."""
        if self._run is not None and self._run.writes:
            self._run.write_config(values)
            evaluated = state.evaluation is not None and state.evaluation["step"] == state.steps
            self._log = MetricsLog(self._run.metrics, state.steps, evaluated=evaluated)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row to the curves."""
        if self._log is not None and self._run is not None:
            self._run.check_there()
            self._log.write(row)

    def save(self, state: TrainingState, parts: CheckpointParts, keep: int) -> None:
        """Save a checkpoint (if this step has one already, only its state can be news), then drop
        all but the last ``keep`` and the best."""
        if self._log is None or self._run is None or state.steps == 0:
            return
        self._run.check_there()
        self._log.sync()
        folder = self._run.checkpoints
        if self._saved == state.steps:
            save_state(checkpoint_path(folder, state.steps), state)
        else:
            save_checkpoint(folder, state, parts)
            self._saved = state.steps
        drop_checkpoints(folder, state, keep)

    def forget(self, step: int) -> None:
        """Drop the checkpoint of a step whose weights turned out to be none to go on from."""
        if self._log is not None and self._run is not None and self._saved == step:
            shutil.rmtree(checkpoint_path(self._run.checkpoints, step), ignore_errors=True)

    def newest(self) -> Path | None:
        """The newest checkpoint of the run, if there is one."""
        saved = checkpoints(self._run.checkpoints) if self._run is not None else []
        return saved[-1] if saved else None

    def close(self) -> None:
        """Let go of the files."""
        if self._log is not None:
            self._log.close()

    def _check_same(self, saved: dict[str, Any], now: dict[str, Any]) -> None:
        changed = differences(_settled(saved["model"]), _settled(now["model"]))
        if saved["data"]["fingerprint"] != now["data"]["fingerprint"]:
            changed += differences(saved["data"], now["data"])
        if changed:
            raise CheckpointError(
                f"the run in {self.path} was begun with another model or other data: "
                f"{'; '.join(changed[:5])}. Resume with the same, or choose another --out"
            )
        self.changed = differences(saved["training"], now["training"])


def describe_run(model: nn.Module, dataset: Dataset, config: TrainingConfig) -> dict[str, Any]:
    """The complete config of a run: model, training, data and tokenizer, as plain values."""
    return {
        "model": to_dict(getattr(model, "config", None)),
        "training": to_dict(config),
        "data": dataset.summary(),
        "tokenizer": None if dataset.tokenizer is None else dataset.tokenizer.to_dict(),
    }


def _settled(model: dict[str, Any]) -> dict[str, Any]:
    """A model as plain values with the options that were not given; one of others as it is."""
    from everyformer.genes.config import ModelConfig
    from everyformer.models.build import settled

    return settled(from_dict(ModelConfig, model)) if "mixer" in model else model
