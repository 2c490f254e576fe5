"""A board: every law on all models of libraries, each in a process of its own.

What is known of a model lies in one file of a folder, written after each law, so that a board goes
on where it ended. What ends a model's process, or takes too long, is the verdict of the law that
was tried; the laws after it are tried in another process. `sequence_laws.pages` shows all of it.
"""

import dataclasses
import datetime
import fnmatch
import gc
import json
import math
import signal
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sequence_laws.children import each
from sequence_laws.errors import ConfigError, LawsError
from sequence_laws.targets import chosen, loaded, target
from sequence_laws.verdict import LawResult, Status, ended_with, write_whole

VERSION = 1
"""of what is written: another is refused"""
IMPORTS = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.export",
    "torch.distributed.tensor",
    "torch.utils.flop_counter",
    "sequence_laws.targets",
    "sequence_laws.judging",
    "sequence_laws.first_graph",
)
"""what all processes share, read once"""
BUILD = "build"
"""stands for a law where no model could be made"""
KILLED = -9
"""exit code of a process that the system ended, for its memory"""


@dataclasses.dataclass
class Entry:
    """What is known of a model."""

    library: str
    model: str
    versions: dict[str, str]
    """of what it was judged with"""
    date: str
    cells: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """law -> status, detail, program, seconds"""
    not_built: str = ""
    """why there is no model"""
    trying: str = ""
    """the law that is being tried"""
    seconds: float = 0.0
    source: str = ""
    """what its name begins with as a target: of a library, or a file"""
    board: int = VERSION

    @classmethod
    def read(cls, path: Path) -> "Entry":
        """That of a file.

        Raises:
            ConfigError: it is none, or of a board of another version.
        """
        try:
            return cls(**read_json(path))
        except TypeError as error:
            raise ConfigError(f"'{path}' is no model of a board: choose another folder") from error

    def write(self, path: Path) -> None:
        """Write a file that is whole or not there."""
        write_whole(path, json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    def lacks(self, laws: Sequence[str]) -> list[str]:
        """Laws that were not tried."""
        return [] if self.not_built else [law for law in laws if law not in self.cells]

    def add(
        self, law: str, status: Status, detail: str, program: str = "", took: float = 0
    ) -> None:
        """Note a verdict."""
        took = round(took, 3)
        self.cells[law] = {
            "status": status,
            "detail": detail,
            **({"program": program} if program else {}),
            "seconds": took,
        }
        self.seconds = round(self.seconds + took, 3)

    def results(self, laws: Sequence[str]) -> Iterator[LawResult]:
        """Its verdicts; of a model that could not be made one of `BUILD`."""
        if self.not_built:
            yield LawResult(self.model, BUILD, "not_built", self.not_built, self.seconds)
        for law in laws if not self.not_built else ():
            one = self.cells[law]
            program = one.get("program", "")
            yield LawResult(self.model, law, one["status"], one["detail"], one["seconds"], program)


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a board says.

    Raises:
        ConfigError: it is none, or of a board of another version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found["board"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"'{path}' is no file of a board: choose another folder") from error
    if version != VERSION:
        raise ConfigError(
            f"'{path}' is of a board of version {version}, and this is {VERSION}: choose another "
            "folder, or read it with the sequence-laws that wrote it"
        )
    return dict(found)


def run(
    targets: Sequence[str],
    folder: Path,
    laws: Sequence[str],
    *,
    seconds: float,
    jobs: int,
    before: Path | None = None,
) -> Iterator[LawResult]:
    """The verdicts of all models, those that ``folder`` has first, then each as its process ends.

    Args:
        seconds: after which a model's process is ended. jobs: processes at a time.
        before: another board, of which those that took longest come first.

    Raises:
        ConfigError: the folder holds a board of another version, or of other versions of what is
            judged; two targets are of one name.
    """
    waiting = begin(targets, folder, before)
    for path, entry in [*waiting.items()]:
        if not entry.lacks(laws):
            yield from entry.results(laws)
            del waiting[path]
    while waiting:
        paths, imports = [*waiting], [*IMPORTS]
        for key in dict.fromkeys(entry.source for entry in waiting.values()):
            imports += loaded(key).imports
        calls = [(entry, str(path), tuple(laws)) for path, entry in waiting.items()]
        ended = each(judge_one, calls, imports=imports, jobs=jobs, seconds=seconds)
        for number, code, took in ended:
            path = paths[number]
            entry = waiting[path] = Entry.read(path) if path.exists() else waiting[path]
            if left := entry.lacks(laws):
                fill(entry, left, code, took, seconds)
                entry.write(path)
            if not entry.lacks(laws):
                yield from entry.results(laws)
                del waiting[path]


def begin(targets: Sequence[str], folder: Path, before: Path | None) -> dict[Path, Entry]:
    """What is known of each model that is to be judged, those that take longest first."""
    for part in folder.glob("*/.*.json.*"):  # of a process that was ended as it wrote
        part.unlink()
    entries: dict[Path, Entry] = {}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for name in targets:
        library, models = chosen(name)
        versions, source = library.versions, name.rpartition(":")[0]
        for path in folder.glob(f"{library.name}/*.json"):
            require(Entry.read(path), versions, folder)
        for model in models:
            path = folder / library.name / f"{model}.json"
            fresh = Entry(library.name, model, versions, today, source=source)
            entry = entries.setdefault(path, Entry.read(path) if path.exists() else fresh)
            if entry.source != source:
                raise ConfigError(f"{entry.source} and {source} have one name on a board")
    if before is not None:
        known = {(one["library"], one["model"]): one["seconds"] for one in read(before)["models"]}
        # those that nobody knows may take long
        took = {p: known.get((one.library, one.model), math.inf) for p, one in entries.items()}
        entries = dict(sorted(entries.items(), key=lambda item: -took[item[0]]))
    return entries


def require(entry: Entry, versions: dict[str, str], folder: Path) -> None:
    """Refuse to go on with a board of other versions.

    Raises:
        ConfigError: with what it was made with.
    """
    for name in versions.keys() | entry.versions.keys():
        had, has = (known.get(name, "not there") for known in (entry.versions, versions))
        if had != has:
            raise ConfigError(
                f"'{folder}' has a board of {entry.library} with {name} {had}, and here it is {has}"
                ": choose another folder (--out), and compare them by --against"
            )


def judge_one(entry: Entry, path: str, laws: Sequence[str]) -> int:
    """Judge one model by the laws that were not tried; its process does nothing else."""
    from sequence_laws.judging import judge

    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the board ends its processes itself
    gc.freeze()  # what was imported lives as long as this process: no need to look through it
    began, file = time.monotonic(), Path(path)
    entry.trying = BUILD
    entry.write(file)
    try:
        subject = target(f"{entry.source}:{entry.model}")
    except LawsError as error:
        entry.not_built, entry.trying = str(error), ""
        entry.seconds = round(time.monotonic() - began, 3)
        entry.write(file)
        return 0
    for law in entry.lacks(laws):
        entry.trying = law
        entry.write(file)
        for one in judge(subject, [law]):
            entry.add(law, one.status, one.detail, one.reproduction, one.seconds)
    entry.trying = ""
    entry.write(file)
    return 0


def fill(entry: Entry, left: list[str], code: int | None, took: float, seconds: float) -> None:
    """Note why a process ended before all laws ``left`` were tried: of the one that was."""
    why, trying = ended_with(code, seconds), entry.trying
    entry.trying = ""
    if trying not in left:
        entry.not_built, entry.seconds = f"{why} as the model was made", round(took, 3)
        return
    entry.add(trying, "undecided" if code in (None, KILLED) else "failed", why, took=took)
    for law in left if code is None else ():
        if law != trying:
            entry.add(law, "undecided", f"not tried: {trying} was not done in {seconds:.0f} s")


def read(path: Path) -> dict[str, Any]:
    """A board: of a folder, of its models or of its ``board.json``, or that of such a file.

    Every cell of every model has a status, and a detail that says why where it was not judged.

    Raises:
        ConfigError: there is none.
    """
    files = [file for file in path.glob("*/*.json") if not file.name.startswith(".")]
    if not files:
        known = read_json(path / "board.json" if path.is_dir() else path)
        return {**known, "causes": causes(path, known["models"]) or known["causes"]}
    from sequence_laws.judging import LAWS

    entries = sorted((Entry.read(file) for file in files), key=lambda e: (e.library, e.model))
    laws = [law for law in LAWS if any(law in entry.cells for entry in entries)] or [*LAWS]
    models = []
    for entry in entries:
        absent = (
            {"status": "not_built", "detail": entry.not_built}
            if entry.not_built
            else {"status": "undecided", "detail": "it was not tried"}
        )
        one = dataclasses.asdict(entry)
        one["cells"] = {law: entry.cells.get(law, absent) for law in laws}
        models.append({k: v for k, v in one.items() if k not in ("board", "trying", "source")})
    return {"board": VERSION, "laws": laws, "models": models, "causes": causes(path, models)}


def causes(folder: Path, models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What somebody found out by looking at libraries of models: ``causes.toml`` of the folder, or
    of the one around it for several boards: a list ``cause`` of tables with ``cells``
    (library/model/law, with * and ?), ``says`` (what stands in their details), ``text``, ``place``
    (file and line), ``mended`` (whether the law held when that place was changed) and ``design``
    (whether it is meant so).

    Raises:
        ConfigError: it is written otherwise.
    """
    both = (place / "causes.toml" for place in (folder, folder.absolute().parent))
    file = next(filter(Path.exists, both), None)
    if file is None:
        return []
    words = {"cells": list, "says": str, "text": str, "place": str, "mended": bool, "design": bool}
    try:
        found: list[dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))["cause"]
        for one in found:
            if not {"cells", "text"} <= one.keys() or any(
                not isinstance(value, words[word]) for word, value in one.items()
            ):
                raise ValueError(f"{one}: expected {', '.join(words)}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"'{file}' is no list of causes: {error}") from error
    here = {one["library"] for one in models}
    return [one for one in found if any(cell.partition("/")[0] in here for cell in one["cells"])]


def cause_of(board: dict[str, Any], one: dict[str, Any], law: str) -> dict[str, Any] | None:
    """What is known of a model's cell that fails, if somebody looked."""
    name, detail = f"{one['library']}/{one['model']}/{law}", one["cells"][law]["detail"]
    for cause in board["causes"]:
        named = any(fnmatch.fnmatchcase(name, cells) for cells in cause["cells"])
        if named and cause.get("says", "") in detail:
            return cause
    return None
