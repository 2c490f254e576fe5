"""From words and a config file to the options that were given, and from those to typed options."""

import contextlib
import dataclasses
import functools
import io
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Generic, NoReturn, TypeVar

import tyro

from everyformer.cli.flags import (
    FLAG,
    FlagGroup,
    arrange,
    named_flag,
    registry,
    repeats,
    takes,
    unset,
)
from everyformer.cli.names import (
    MATTER,
    as_in_file,
    full_name,
    in_flags,
    nearest_flags,
    refuse_files,
)
from everyformer.core.config import (
    Choice,
    Given,
    NoneWord,
    NoOptions,
    Options,
    converted,
    over,
    to_dict,
)
from everyformer.core.errors import ConfigError, in_quotes, unknown
from everyformer.core.former import name_now
from everyformer.genes import GENES
from everyformer.genes.gene import NONE
from everyformer.system.files import expanded
from everyformer.system.plain import from_json, from_toml, to_json
from everyformer.training.names import OTHER_NAMES, in_full
from everyformer.training.spec import RunSpec

C = TypeVar("C")

HELP, ALL = ("--help", "-h"), "all"
LISTED = "--flags"
"""with --help: a program requests the flags alone"""
NARROWEST = 40
"""columns of help"""
EVERYWHERE = """everywhere:
  --config FILE    read the options from a TOML or JSON file; flags override it
  --print-config   print what would run as JSON (which --config reads again), and end
  --plugin SPEC    know a mixer or position of your own: module:Class or path/file.py:Class
  --debug          show the traceback of an error"""


_ANSWERED: ContextVar[dict[str, Any]] = ContextVar("flags of the verb that runs")


class Finished(SystemExit):
    """End of the program once all that was requested has been printed; the one that is ours."""


class Asked(Finished):
    """End of a verb where its options were all that was requested."""

    def __init__(self, group: FlagGroup) -> None:
        super().__init__()
        self.group = group


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedOptions(Options):
    """Options of a verb that computes with what was trained."""

    run: tyro.conf.Positional[str]
    """directory of a trained run, or folder of a saved or converted model"""
    device: str = "auto"
    """where it is computed: cpu, cuda ...; auto: an accelerator if there is one"""


class Line(Generic[C]):
    """Words of a verb, with the table of the config file that they name.

    Args:
        kind: the dataclass of the verb's options.
        verb: its name.
        names: words that are positional wherever they stand.

    Raises:
        ConfigError: the file cannot be read, or gives an option twice.
    """

    def __init__(
        self, kind: type[C], words: Sequence[str], verb: str, names: Sequence[str] = ()
    ) -> None:
        self.kind, self.verb, self.names = kind, verb, names
        words = [name_now(word) if word.startswith("--") else word for word in words]
        path, words = take(words, "--config")
        self.printing = "--print-config" in words
        words = [word for word in words if word != "--print-config"]
        self.helps = not set(HELP).isdisjoint(words)
        # all of them behind --help, where the verb shows some
        self.whole = self.helps and ALL in words
        self.words = [word for word in words if not (self.whole and word == ALL)]
        self.path = path or ""
        table = {} if path is None else _read_config(path)
        try:
            self.table = in_full(kind, table)
        except ConfigError as error:
            raise ConfigError(f"{path}: {in_quotes(error)}") from error

    def peek(self, option: str) -> str | None:
        """The value of an option that decides which others there are, before all are read.

        Args:
            option: by its field, as ``data.env``; a flag's value goes before the file's.

        Raises:
            ConfigError: that of the file is no text.
        """
        value = take(self.words, f"--{OTHER_NAMES.get(option, option)}")[0]
        if value is not None:
            return value
        table: Any = self.table
        for name in option.split("."):
            table = table.get(name) if isinstance(table, dict) else None
        try:
            chosen: str | None = converted(str | None, table, option)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {in_quotes(error)}") from error
        return chosen

    def placed(self, default: C | None = None) -> list[str]:
        """The words without a flag, before all are read."""
        return arrange(self.words, FlagGroup(default or unset(self.kind)).flags(), self.names)[0]

    def read(self, about: str, examples: Sequence[str], default: C | None = None) -> list[Given]:
        """Options that the file and the line give, the line's last.

        Args:
            default: what holds where nothing is given; fields without one must be given.

        Raises:
            ConfigError: an unknown flag (the nearest is offered), a wrong value or config file.
            Finished: after --help.
        """
        default = default or unset(self.kind)
        below = self._below(default)
        group = FlagGroup(over(default, below))
        if self.helps and LISTED in self.words:
            raise Asked(group)
        flags = group.flags()
        _ANSWERED.set(flags)
        placed, rest = arrange(self.words, flags, self.names)
        flagged = [named_flag(word, flags) for word in rest if FLAG.match(word)]
        self._refuse_repeated(flagged, flags)
        if not {"member", "members"}.isdisjoint(vars(default)):
            refuse_files(placed, self.verb)
        values, others = self._values(group, [*placed, *rest], about, examples)
        if others:
            self._refuse(others[0], flags)
        return [*below, (group.given(values, {*flagged}), "--")]

    def parse(self, about: str, examples: Sequence[str], default: C | None = None) -> C:
        """The options of the verb; arguments and errors as of `read`."""
        default = default or unset(self.kind)
        return self.printed(over(default, self.read(about, examples, default)))

    def printed(self, options: C) -> C:
        """``options``; with --print-config they are printed, and that is all."""
        if self.printing:
            print(to_json(as_in_file(to_dict(options)), indent=2))
            raise Finished
        return options

    def _below(self, default: C) -> list[Given]:
        """The file, and the alternatives that flags name for genes: they decide which flags there
        are."""
        file = (self.table, self.path)
        if getattr(self.kind, "choices_in", None) is None:
            return [file]
        for gene, record in GENES.items():
            value = self.table.get(gene)
            name = value.get("name") if isinstance(value, dict) else value
            known, usual = record.alternatives, vars(default)["genes"][gene].name
            if isinstance(name, str) and name not in (usual, *NONE, *known.names()):
                reason = unknown(known.kind, name, known.names())
                raise ConfigError(f"{self.path}: '{gene}': {reason}")
        flagged = {gene: take(self.words, f"--{gene}")[0] for gene in GENES}
        names = {
            gene: {"name": None if name in NONE else name}
            for gene, name in flagged.items()
            if name is not None
        }
        return [file, (names, "")]

    def _values(
        self, group: FlagGroup, words: list[str], about: str, examples: Sequence[str]
    ) -> tuple[dict[str, Any], list[str]]:
        """Every value of ``group`` as nested plain values by field, and words that are none."""
        errors = io.StringIO()
        every = group.flags()
        if shutil.get_terminal_size().columns < NARROWEST:
            # in less, tyro's boxes of help never end
            os.environ["COLUMNS"] = str(NARROWEST)
        if self.helps and not self.whole and self.verb in MATTER:
            matter = {named_flag(f"--{name}", every) for name in MATTER[self.verb].split()}
            group, words = dataclasses.replace(group, shown=matter), [HELP[0]]
        try:
            with contextlib.redirect_stderr(errors):
                read: Any = tyro.cli(
                    FlagGroup,
                    prog=f"everyformer {self.verb}",
                    description=about,
                    args=words,
                    default=group,
                    config=(tyro.conf.AvoidSubcommands, tyro.conf.PositionalMetavarFromFieldName),
                    registry=registry(),
                    return_unknown_args=True,
                )
                return read
        except SystemExit as stop:
            if stop.code not in (0, None):
                raise ConfigError(f"{_sentence(errors.getvalue())}; {self._help}") from stop
            lines = "\n".join(f"  {example}" for example in examples)
            if hidden := len(every) - len(group.flags()):
                print(f"\n`everyformer {self.verb} {HELP[0]} {ALL}` shows the other {hidden}")
            print(f"\n{EVERYWHERE}\n\nexamples:\n{lines}")
            raise Finished from stop

    def _refuse_repeated(self, known: Sequence[str], flags: dict[str, Any]) -> None:
        """An option of one value that has two, behind it or at two places."""
        for flag, value, other in zip(self.words, self.words[1:], self.words[2:], strict=False):
            alone = FLAG.match(flag) and "=" not in flag and takes(flag, flags) == 1
            if alone and not FLAG.match(value) and re.fullmatch(r"-?[\d.]+(e-?\d+)?", other):
                raise ConfigError(
                    f"{flag} takes one value, not {value} and {other}: give one of them"
                )
        for flag in known:
            if flag in flags and known.count(flag) > 1 and not repeats(flag, flags):
                raise ConfigError(f"{flag} is given {known.count(flag)} times: give it once")

    def _refuse(self, word: str, flags: dict[str, Any]) -> NoReturn:
        if not word.startswith("-"):
            raise ConfigError(f"unexpected word '{word}'; {self._help}")
        close = nearest_flags(word, flags)
        meant = "did you mean " + " or ".join(f"'{flag}'" for flag in close) + "?"
        raise ConfigError(
            f"unknown option '{word.partition('=')[0]}'; {meant if close else self._help}"
        )

    @property
    def _help(self) -> str:
        return f"see everyformer {self.verb} --help"


def verb(
    kind: type[C], names: Sequence[str] = (), **how: Any
) -> Callable[[Callable[[C], int]], Callable[[Sequence[str]], int]]:
    """Decorator of a verb's ``run``, which then takes words; ``names``: as of `Line`, ``how``: as
    in `Line.parse`."""

    def decorate(run: Callable[[C], int]) -> Callable[[Sequence[str]], int]:
        verb = run.__module__.rpartition(".")[2]
        return functools.wraps(run)(lambda words: run(Line(kind, words, verb, names).parse(**how)))

    return decorate


def _sentence(box: str) -> str:
    """Refusal of tyro, in a box of several lines, as one."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    lines = [line.strip("╭╮╰╯│ ") for line in plain.splitlines()]
    # before the title, or the rule below it, stands what else was said meanwhile
    title = next((n for n, line in enumerate(lines) if "──" in line or "---" in line), 0)
    lines = lines[title + 1 :]
    # below the title: the first paragraph, up to an empty line or a rule
    shown = itertools.dropwhile(_is_rule, lines)
    text = " ".join(itertools.takewhile(lambda line: not _is_rule(line), shown)).rstrip(". ")
    several = re.match(r"Error parsing (\S+): Could not find valid parse for .*: (\[.*\])", text)
    if several is not None:
        return "{} does not take {}".format(*several.groups())
    value = re.match(r"Error parsing (\S+): no type matching (.+?) could .* from (\[.*\])", text)
    if value is not None:
        return "{} takes {}, not {}".format(*value.groups())
    lacking = re.match(r"Missing value for argument '([^'/]+).*'. Expected (\d+) values", text)
    if lacking is not None:
        return f"{lacking[1]} needs {'a value' if lacking[2] == '1' else f'{lacking[2]} values'}"
    return text[:1].lower() + text[1:]


def _is_rule(line: str) -> bool:
    return not line.strip("─- ")


def _read_config(path: str) -> dict[str, Any]:
    file = expanded(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        values = from_json(text, unique=True) if path.endswith(".json") else from_toml(text)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from error
    except ValueError as error:
        kind = "JSON" if path.endswith(".json") else "TOML"
        raise ConfigError(f"{path} is not valid {kind}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a table of options, not {type(values).__name__}")
    marked: dict[str, Any] = _marked(values)
    return marked


def answer(text: str) -> str:
    """A text of the library with the options in it as flags: those of the verb, and of a run, which
    errors about models name whatever the verb is."""
    if "`" not in text:
        return text
    genes = {name: Choice(gene.default, NoOptions()) for name, gene in GENES.items()}
    return in_flags(text, FlagGroup(RunSpec("", genes)).flags() | _ANSWERED.get({}))


def say(text: str) -> None:
    """A line for people, on stderr: stdout is for results."""
    print(answer(text), file=sys.stderr, flush=True)


def _marked(values: Any) -> Any:
    """The values of a file, in which words that may stand for None are marked."""
    if isinstance(values, dict):
        return {key: _marked(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_marked(value) for value in values]
    return NoneWord(values) if isinstance(values, str) and values in NONE else values


def take(words: Sequence[str], flag: str, needed: str = "a value") -> tuple[str | None, list[str]]:
    """The value of ``flag``, in full or short, and the other words."""
    words, named = [*words], full_name(flag)
    for i in (n for n, word in enumerate(words) if word.startswith("--")):
        name, equals, value = full_name(words[i]).partition("=")
        if name != named:
            continue
        if equals:
            return value, words[:i] + words[i + 1 :]
        if i + 1 == len(words):
            raise ConfigError(f"{words[i]} needs {needed}")
        return words[i + 1], words[:i] + words[i + 2 :]
    return None, words
