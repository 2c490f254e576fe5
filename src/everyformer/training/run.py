"""A run's directory: created once, locked while it trains, and enough to repeat the run.

config.json  environment.json  metrics.jsonl  checkpoints/  (TensorBoard's files)

`Records` are all that the loop reads from and writes into it, if there is one.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from filelock import FileLock, Timeout
from torch import nn

from everyformer.core.config import Options, differences, to_dict
from everyformer.core.errors import CheckpointError, ConfigError, DivergedError, UnsavedError
from everyformer.core.plugins import digests
from everyformer.data.dataset import Dataset
from everyformer.system.files import empty, expanded, visible_files
from everyformer.system.plain import from_json, to_json
from everyformer.system.sealed import read_json, write_json
from everyformer.training.checkpoint import (
    CheckpointParts,
    TrainingState,
    checkpoint_path,
    checkpoints,
    drop_checkpoints,
    load_checkpoint,
    load_model_of,
    newest_checkpoint,
    read_state,
    save_checkpoint,
    save_split,
    save_state,
)
from everyformer.training.config import TrainingConfig
from everyformer.training.logging import MetricsLog
from everyformer.training.parallel.world import World, check_alike, read_launch
from everyformer.training.storage import RUN_FORMAT
from everyformer.training.surroundings import environment, version_of

if TYPE_CHECKING:
    from everyformer.training.parallel.saving import Saver


LOCK = ".lock"


class RunDirectory:
    """An open run directory; `close` it or use it as a context manager.

    Under ``torchrun`` every process opens it, but only the first one writes and holds the lock.

    Args:
        path: created if it does not exist.
        resume: continue the run that is there; auto begins one where there is none. Without it
            the folder must be new or empty. `resumes` is what came of it.
        overwrite: remove the run that is there first.

    Raises:
        ConfigError: the folder is in use, is not empty (without ``resume``), or not writable.
        CheckpointError: ``resume`` is given, but there is no run to resume.
    """

    def __init__(
        self, path: str | Path, *, resume: bool | Literal["auto"] = False, overwrite: bool = False
    ) -> None:
        self.writes = read_launch().rank == 0
        self.path = expanded(path).absolute()
        if resume == "auto":
            resume = (self.path / "config.json").exists()
        self.resumes = resume
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self._lock: FileLock | None = None
        self._described = False
        if not self.writes:
            return
        if resume and not self.path.is_dir():
            raise CheckpointError(f"there is no run at {self.path} to resume: leave out `resume`")
        check_writable(self.path)
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigError(
                f"{self.path} is in use: another process trains into it. Wait for it to end, or "
                "choose another `out`"
            ) from error
        self._lock = lock
        self._folder = _identity(self.path)
        # a kill may leave half-written files, which do not make a folder a run
        files = [path.name for path in visible_files(self.path)]
        if files and not resume and not overwrite:
            self.close()
            raise ConfigError(
                f"{self.path} is not empty: give `resume` to continue the run in it, "
                "`overwrite` to replace it, or choose another `out`"
            )
        if files and "config.json" not in files:
            self.close()
            raise CheckpointError(f"{self.path} is not a run (it holds no config.json)")
        if overwrite:
            empty(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes have the directory. A process that dies lets go by itself."""
        if self._lock is not None:
            self._lock.release()

    def forget(self, checkpoint: Path) -> None:
        """Remove a checkpoint."""
        shutil.rmtree(checkpoint, ignore_errors=True)

    def check_there(self) -> None:
        """Check, before anything is written, that the path still leads to the folder of this run.

        Raises:
            UnsavedError: it was removed or renamed, or its config.json was.
        """
        gone = _identity(self.path) != self._folder
        if gone or (self._described and not (self.path / "config.json").exists()):
            raise UnsavedError(
                f"{self.path} was removed or renamed, or its config.json was, while this run wrote "
                "into it, so nothing more can be kept there: put it back and resume, or begin again"
            )

    def config(self) -> dict[str, Any] | None:
        """The values of config.json; None if the run was killed before it was written."""
        path = self.path / "config.json"
        return read_json(path, RUN_FORMAT) if path.exists() else None

    def write_config(self, values: dict[str, Any]) -> None:
        """Write config.json, and environment.json about this machine."""
        about_us: dict[str, Any] = {"everyformer": version_of("everyformer"), "command": sys.argv}
        about_us |= {"directory": str(Path.cwd()), "plugins": digests()}
        write_json(self.path / "config.json", {"format": RUN_FORMAT, **about_us, **values})
        self._described = True
        about = {"format": "everyformer-environment", **environment()}
        write_json(self.path / "environment.json", about)

    def keep_config(self) -> None:
        """Leave config.json as it is."""
        self._described = True


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a folder, whatever it is called; None where there is none."""
    try:
        result = path.stat()
    except OSError:
        return None
    return result.st_dev, result.st_ino


def check_writable(path: Path) -> None:
    """Make the folder and write into it: permission bits do not tell (root, mounts, quotas).

    Raises:
        ConfigError: nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write into {path}: {error.strerror or error}; choose another `out`"
        ) from error


class Records:
    """Records of one session; only the first process of a world writes.

    ``changed`` lists the training options that differ from those that the run was started with.
    """

    def __init__(self, run: RunDirectory | None, world: World) -> None:
        self.path = None if run is None else run.path
        self._run, self._world = run, world
        self._log: MetricsLog | None = None
        self._saver: Saver | None = None
        self._saved = 0
        self._start_path: Path | None = None
        self.changed: list[str] = []

    @property
    def name(self) -> str | None:
        """The run's folder; a comparison's trainings lie in MEMBER-seedN/run."""
        if self.path is None:
            return None
        return self.path.parent.name if self.path.name == "run" else self.path.name

    def find(self, state: TrainingState, values: dict[str, Any], kind: type[Options]) -> None:
        """Fill ``state`` from the newest whole checkpoint, if one was saved.

        Args:
            kind: of the model's config, which knows the options that are not given.

        Raises:
            CheckpointError: ``values`` are of another model or other data than the run's, or no
                checkpoint is whole.
        """
        if self._run is None:
            raise CheckpointError("resume needs a run directory: give 'run'")
        result, folder = None, self._run.checkpoints
        if self._world.first and (saved := self._run.config()) is not None:
            self._check_same(saved, from_json(to_json(values)), kind)
            result = newest_checkpoint(folder)
        # all processes take the checkpoint that the first one found whole
        [step] = self._world.from_first([-1 if result is None else result[1].steps])
        if step < 0:
            return
        path = self._start_path = checkpoint_path(folder, int(step))
        vars(state).update(vars(read_state(path) if result is None else result[1]))
        self._saved = state.steps

    def fill_model(self, model: nn.Module) -> None:
        """Give a model that is not split the weights of what was found."""
        if self._start_path is not None:
            load_model_of(self._start_path, model)

    def fill(self, parts: CheckpointParts) -> None:
        """Fill all but the model from what was found."""
        if self._start_path is not None:
            load_checkpoint(self._start_path, parts)

    def open(
        self, state: TrainingState, values: dict[str, Any], *, described: bool = False
    ) -> None:
        """Write what the run is, and begin its curves or continue them after ``state``.

        ``described``: what it is was written, and nothing more is trained, so that it stays.
        """
        if self._run is None:
            return
        if self._world.in_step:
            from everyformer.training.parallel.saving import Saver

            self._saver = Saver(self._world)
        if self._run.writes:
            if described:
                self._run.keep_config()
            else:
                self._run.write_config(values)
            self._log = MetricsLog(self._run.metrics, state.steps, evaluated=state.evaluated)
            if self._log.last < state.logged:
                warnings.warn(
                    f"{self._run.metrics} ends at step {self._log.last}, though rows as far as "
                    f"step {state.logged} were written: the curves have a gap there",
                    stacklevel=2,
                )

    def write(self, row: dict[str, Any]) -> None:
        """Append a row to the curves."""
        if self._log is not None and self._run is not None:
            self._run.check_there()
            self._log.write(row)

    def save(
        self, state: TrainingState, parts: CheckpointParts, keep: int, *, last: bool = False
    ) -> None:
        """Save a checkpoint (if this step has one already, only its state can be news), then drop
        all but the last ``keep`` and the best. All processes call it.

        ``last``: nothing comes after it.
        """
        if self._run is None or state.steps == 0:
            return
        folder, new = self._run.checkpoints, self._saved != state.steps
        if self._log is not None:
            self._run.check_there()
            self._log.sync()
        if new:
            self._saved = state.steps
            check_alike(parts.model, self._world)
        if new and self._saver is not None:
            save_split(folder, state, parts, self._saver, last)
        elif new:
            carried = None if parts.carry is None else parts.carry.tensors()
            if self._log is not None:
                save_checkpoint(folder, state, parts, carried)
        else:
            self.finish()
            if self._log is not None:
                save_state(checkpoint_path(folder, state.steps), state)
        if self._log is not None:
            drop_checkpoints(folder, state, keep)

    def finish(self) -> None:
        """Wait for a checkpoint that is being written.

        Raises:
            UnsavedError: it could not be, by whichever process.
        """
        if self._saver is not None:
            self._saver.wait()

    @property
    def failed(self) -> bool:
        """True if a checkpoint that is being written went wrong here."""
        return self._saver is not None and self._saver.failed

    def forget(self, step: int) -> None:
        """Drop the checkpoint of a step whose weights turned out to be none to go on from."""
        self.finish()
        if self._log is not None and self._run is not None and self._saved == step:
            self._run.forget(checkpoint_path(self._run.checkpoints, step))

    def check_finite(self, values: dict[str, float], where: str) -> None:
        """Refuse a loss or a gradient that is not finite.

        Raises:
            DivergedError: names the last good checkpoint.
        """
        broken = next((name for name, value in values.items() if not math.isfinite(value)), None)
        if broken is None:
            return
        newest = self.newest()
        last = (
            "no checkpoint was saved" if newest is None else f"the last good checkpoint is {newest}"
        )
        raise DivergedError(
            f"the {'loss' if broken == 'task' else broken} became {values[broken]} {where}, so "
            f"training stopped; {last}. Try a lower `lr`, a longer `warmup` or a smaller `clip`"
        )

    def newest(self) -> Path | None:
        """The newest checkpoint of the run, if there is one."""
        saved = checkpoints(self._run.checkpoints) if self._run is not None else []
        return saved[-1] if saved else None

    def close(self) -> None:
        """Let go of the files."""
        if self._log is not None:
            self._log.close()

    def _check_same(self, saved: dict[str, Any], now: dict[str, Any], kind: type[Options]) -> None:
        changed = differences(kind.settled(saved["model"]), kind.settled(now["model"]))
        if saved["data"]["fingerprint"] != now["data"]["fingerprint"]:
            changed += differences(saved["data"], now["data"])
        if changed:
            raise CheckpointError(
                f"the run in {self.path} was started with another model or other data: "
                f"{'; '.join(changed[:5])}. Resume with the same, or choose another `out`"
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
