"""From words to typed options: flags and config files, both read into one dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import tyro

from everyformer.cli.flags import Refused, arrange, flags_of, registry
from everyformer.cli.messages import answer_with, refuse_files
from everyformer.cli.names import (
    as_fields,
    as_in_file,
    full_name,
    nearest_flags,
    spelled,
)
from everyformer.core.config import Options, converted, from_dict, to_dict
from everyformer.core.errors import ConfigError, unknown
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.system.files import expanded
from everyformer.system.plain import from_json, from_toml, to_json
from everyformer.system.pulse import said
from everyformer.training.config import TrainingConfig
from everyformer.training.names import in_full

C = TypeVar("C")

FIRST = {"member", "task", "run", "from_run"}
"""options that decide which others there are, so that a config file's are read before them"""
EVERYWHERE = """everywhere:
  --config FILE    read the options from a TOML or JSON file; flags override it
  --print-config   print what would run as JSON (which --config reads again), and end
  --plugin SPEC    know a mixer of your own, as module:Class or path/file.py:Class
  --debug          show the traceback of an error"""


class Spelled(ConfigError):
    """An error that quotes words or a config file as they were given: none are rewritten."""


class Finished(SystemExit):
    """All that was asked for has been printed: the one end of the program that is ours."""


@dataclasses.dataclass(frozen=True)
class VerbOptions(Options):
    """Options of a verb, some of which must be given."""

    missing: ClassVar[Any] = tyro.MISSING


def parse(
    kind: type[C],
    words: Sequence[str],
    *,
    verb: str,
    about: str,
    examples: Sequence[str],
    default: C | None = None,
    names: Sequence[str] = (),
) -> C:
    """``words`` as an instance of the dataclass ``kind``.

    Args:
        default: what holds where nothing is said; fields without one must be given.
        names: words that are positional wherever they stand.

    Raises:
        ConfigError: an unknown flag (the nearest is offered), a wrong value or config file.
        Finished: after --help and --print-config.
    """
    path, words = take(words, "--config")
    printing = "--print-config" in words
    words = [word for word in words if word != "--print-config"]
    if path is not None:
        values = read_config(path)
        try:
            default = from_dict(kind, in_full(kind, values), "", default or _unset(kind))
        except ConfigError as error:
            raise Spelled(f"{path}: {error}") from error
    _check_budget(words)
    flags = flags_of(kind, default)
    answer_with(flags)
    placed, rest = arrange(words, flags, names)
    if not {"member", "members"}.isdisjoint(f.name for f in dataclasses.fields(kind)):  # type: ignore[arg-type]
        refuse_files(placed, verb)
    options, unknown = _read(kind, [*placed, *rest], verb, about, examples, default)
    if unknown:
        raise _unexpected(unknown[0], flags, verb)
    if printing:
        print(to_json(as_in_file(to_dict(options)), indent=2))
        raise Finished
    return options


def verb(
    kind: type[C], **how: Any
) -> Callable[[Callable[[C], int]], Callable[[Sequence[str]], int]]:
    """Decorator of a verb's ``run``, which then takes words; ``how``: as in `parse`."""

    def decorate(run: Callable[[C], int]) -> Callable[[Sequence[str]], int]:
        name = run.__module__.rpartition(".")[2]
        return functools.wraps(run)(lambda words: run(parse(kind, words, verb=name, **how)))

    return decorate


def _read(
    kind: type[C],
    words: list[str],
    verb: str,
    about: str,
    examples: Sequence[str],
    default: C | None,
) -> tuple[C, list[str]]:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                kind,
                prog=f"everyformer {verb}",
                description=about,
                args=words,
                default=default if default is not None else tyro.MISSING_NONPROP,
                config=(tyro.conf.AvoidSubcommands, tyro.conf.PositionalMetavarFromFieldName),
                registry=registry(kind, default),
                return_unknown_args=True,
            )
    except Refused as error:
        raise error.reason from error
    except SystemExit as stop:
        if stop.code not in (0, None):
            raise Spelled(f"{_sentence(errors.getvalue())}; {_see(verb)}") from stop
        lines = "\n".join(f"  {example}" for example in examples)
        print(f"\n{EVERYWHERE}\n\nexamples:\n{lines}")
        raise Finished from stop


def _sentence(box: str) -> str:
    """What tyro says in a box of several lines, as one."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    lines = [line.strip("╭╮╰╯│ ") for line in plain.splitlines()[1:]]
    # below the title: the first paragraph, up to an empty line or a rule
    said = itertools.dropwhile(_is_rule, lines)
    text = " ".join(itertools.takewhile(lambda line: not _is_rule(line), said)).rstrip(". ")
    several = re.match(r"Error parsing (\S+): Could not find valid parse for .*: (\[.*\])", text)
    if several is not None:
        return "{} does not take {}".format(*several.groups())
    value = re.match(r"Error parsing (\S+): no type matching (.+?) could .* from (\[.*\])", text)
    if value is not None:
        return "{} takes {}, not {}".format(*value.groups())
    return text[:1].lower() + text[1:]


def _is_rule(line: str) -> bool:
    return not line.strip("─- ")


def read_config(path: str) -> dict[str, Any]:
    """The options of a verb in a TOML or JSON file, by field; 'none' stands for no value, which
    TOML cannot say."""
    values = as_fields(_read_config(path))
    for name in FIRST & values.keys():
        try:
            converted(str | None, values[name], name)
        except ConfigError as error:
            raise Spelled(f"{path}: {error}") from error
    return values


def chosen_genes(words: Sequence[str], verb: str, others: Sequence[str] = NONE) -> dict[str, str]:
    """The names that flags, or else a config file, give for genes.

    Args:
        others: words beside those names.

    Raises:
        Spelled: the file gives a name that nothing has.
    """
    path = peek(words, "--config")
    table = {} if path is None else read_config(path)
    names: dict[str, str] = {}
    for gene, record in GENES.items():
        if (name := peek(words, f"--{gene}")) is not None:
            names[gene] = name
            continue
        value = table.get(gene, {})
        given = value if isinstance(value, dict) else {"name": value}
        name = NONE[0] if given.get("name", 0) is None else given.get("name")
        if not isinstance(name, str):
            continue  # nothing, or what is refused where the file is read
        if name not in others and name not in record.alternatives.names():
            reason = unknown(record.alternatives.kind, name, record.alternatives.names())
            raise Spelled(f"{path}: '{gene}': {reason}")
        names[gene] = name
    return names


def _read_config(path: str) -> dict[str, Any]:
    file = expanded(path)
    try:
        text = file.read_text(encoding="utf-8")
        values = from_json(text) if path.endswith(".json") else from_toml(text)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON" if path.endswith(".json") else "TOML"
        raise ConfigError(f"{path} is not valid {kind}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a table of options, not {type(values).__name__}")
    plain: dict[str, Any] = _without_none(values)
    return plain


def peek(words: Sequence[str], flag: str) -> str | None:
    """The value of ``flag``, in full or short, among ``words``, without parsing the rest."""
    return take(words, flag)[0]


def say(text: str) -> None:
    """A line for people, on stderr: stdout is for results."""
    said()
    print(text, file=sys.stderr, flush=True)


def _check_budget(words: Sequence[str]) -> None:
    """Refuse two budgets among the flags, even where one says what holds without it."""
    flags = [f"--training.{name}" for name in TrainingConfig.one_of]
    given = [spelled(flag) for flag in flags if peek(words, flag) not in (None, *NONE)]
    if len(given) > 1:
        raise ConfigError(
            f"{given[0]} and {given[1]} are both given, but a run ends by one budget: leave one of "
            "them out"
        )


def _unset(kind: type[C]) -> C:
    """An instance whose required fields are still to be given."""
    needed = [
        f.name
        for f in dataclasses.fields(kind)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return kind(**dict.fromkeys(needed, tyro.MISSING))


def _unexpected(word: str, flags: dict[str, Any], verb: str) -> Spelled:
    if not word.startswith("-"):
        return Spelled(f"unexpected word '{word}'; {_see(verb)}")
    close = nearest_flags(word, flags)
    meant = "did you mean " + " or ".join(f"'{flag}'" for flag in close) + "?"
    return Spelled(f"unknown option '{word.partition('=')[0]}'; {meant if close else _see(verb)}")


def _see(verb: str) -> str:
    return f"see everyformer {verb} --help"


def _without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_without_none(value) for value in values]
    return None if isinstance(values, str) and values in NONE else values


def take(words: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of ``flag``, in full or short, and the other words."""
    words, wanted = list(words), full_name(flag)
    for i, word in enumerate(words):
        name, equals, value = full_name(word).partition("=")
        if name != wanted:
            continue
        if equals:
            return value, words[:i] + words[i + 1 :]
        if i + 1 == len(words):
            raise ConfigError(f"{word} needs a value")
        return words[i + 1], words[:i] + words[i + 2 :]
    return None, words
