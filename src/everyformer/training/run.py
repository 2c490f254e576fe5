"""A run's directory: created once, locked while it trains, and enough to repeat the run.

config.json  environment.json  metrics.jsonl  checkpoints/  (TensorBoard's files)
"""

import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock, Timeout

from everyformer.core.errors import CheckpointError, ConfigError, UnsavedError
from everyformer.system.files import empty, expanded, visible_files
from everyformer.system.sealed import read_json, write_json
from everyformer.training.distributed import read_launch
from everyformer.training.storage import RUN_FORMAT

LOCK = ".lock"


class RunDirectory:
    """An open run directory; `close` it or use it as a context manager.

    Under ``torchrun`` every process opens it, but only the first one writes and holds the lock.

    Args:
        path: created if it does not exist.
        resume: go on with the run that is there. Without it the folder must be new or empty.
        overwrite: remove the run that is there first.

    Raises:
        ConfigError: the folder is in use, is not empty (without ``resume``), or not writable.
        CheckpointError: ``resume`` is given, but there is no run to resume.
    """

    def __init__(self, path: str | Path, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = expanded(path).absolute()
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.writes = read_launch().rank == 0
        self._lock: FileLock | None = None
        self._described = False
        if not self.writes:
            return
        if resume and not self.path.is_dir():
            raise CheckpointError(f"there is no run at {self.path} to resume: leave out --resume")
        check_writable(self.path)
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigError(
                f"{self.path} is in use: another process trains into it. Wait for it to end, or "
                "choose another --out"
            ) from error
        self._lock = lock
        self._folder = _identity(self.path)
        # a kill may leave half-written files, which do not make a folder a run
        files = [path.name for path in visible_files(self.path)]
        if files and not resume and not overwrite:
            self.close()
            raise ConfigError(
                f"{self.path} is not empty: give --resume to go on with the run in it, --overwrite "
                "to replace it, or choose another --out"
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
        about_us = {"everyformer": _version("everyformer"), "command": sys.argv}
        write_json(self.path / "config.json", {"format": RUN_FORMAT, **about_us, **values})
        self._described = True
        about = {"format": "everyformer-environment", **environment()}
        write_json(self.path / "environment.json", about)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a folder, whatever it is called; None where there is none."""
    try:
        result = path.stat()
    except OSError:
        return None
    return result.st_dev, result.st_ino


def environment() -> dict[str, Any]:
    """Versions, device, threads, platform, and the git revision of the current folder, if any."""
    packages = ("everyformer", "torch", "numpy", "safetensors")
    revision = _git("rev-parse", "HEAD")
    changed = revision and _git("status", "--porcelain", "--untracked-files=no")
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "folder": os.getcwd(),
        "git_revision": revision,
        "git_changes": bool(changed),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


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
            f"cannot write into {path}: {error.strerror or error}; choose another --out"
        ) from error
