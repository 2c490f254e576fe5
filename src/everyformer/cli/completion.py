"""Tab completion, as a script for a shell: verbs, members, options, and else files.

tyro's own scripts leave out words without a flag, which members are.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from everyformer.cli.flags import FlagGroup, takes
from everyformer.cli.names import spelled
from everyformer.cli.parsing import ALL, HELP, LISTED, Asked
from everyformer.core.errors import ConfigError
from everyformer.family import names

EVERYWHERE = ("--config", "--plugin")
SWITCHES = (HELP[0], "--print-config", "--debug")
"""options of all verbs, with a value and without"""

BASH = """_everyformer() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} names valued switches
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  if [ "$COMP_CWORD" = 1 ]; then names="{verbs}"
  elif [ "$prev" = {help} ]; then names={all}
  elif [[ " $valued " == *" $prev "* ]]; then names=
  elif [[ $cur == -* ]]; then names="$valued $switches"
  fi
  COMPREPLY=($(compgen -W "$names" -- "$cur"))
}}
complete -o default -F _everyformer everyformer"""
CASE = '    {verb}) names="{names}" valued="{valued}" switches="{switches}" ;;'
ZSH = "autoload -U +X bashcompinit && bashcompinit"
FISH = "complete -c everyformer -n '{when}' {what}"


class Words(NamedTuple):
    """Words that may follow a verb."""

    names: list[str]
    """of members"""
    valued: list[str]
    """options with a value"""
    switches: list[str]
    """options without"""


def script(shell: str, verbs: Mapping[str, str]) -> str:
    """Script that makes a shell complete the words of everyformer.

    Args:
        verbs: what each is for, by name.

    Raises:
        ConfigError: it is for no such shell.
    """
    if shell not in ("bash", "zsh", "fish"):
        raise ConfigError(f"--print-completion takes bash, zsh or fish, not '{shell}'")
    every = {verb: _words(verb) for verb in verbs}
    if shell == "fish":
        return "\n".join(_fish(verbs, every))
    cases = [
        CASE.format(verb=verb, **{kind: " ".join(part) for kind, part in words._asdict().items()})
        for verb, words in every.items()
    ]
    text = BASH.format(cases="\n".join(cases), verbs=" ".join(verbs), help=HELP[0], all=ALL)
    return f"{ZSH}\n{text}" if shell == "zsh" else text


def _fish(verbs: Mapping[str, str], every: Mapping[str, Words]) -> Iterator[str]:
    for verb, about in verbs.items():
        yield FISH.format(when="__fish_use_subcommand", what=f'-a {verb} -d "{about}"')
    for verb, words in every.items():
        when = f"__fish_seen_subcommand_from {verb}"
        for options, needs in ((words.valued, "-r "), (words.switches, "")):
            what = needs + " ".join(f"-l {option[2:]}" for option in options)
            yield FISH.format(when=when, what=what)
        if words.names:
            yield FISH.format(when=when, what=f'-a "{" ".join(words.names)}"')


def _words(verb: str) -> Words:
    group = _group(verb)
    flags = group.flags()
    named = any(not flag and name in ("member", "members") for name, flag, *_ in group.options())
    valued = [spelled(flag) for flag in flags if takes(flag, flags)]
    switches = [spelled(flag) for flag in flags if not takes(flag, flags)]
    return Words(names() if named else [], [*valued, *EVERYWHERE], [*switches, *SWITCHES])


def _group(verb: str) -> FlagGroup:
    """The options of a verb."""
    try:
        importlib.import_module(f"everyformer.cli.verbs.{verb}").run([HELP[0], LISTED])
    except Asked as found:
        return found.group
    raise AssertionError(f"{verb} reads no line")
