"""`everyformer list`: what exists, filtered and sorted by what you need. Needs no torch."""

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from everyformer.cli.parsing import say, verb
from everyformer.core.bounds import Count
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS, tasks_called
from everyformer.family import list_members
from everyformer.genes.config import Architecture
from everyformer.lab.suites import abilities
from everyformer.system.console import emit, table
from sequence_laws.memory import size

ABILITIES = {
    "causal": "causal",
    "bidirectional": "both ways",
    "cross": "cross",
    "streaming": "streaming",
    "padding": "padding",
}
"""ability -> its name for people"""
LENGTH = 16_384
"""tokens for which states are sized by default"""
FLOAT = 4
"""bytes of a number in float32"""


@dataclass(frozen=True)
class ListOptions(Options):
    """The words of `everyformer list`."""

    task: str | None = None
    """only members that have this task: lm, mlm, seq2seq, pixels, super-resolution, classify or
    regress (of text; -image or -series say another kind)"""
    state: Literal["constant", "grows"] | None = None
    """only members that stream with a state that stays as large, or that grows with the text"""
    growth: Literal["L", "L^1.5", "L^2"] | None = None
    """only members whose time grows with the length L no faster than this; where one is read in
    segments, with the length of the whole text; none that nobody states"""
    both_ways: bool = False
    """only members that can see both ways"""
    causal: bool = False
    """only members that can hide the future"""
    streaming: bool = False
    """only members with an exact state, one token at a time"""
    cross: bool = False
    """only members that can read another sequence"""
    padding: bool = False
    """only members whose padded rows equal the rows alone"""
    mixers: bool = False
    """only members that `create_mixer` and the drop-in modules know"""
    can: str | None = None
    """only members that were measured to be able, by skills with commas between: recall, copy,
    memory, state (on most probes of the skill, 90% right; docs/board/mini), or that stream, or
    have a constant-memory state: recall,stream,constant-memory"""
    memory: str | None = None
    """only members that stream a text of --length tokens in so much memory (4GB, 500MB): their
    state and weights by place, in float32, of one text, as the formulas of their rows have it"""
    length: Count | None = None
    """tokens of that text (default: 16,384); tells what each member then holds"""
    width: Count = Architecture.width
    """channels of those members"""
    layers: Count | None = None
    """their layers (default: the member's own number, else 4)"""
    heads: Count = Architecture.heads
    """their heads"""
    sort: Literal["family", "name", "time", "state"] = "family"
    """by name, growth of time or size of the state, the least first"""
    json: bool = False
    """machine output"""

    def held(self, member: Member) -> float | None:
        """Bytes that a member holds after --length tokens; None where it does not stream, or its
        row has no formula."""
        layers = self.layers or member.genes.model.get("layers", Architecture.layers)
        if not member.can("streaming"):
            return None
        sizes = {"d": self.width, "h": self.heads, "layers": layers}
        numbers = member.cost.held(t=self.length or LENGTH, **sizes)
        return None if numbers is None else FLOAT * numbers


@verb(
    ListOptions,
    about="See what exists: one line a member.",
    examples=(
        "everyformer list --state constant --growth L --sort state",
        "everyformer list --task lm --memory 500MB --length 100000 --width 512 --layers 12",
    ),
)
def run(options: ListOptions) -> int:
    """Print the family table."""
    if options.task is not None and not tasks_called(options.task):
        raise unknown("task", options.task, [*TASKS, *(task.word for task in TASKS.values())])
    members, left = list_members(), list[str]()
    for words, fits in _filters(options):
        members = [member for member in members if fits(member)]
        if not members:
            before = f" of those that {' and '.join(left)} left" if left else ""
            say(f"{words} leaves no member{before}: `everyformer list` has all")
            break
        left.append(f"{words} ({len(members)})")
    members = sorted(members, key=_order(options))
    with_memory = options.memory is not None or options.length is not None
    if options.json:
        more = [{"held_bytes": options.held(m)} if with_memory else {} for m in members]
        emit([describe(m) | also for m, also in zip(members, more, strict=True)])
        return 0
    if not members:
        return 0
    if with_memory:
        layers = "the member's own or 4" if options.layers is None else f"{options.layers}"
        say(
            f"held: what one text of {options.length or LENGTH:,} tokens leaves in a model that "
            f"reads it token by token (windows and stores full), and weights by place; "
            f"{options.width} wide, {layers} layers, {options.heads} heads, float32 (training "
            "needs more)"
        )
    headers = ["member", "title", "year", "mixer", *ABILITIES.values(), "time like", "state"]
    rows = []
    for m in members:
        marks = ["yes" if able else "-" for able in (m.is_mixer, *map(m.can, ABILITIES))]
        row = [m.name, m.title, str(m.year), *marks, m.cost.growth, m.state]
        rows.append([*row, *([size(options.held(m))] if with_memory else [])])
    print(table([*headers, *(["held"] if with_memory else [])], rows))
    return 0


def _filters(options: ListOptions) -> list[tuple[str, Callable[[Member], bool]]]:
    """The abilities that were requested, in words, each with a test of a member."""
    filters: list[tuple[str, Callable[[Member], bool]]] = []
    if options.task is not None:
        called = next(iter(tasks_called(options.task)))
        filters.append((f"--task {options.task}", lambda m: called in m.tasks))
    for ability, name in ABILITIES.items():
        if getattr(options, name.replace(" ", "_")):
            flag = "--" + name.replace(" ", "-")
            filters.append((flag, lambda m, ability=ability: m.can(ability)))  # type: ignore[misc]
    filters += [_able(word) for word in (options.can or "").split(",") if options.can is not None]
    if options.mixers:
        filters.append(("--mixers", lambda m: m.is_mixer))
    if options.state is not None:
        filters.append((f"--state {options.state}", lambda m: m.state == options.state))
    if options.growth is not None:
        most = float(options.growth.partition("^")[2] or 1)
        filters.append((f"--growth {options.growth}", lambda m: m.cost.whole <= most))
    if options.memory is not None:
        room = bytes_of(options.memory)

        def fits(member: Member) -> bool:
            held = options.held(member)
            return held is not None and held <= room

        filters.append((f"--memory {options.memory}", fits))
    return filters


def _able(word: str) -> tuple[str, Callable[[Member], bool]]:
    """The test of a word of --can.

    Raises:
        ConfigError: there is no such skill.
    """
    words = f"--can {word}"
    if word == "stream":
        return words, lambda member: member.can("streaming")
    if word == "constant-memory":
        return words, lambda member: member.state == "constant"
    if word not in abilities.SKILLS:
        raise unknown("skill", word, [*abilities.SKILLS, "stream", "constant-memory"])
    known = abilities.measured()
    return words, lambda member: abilities.can(member.name, word, known)


def _order(options: ListOptions) -> Callable[[Member], Any]:
    """The key that members are sorted by."""

    def by_state(member: Member) -> float:
        held = options.held(member)
        return math.inf if held is None else held

    return {
        "family": lambda m: 0,
        "name": lambda m: m.name,
        "time": lambda m: math.inf if m.cost.time is None else m.cost.time,
        "state": by_state,
    }[options.sort]


def bytes_of(text: str) -> float:
    """Bytes that a size is: 4GB, 1.5 GiB, 500M.

    Raises:
        ConfigError: it is none.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if parts is None:
        raise ConfigError(f"--memory takes a size such as 4GB or 500MB, not '{text}'")
    unit = 1024 if parts[3] else 1000
    return float(parts[1]) * unit ** " KMGT".index(parts[2].upper() or " ")


def describe(member: Member) -> dict[str, object]:
    """A member's row as plain values."""
    values = dataclasses.asdict(member)
    derived = {"mixer": member.is_mixer, "strictly_causal": member.strictly_causal}
    return {**values, **derived, "state": member.state}
