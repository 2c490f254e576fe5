"""The vocabulary of the command line: short names, and what a wrong name may mean.

One thing has one name in all verbs (docs/command-line.md has the table).
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from everyformer.core.errors import ConfigError
from everyformer.family import list_members
from everyformer.system.files import expanded
from everyformer.training.names import ALIASES, HOMES, OTHER_NAMES
from sequence_laws.names import is_target

ELSEWHERE: dict[str, str] = {
    "batch": "batchsize bsz",
    "both-ways": "bidirectional",
    "budget-seconds": "minutes time",
    "data": "corpus dataset file input train",
    "device": "cuda gpu",
    "from": "checkpoint initfrom",
    "heads": "nhead nheads numheads",
    "layers": "nlayers numlayers",
    "lr": "learningrate",
    "out": "destination output outputdir",
    "precision": "dtype fp16",
    "prompt": "input",
    "prompts": "file promptfile",
    "resume": "checkpoint",
    "seed": "randomseed",
    "steps": "epochs iterations iters maxiters maxsteps",
    "threads": "cpus workers",
    "tokens": "maxlen maxlength maxnewtokens maxtokens numtokens",
    "model.max-length": "maxlength",
    "length": "contextlength ctx maxlen maxlength seqlen",
    "training.schedule": "lrschedule",
    "width": "dim dmodel embeddim hiddensize",
}
"""option -> what people of the field call it elsewhere, without hyphens; the likelier first"""

MATTER: dict[str, str] = {
    "train": "data task length steps budget-seconds lr width layers from out resume",
    "compare": "data task length budget-seconds seeds match lr-grid width layers out resume",
    "eval": "data length sequences each mode lengths store bleu device out json",
    "generate": "prompt tokens temperature top-k top-p seed beam state images device out",
    "bench": "lengths decode width heads backward precision device threads peers json",
    "calibrate": "data lines prompts tokens delta epsilon metric thresholds seed json",
    "show": "task text length others format out json",
}
"""verb -> the options that its --help shows; those of other verbs are few enough to be shown all"""

_SHORT = {short: f"--{HOMES[cls]}.{name}" for (cls, name), short in ALIASES.items()}


def full_name(word: str) -> str:
    """A flag as it is spelled in full with underscores, '=value' kept; other words as they are."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        return word
    flag = "--" + flag[2:].replace("-", "_")
    return _SHORT_NAMES.get(flag, flag) + equals + value


_SHORT_NAMES = {"--" + short[2:].replace("-", "_"): full for short, full in _SHORT.items()}


def spelled(flag: str) -> str:
    """A flag in full, as `full_name` gives it, as it is best written: short, with hyphens."""
    shorter = {full: short for short, full in _SHORT.items()}
    return shorter.get(flag, flag.replace("_", "-"))


_OPTION = re.compile(r"`(--)?([a-z_][\w.-]*)(\[\d+\])?(?:=([^`]*))?`")


def in_flags(text: str, flags: Iterable[str]) -> str:
    """An error of the library with its options, which are in backticks, as flags: of
    `mixer.window=64` --mixer.window 64. What none of ``flags`` is stays as it is."""
    known = [*flags]

    def spell(option: re.Match[str]) -> str:
        typed, name, index, value = option.groups(default="")
        name = OTHER_NAMES.get(name, name)
        if typed:
            return f"'--{name.replace('_', '-')}{index}'"
        homes = (f"--{home}{name}" for home in ("", "training.", "data.", "model."))
        ends = [flag for flag in known if flag.endswith(f".{name}")]
        if (flag := next((one for one in homes if one in known), None)) is None:
            if len(ends) != 1:
                return option[0]
            flag = ends[0]
        return f"{spelled(flag)}{index}{' ' * bool(value)}{value.strip(chr(39))}"

    return _OPTION.sub(spell, text)


def as_in_file(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a verb under the names that config files have for them."""
    return {OTHER_NAMES.get(key, key): value for key, value in values.items()}


def nearest_flags(word: str, flags: Iterable[str]) -> list[str]:
    """The flags that ``word`` may have meant, likeliest first, as they are best written.

    What the field calls it elsewhere comes first, then names that begin so, then those with the
    same last part, then those that are spelled nearly so.
    """
    names = {spelled(flag)[2:]: flag for flag in flags}
    meant = word.partition("=")[0].replace("_", "-").lstrip("-")
    tail = meant.rpartition(".")[2]
    ends = {name: name.rpartition(".")[2] for name in names}
    word = tail.replace("-", "")
    likely = [name for name, words in ELSEWHERE.items() if name in names and word in words.split()]
    if not likely:
        likely += [name for name in names if name.startswith(meant)]
        likely += [name for name, end in ends.items() if len(tail) > 2 and end.startswith(tail)]
        likely += difflib.get_close_matches(meant, names, n=3, cutoff=0.6)
        close = difflib.get_close_matches(tail, set(ends.values()), n=2, cutoff=0.75)
        likely += [name for end in close for name in names if ends[name] == end]
    return [f"--{name}" for name in dict.fromkeys(likely)][:3]


DATA = (
    *(".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet", ".zip", ".npy", ".npz", ".md"),
    ".gz",
)
"""endings of files that nobody calls a member"""


def file_for_member(word: str, verb: str, members: Sequence[str] = ()) -> ConfigError | None:
    """Refusal of a file where a member is expected; None if it is no file.

    Args:
        members: that were named with it.
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
