"""The directory of a comparison: one comparison at a time, and never two mixed in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from everyformer.core.config import affects, differences, field_types, from_dict, to_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.files import RECORD
from everyformer.system.files import empty, expanded, visible_files
from everyformer.system.plain import from_json, to_json
from everyformer.system.sealed import read_json, write_json
from everyformer.training.config import BUDGETS, TrainingConfig

FORMAT = "everyformer-comparison-options"
LOCK = ".lock"
_MORE = "; seeds are added where they are needed of a comparison started with `until_settled`"


def recorded_options(folder: Path) -> dict[str, Any] | None:
    """The options of the comparison in ``folder``; None if there is none."""
    record = folder / RECORD
    if not record.exists():
        return None
    options: dict[str, Any] = read_json(record, FORMAT)["options"]
    return options


C = TypeVar("C", bound=CompareConfig)


def started(kind: type[C], out: str, *, named: bool) -> C | None:
    """The options that the comparison in ``out`` was started with; None where there is none.

    Args:
        kind: `CompareConfig`, or one with more options.
        named: whether there are members to begin one with.

    Raises:
        CheckpointError: there is none, and no members.
    """
    values = recorded_options(expanded(out))
    if values is not None:
        return from_dict(kind, {**values, "out": out, "resume": False, "overwrite": False})
    if not named:
        raise CheckpointError(
            f"there is no comparison in {out} to resume: give its `out`, or leave out `resume` to "
            "begin one"
        )
    return None


def first_command(folder: Path) -> str | None:
    """The words that began the comparison in ``folder``; None if there are none."""
    record = folder / RECORD
    return read_json(record, FORMAT).get("command") or None if record.exists() else None


def check_folder(config: CompareConfig) -> None:
    """Refuse a directory that holds something else, before any work is done.

    Raises:
        ConfigError: it is filled and neither resumed nor overwritten, or by other options.
    """
    folder = expanded(config.out)
    files = visible_files(folder)
    if not files:
        return
    if not (folder / RECORD).exists():
        raise ConfigError(f"{folder} is not empty and holds no comparison: choose another `out`")
    if config.overwrite:
        return
    if not config.resume:
        raise ConfigError(
            f"{folder} is not empty: give `resume` to continue the comparison in it, "
            "`overwrite` to replace it, or another `out`"
        )
    changed = _changed(recorded_options(folder) or {}, to_dict(config))
    if changed:
        seeds = any(one.startswith("seeds:") for one in changed)
        raise ConfigError(
            f"the comparison in {folder} was started with other options "
            f"({'; '.join(changed[:5])}): resume it with the same, or choose "
            f"another `out`{_MORE if seeds else ''}"
        )


@contextmanager
def opened(
    config: CompareConfig, fingerprint: str, command: str = "", wait: float = 0.0
) -> Iterator[Path]:
    """The directory, made and locked; its record says what is compared, and on which data.

    Args:
        wait: seconds in which another one may let go of it.

    Raises:
        ConfigError: it is in use, cannot be written, or was started on other data.
    """
    with locked(expanded(config.out), "comparison", wait) as folder:
        check_folder(config)
        if config.overwrite:
            empty(folder)
        _check_and_record(folder, config, fingerprint, command)
        yield folder


@contextmanager
def locked(folder: Path, what: str, wait: float = 0.0) -> Iterator[Path]:
    """A directory, made and held for one ``what`` alone.

    Args:
        wait: seconds in which another one may let go of it.

    Raises:
        ConfigError: it is in use, or cannot be written.
    """
    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=wait)
    except Timeout as error:
        raise ConfigError(
            f"{folder} is in use: another {what} runs in it. Wait for it to end, or choose "
            "another `out`"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot write into {folder}: {error.strerror}; choose another `out`"
        ) from error
    try:
        yield folder
    finally:
        lock.release()


def _check_and_record(folder: Path, config: CompareConfig, fingerprint: str, command: str) -> None:
    record = folder / RECORD
    if record.exists() and read_json(record, FORMAT)["data"] != fingerprint:
        raise ConfigError(
            f"the data has changed since the comparison in {folder} was started, so its members "
            "would not be compared on equal footing: give `overwrite`, or choose another `out`"
        )
    settled = from_json(to_json(to_dict(config)))
    values = {"options": settled, "data": fingerprint, "command": command}
    write_json(record, {"format": FORMAT, **values})


def _changed(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Options that results depend on; of a budget all may have more, as in `train`."""
    # what an earlier version did not know has its default
    complete = to_dict(from_dict(CompareConfig, earlier))
    earlier, now = (from_json(to_json(values)) for values in (complete, now))
    before, after = (from_dict(TrainingConfig, o["training"]).budget for o in (earlier, now))
    if before[0] == after[0] and before[1] <= after[1]:
        for name in ("steps", *(f"budget_{kind}" for kind in BUDGETS)):
            earlier["training"][name] = now["training"][name]
    # seconds are worth what the speed is
    free = ("nothing",) if before[0] == "seconds" else ("nothing", "speed")
    for name in field_types(CompareConfig):
        if affects(CompareConfig, name) in free:
            del earlier[name], now[name]
    return differences(earlier, now)
