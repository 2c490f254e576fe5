"""Runs and saved models at places that fsspec reaches (`everyformer.system.remote`).

Nothing there can be renamed, and files come one by one. So of a checkpoint ``state.json`` is sent
last and removed first: a checkpoint without it is half there, and is passed over. Locks are of this
machine alone; curves are sent with each checkpoint, and when the run ends.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from filelock import Timeout

from everyformer.core.errors import CheckpointError
from everyformer.system.files import expanded, is_remote, remove, visible_files
from everyformer.system.plain import from_json
from everyformer.system.remote import Remote, files_in

Wanted = Literal["none", "best", "resume", "all"]
"""Checkpoints that are fetched: the best one, that and the newest, or all. Of all else everything
is."""
STATE = "state.json"


def fetched(path: str | Path, wanted: Wanted = "none") -> Path:
    """A path as a person wrote it, or the local folder of a place, with what is ``wanted`` there.

    A folder that a process of this machine trains into is taken as it is.

    Raises:
        CheckpointError: the place cannot be read.
        ConfigError, MissingExtraError: it cannot be reached from here at all.
    """
    return fetch(Remote(str(path)), wanted) if is_remote(path) else expanded(path)


def fetch(remote: Remote, wanted: Wanted, exact: bool = False) -> Path:
    """Bring the local folder of a place up to date, and give it.

    Args:
        exact: remove what is in it alone, too.
    """
    with remote.alone():
        lock = remote.lock()
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return remote.folder
        try:
            _mirror(remote, wanted, exact)
        finally:
            lock.release()
    return remote.folder


def _mirror(remote: Remote, wanted: Wanted, exact: bool) -> None:
    stamps = remote.stamps()
    whole, half = _checkpoints(stamps)
    for step in half:
        warnings.warn(
            f"checkpoint {step} at {remote.url} is skipped: it has no {STATE}, so it was not sent "
            "to its end",
            stacklevel=4,
        )
    for path in _steps_in(remote.folder):
        state = path / STATE
        there = remote.read(_state(path.name)) if path.name in whole else None
        if state.is_file() and whole and path.name > whole[-1]:
            _put_aside(path, remote)
        elif not state.is_file() or state.read_bytes() != there:
            shutil.rmtree(path)
    for path in visible_files(remote.folder) if exact else ():
        if not any(name.partition("/")[0] == path.name for name in stamps):
            remove(path)
    remote.fetch((name for name in stamps if not name.startswith("checkpoints/")), stamps)
    for step in _chosen(remote, whole, wanted):
        names = [name for name in stamps if name.startswith(f"checkpoints/{step}/")]
        remote.fetch(sorted(names, key=lambda name: name == _state(step)), stamps)


def _put_aside(checkpoint: Path, remote: Remote) -> None:
    """Keep a whole checkpoint that is newer than all at the place, where no run looks for it."""
    kept = remote.folder.parent / "unsent" / checkpoint.name
    if kept.exists():
        shutil.rmtree(kept)
    kept.parent.mkdir(exist_ok=True)
    checkpoint.rename(kept)
    warnings.warn(
        f"{checkpoint.name} is not at {remote.url}, so nothing goes on from it; it is kept in "
        f"{kept}: copy it to {remote.url}/checkpoints to go on from there",
        stacklevel=5,
    )


def _chosen(remote: Remote, whole: list[str], wanted: Wanted) -> list[str]:
    """The steps that are fetched, oldest first."""
    if wanted == "none" or not whole:
        return []
    if wanted == "all":
        return whole
    newest = whole[-1]
    try:
        best = from_json(remote.read(_state(newest)).decode())["best"]
        step = newest if best is None else f"step-{best['step']:08d}"
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{remote.url}/{_state(newest)} is damaged") from error
    best_there = step if step in whole else newest
    return [best_there] if wanted == "best" else sorted({best_there, newest})


class Sending:
    """Sending of a run's folder to its place: what is new since the last time, by `send`."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self._sent: dict[str, tuple[int, int]] = {}

    def begin(self, overwrite: bool) -> None:
        """Take what was fetched as sent; with ``overwrite`` remove all that is there.

        Raises:
            ConfigError: nothing can be written there.
        """
        self.remote.check_writable()
        if overwrite:
            self.remote.remove()
        else:
            self._sent = files_in(self.remote.folder)

    def send(self, outdated: Callable[[list[Path]], list[Path]] = lambda _: []) -> None:
        """Send what is new, checkpoints last, and remove what is ``outdated`` of all that are there
        (given oldest first), and what is half there.

        Raises:
            UnsavedError: the place refuses.
        """
        remote, files = self.remote, files_in(self.remote.folder)
        new = [name for name, touched in files.items() if self._sent.get(name) != touched]
        steps = [path.name for path in _steps_in(remote.folder) if (path / STATE).is_file()]
        remote.send(name for name in new if not name.startswith("checkpoints/"))
        for step in steps:
            of_step = [name for name in new if name.startswith(f"checkpoints/{step}/")]
            if of_step and of_step != [_state(step)]:
                self.forget(step)
                of_step = [name for name in files if name.startswith(f"checkpoints/{step}/")]
            remote.send(sorted(of_step, key=lambda name: name == _state(step)))
        self._sent = files
        if any(name.startswith("checkpoints/") for name in new):
            whole, half = _checkpoints(remote.stamps())
            folder = remote.folder / "checkpoints"
            old = [path.name for path in outdated([folder / step for step in whole])]
            for step in {*half, *old}:
                self.forget(step)

    def forget(self, step: str) -> None:
        """Remove a checkpoint from the place, that which makes it one first."""
        self.remote.remove(_state(step))
        self.remote.remove(f"checkpoints/{step}")


def send_folder(remote: Remote) -> None:
    """Put the whole local folder in the place of what is there, config.json last.

    Raises:
        UnsavedError: the place refuses.
    """
    files = files_in(remote.folder)
    remote.remove("config.json")
    for name in remote.stamps():
        if name not in files:
            remote.remove(name)
    remote.send(sorted(files, key=lambda name: name == "config.json"))


def _state(step: str) -> str:
    return f"checkpoints/{step}/{STATE}"


def _steps_in(folder: Path) -> list[Path]:
    """Folders of checkpoints in a run's folder, oldest first."""
    return sorted(path for path in (folder / "checkpoints").glob("step-*") if path.is_dir())


def _checkpoints(names: dict[str, str]) -> tuple[list[str], list[str]]:
    """The steps with a state, and those without, oldest first."""
    found = (re.match(r"checkpoints/(step-\d{8,})/", name) for name in names)
    steps = sorted({match[1] for match in found if match})
    whole = [step for step in steps if _state(step) in names]
    return whole, [step for step in steps if step not in whole]
