"""Errors as the command line says them: options by the names of flags, files where members go.

What the library raises names options as Python does: ``'lr'``, ``'training.clip'``, ``width=10``.
All that is printed goes through `in_flags` once, so that no error needs two texts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from everyformer.cli.flags import FlagGroup
from everyformer.cli.names import spelled
from everyformer.core.config import Choice, NoOptions, differences, to_dict
from everyformer.core.errors import ConfigError
from everyformer.family import list_members
from everyformer.genes import GENES
from everyformer.system.files import expanded
from everyformer.training.names import HOMES, OTHER_NAMES
from everyformer.training.spec import RunSpec
from sequence_laws.names import is_target

_ANSWERED: ContextVar[Mapping[str, Any]] = ContextVar("flags that are answered")
_OPTION = re.compile(
    r"(?P<call>[\w.]+\([^()]*\))"
    r"|(?<!\w\[)'(?P<quoted>(?:--)?[a-z][a-z_-]*(?:\.[a-z_-]+)*)(?P<index>\[\d+\])?'(?!:)(?P<equals>=(?=\S))?"
    r"|(?<![\w.'{-])(?P<plain>[a-z][a-z_]*(?:\.[a-z_]+)*)="
    r"(?P<value>'[^']*'|\([^)]*\)|\.\.\.|[^\s,;:()']+)"
)
_VALUE_FOLLOWS = re.compile(
    r"(?:\bnot|\bone of|\bmean|\bper|known:|[:=]|\bunknown [\w-]+|\buse(?: the)?|\bgene"
    r"|\b(?:task|member|mixer|position|memory|wiring|depth|feedforward|tokenizer|launcher)s?"
    # names that are in people's own data, or of other packages
    r"|\b(?:part|column|array|field|class|file|folder|zip|document|record|series|picture)s?"
    r"|\b(?:called|only|holds|matches|own \w+ and|model|environment|mode|data set|device)"
    r")\s*\(?$"
)
_JOINED = re.compile(r",? (?:and|or) |, |=\S+ and ")
DATA = (
    *(".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet", ".zip", ".npy", ".npz", ".md"),
    ".gz",
)
"""endings of files that nobody calls a member"""


def answer_with(flags: Mapping[str, Any]) -> None:
    """From here on errors are about these flags (in full, with underscores)."""
    _ANSWERED.set(flags)


def in_flags(text: str) -> str:
    """``text`` with the options in it as the command line spells them.

    Options are quoted names that there are, with or without their home (``'training.lr'``,
    ``'lr'``), and settings (``max_length=64``). Values in quotes stay, and so do Python's calls.
    """
    flags = {**_of_a_run(), **_ANSWERED.get({})}
    end, renamed = 0, False

    def spell(match: re.Match[str]) -> str:
        nonlocal end, renamed
        before, same = text[: match.start()], bool(_JOINED.fullmatch(text[end : match.start()]))
        same, end = same and end > 0, match.end()
        name = match["quoted"] or match["plain"]
        flag = None if name is None else _flag(name, flags)
        assigned = match["plain"] is not None
        # in a list of quoted words all are options or none is
        is_value = not assigned and (not renamed if same else bool(_VALUE_FOLLOWS.search(before)))
        renamed = flag is not None and not is_value
        if flag is None or is_value:
            return match[0]
        if assigned:
            return f"{flag} {match['value'].strip(chr(39))}"
        if name.startswith("--"):
            return f"'{flag}{match['index'] or ''}'"
        return f"{flag}{' ' if match['equals'] else ''}"

    return _OPTION.sub(spell, text)


def _of_a_run() -> Mapping[str, Any]:
    """The flags of `train`, which errors about runs and models name whatever the verb is."""
    genes = {name: Choice(gene.default, NoOptions()) for name, gene in GENES.items()}
    return FlagGroup(RunSpec("", genes)).flags()


def _flag(name: str, flags: Iterable[str]) -> str | None:
    """The flag that an option's name stands for; None where there is none, or several."""
    known = list(flags)
    if name.startswith("--"):
        other = f"--{OTHER_NAMES.get(name[2:].replace('-', '_'))}"
        return other if other in known else None
    if "-" in name:
        return None
    homes = ("", *(f"{home}." for home in ("training", "data", "model")))
    for home in homes if name.partition(".")[0] not in HOMES.values() else ("",):
        if (flag := f"--{home}{name}") in known:
            return spelled(flag)
    ends = [flag for flag in known if flag.endswith(f".{name}")]
    return spelled(ends[0]) if len(ends) == 1 else None


def changed(options: Any, default: Any) -> Iterator[tuple[str, str]]:
    """Fields of ``options`` that differ from ``default``, each with the flag that says so."""
    for line in differences(to_dict(default), to_dict(options)):
        name, dot, inner = line.partition(":")[0].partition(".")
        yield name, spelled(f"--{OTHER_NAMES.get(name, name)}{dot}{inner}")


def file_for_member(word: str, verb: str, members: Sequence[str] = ()) -> ConfigError | None:
    """Refusal of a file where a member is expected; None if it is no file.

    Args:
        members: that were named beside it.
    """
    path = expanded(word)
    kind = "a file" if path.is_file() else "a folder" if path.is_dir() else None
    named = Path(word)
    if kind is None and named.suffix.lower() not in DATA and len(named.parts) < 2:
        return None
    job = verb if verb in ("train", "compare") else "train"
    meant = " ".join(members or ("attention",)) if job == verb else "attention"
    seen = f"is {kind}" if kind is not None else "looks like a file, which is not there"
    return ConfigError(
        f"{word} {seen}: did you mean `everyformer {job} {meant} --data {word}`? "
        f"(`everyformer list` has the members)"
    )


def refuse_files(words: Sequence[str], verb: str) -> None:
    """Refuse files among the words that should name members.

    Raises:
        ConfigError: a word is a file, with the command that was meant.
    """
    known = [member.name for member in list_members()]
    members = [word for word in words if word in known]
    for word in words:
        if verb == "verify" and is_target(word):
            continue
        if word not in known and (refused := file_for_member(word, verb, members)) is not None:
            raise refused
