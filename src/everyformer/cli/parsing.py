"""From words to typed options: tyro reads flags, TOML the files, both into one dataclass."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError, nearest

C = TypeVar("C")

# Short words for the flags that nearly every command line has.
SHORT = {
    "--data": "--data.source",
    "--tokenizer": "--data.tokenizer",
    "--length": "--data.length",
    "--steps": "--training.steps",
    "--batch": "--training.batch",
    "--lr": "--training.lr",
    "--seed": "--training.seed",
    "--precision": "--training.precision",
    "--compile": "--training.compile",
    "--budget-seconds": "--training.budget-seconds",
    "--budget-tokens": "--training.budget-tokens",
    "--budget-flops": "--training.budget-flops",
    "--width": "--model.width",
    "--layers": "--model.layers",
    "--heads": "--model.heads",
    "--position": "--model.position",
}


def parse(
    kind: Callable[..., C],
    words: Sequence[str],
    *,
    verb: str,
    about: str,
    examples: Sequence[str],
    default: Any = None,
    short: dict[str, str] | None = None,
) -> C:
    """``words`` as an instance of the dataclass ``kind``.

    ``--config FILE.toml`` (anywhere) gives values that flags then override, ``--print-config``
    prints what would run as JSON and ends.
    """
    words = [_longer(word, short or {}) for word in words]
    path, words = _take(words, "--config")
    printing = "--print-config" in words
    words = [word for word in words if word != "--print-config"]
    if path is not None:
        given: Any = kind if default is None else type(default)
        default = from_dict(given, read_toml(path), "", default)
    try:
        made = tyro.cli(
            kind,
            prog=f"everyformer {verb}",
            description=about + "\n\nexamples:\n" + "\n".join(f"  {e}" for e in examples),
            args=words,
            default=default if default is not None else tyro.MISSING_NONPROP,
            config=(tyro.conf.AvoidSubcommands,),
        )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise SystemExit(2) from stop
    if printing:
        print(json.dumps(to_dict(made), indent=2))
        raise SystemExit(0)
    return made


def read_toml(path: str) -> dict[str, Any]:
    """The tables of a config file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def peek(words: Sequence[str], flag: str) -> str | None:
    """The value of ``flag`` among ``words``, if it is given, without parsing the rest."""
    return _take(list(words), flag)[0]


def first_word(words: Sequence[str], known: Sequence[str], what: str) -> str | None:
    """The leading positional, checked against ``known``; None if there is none (``--help``)."""
    if not words or words[0].startswith("-"):
        return None
    if words[0] not in known:
        raise ConfigError(f"unknown {what} '{words[0]}'; {nearest(words[0], known)}")
    return words[0]


def say(text: str) -> None:
    """A line for people, on stderr: stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def _longer(word: str, short: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return short.get(flag, flag) + equals + value


def _take(words: list[str], flag: str) -> tuple[str | None, list[str]]:
    for i, word in enumerate(words):
        if word == flag:
            if i + 1 == len(words):
                raise ConfigError(f"{flag} needs a value")
            return words[i + 1], words[:i] + words[i + 2 :]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2], words[:i] + words[i + 1 :]
    return None, words
