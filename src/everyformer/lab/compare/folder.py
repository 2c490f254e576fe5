"""The directory of a comparison, or of a suite: one at a time, and never two mixed in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from everyformer.core.config import Options, affects, differences, field_types, from_dict, to_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.files import RECORD
from everyformer.system.files import empty, expanded, visible_files
from everyformer.system.plain import from_json, to_json
from everyformer.system.sealed import read_json, write_json
from everyformer.training.config import BUDGETS, TrainingConfig

LOCK = ".lock"


T = TypeVar("T", bound=Options)


@dataclass(frozen=True)
class Folders:
    """Directories of one sort, each with a record of what was asked for."""

    kind: type
    """of the options, which have `out`, `resume` and `overwrite`"""
    word: str
    """what the directory holds"""
    record: str
    """the name of the file"""
    format: str
    more: str = ""
    """the end of a refusal where seeds differ"""

    def options(self, folder: Path) -> dict[str, Any] | None:
        """The options of what ``folder`` holds; None if that is none of these."""
        record = folder / self.record
        if not record.exists():
            return None
        options: dict[str, Any] = read_json(record, self.format)["options"]
        return options

    def started(self, kind: type[T], out: str, *, named: bool) -> T | None:
        """The options that ``out`` was started with; None where there is none of these.

        Args:
            kind: of these options, or one with more.
            named: whether there are members to begin one with.

        Raises:
            CheckpointError: there is none, and no members.
        """
        values = self.options(expanded(out))
        if values is not None:
            return from_dict(kind, {**values, "out": out, "resume": False, "overwrite": False})
        if not named:
            raise CheckpointError(
                f"there is no {self.word} in {out} to resume: give its `out`, or leave out "
                "`resume` to begin one"
            )
        return None

    def first_command(self, folder: Path) -> str | None:
        """The words that began what ``folder`` holds; None if there are none."""
        record = folder / self.record
        return read_json(record, self.format).get("command") or None if record.exists() else None

    def check(self, config: Any) -> None:
        """Refuse a directory that holds something else, before any work is done.

        Raises:
            ConfigError: it is filled and neither resumed nor overwritten, or by other options.
        """
        folder = expanded(config.out)
        if not visible_files(folder):
            return
        if not (folder / self.record).exists():
            raise ConfigError(
                f"{folder} is not empty and holds no {self.word}: choose another `out`"
            )
        if config.overwrite:
            return
        if not config.resume:
            raise ConfigError(
                f"{folder} is not empty: give `resume` to continue the {self.word} in it, "
                "`overwrite` to replace it, or another `out`"
            )
        changed = self._changed(self.options(folder) or {}, to_dict(config))
        if changed:
            seeds = any(one.startswith("seeds:") for one in changed)
            raise ConfigError(
                f"the {self.word} in {folder} was started with other options "
                f"({'; '.join(changed[:5])}): resume it with the same, or choose "
                f"another `out`{self.more if seeds else ''}"
            )

    @contextmanager
    def opened(
        self, config: Any, command: str = "", *, data: str = "", wait: float = 0.0
    ) -> Iterator[Path]:
        """The directory, made and locked; its record says what was asked for, and of which data.

        Args:
            data: their fingerprint.
            wait: seconds in which another one may let go of it.

        Raises:
            ConfigError: it is in use, cannot be written, or was started on other data.
        """
        with self._locked(expanded(config.out), wait) as folder:
            self.check(config)
            if config.overwrite:
                empty(folder)
            record = folder / self.record
            if record.exists() and read_json(record, self.format).get("data", "") != data:
                raise ConfigError(
                    f"the data has changed since the {self.word} in {folder} was started, so its "
                    "members would not be compared on equal footing: give `overwrite`, or choose "
                    "another `out`"
                )
            settled = from_json(to_json(to_dict(config)))
            values = {"options": settled, "data": data, "command": command}
            write_json(record, {"format": self.format, **values})
            yield folder

    @contextmanager
    def _locked(self, folder: Path, wait: float) -> Iterator[Path]:
        lock = FileLock(folder / LOCK)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=wait)
        except Timeout as error:
            raise ConfigError(
                f"{folder} is in use: another {self.word} runs in it. Wait for it to end, or "
                "choose another `out`"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write into {folder}: {error.strerror}; choose another `out`"
            ) from error
        try:
            yield folder
        finally:
            lock.release()

    def _changed(self, earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
        """Options that results depend on; of a budget all may have more, as in `train`."""
        # what an earlier version did not know has its default
        complete = to_dict(from_dict(self.kind, earlier))
        earlier, now = (from_json(to_json(values)) for values in (complete, now))
        in_seconds = False
        if "training" in now:
            before, after = (
                from_dict(TrainingConfig, o["training"]).budget for o in (earlier, now)
            )
            if before[0] == after[0] and before[1] <= after[1]:
                for name in ("steps", *(f"budget_{kind}" for kind in BUDGETS)):
                    earlier["training"][name] = now["training"][name]
            in_seconds = before[0] == "seconds"
        # seconds are worth what the speed is
        free = ("nothing",) if in_seconds else ("nothing", "speed")
        for name in field_types(self.kind):
            if affects(self.kind, name) in free:
                del earlier[name], now[name]
        return differences(earlier, now)


COMPARISONS = Folders(
    CompareConfig, "comparison", RECORD, "everyformer-comparison-options",
    "; seeds are added where they are needed of a comparison started with `until_settled`",
)  # fmt: skip
