"""`everyformer list`: what exists, filtered by what you need. Needs no torch."""

import dataclasses
from dataclasses import dataclass

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import verb
from everyformer.core.config import Options
from everyformer.core.errors import unknown
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS, tasks_called
from everyformer.family import list_members

ABILITIES = ("causal", "bidirectional", "cross", "streaming", "padding")


@dataclass(frozen=True)
class ListOptions(Options):
    """The words of `everyformer list`."""

    task: str | None = None
    """only members that have this task: lm, mlm, seq2seq, pixels, super-resolution, classify or
    regress (of text; -image or -series say another kind)"""
    causal: bool = False
    """only members that can hide the future"""
    bidirectional: bool = False
    """only members that can see both ways"""
    cross: bool = False
    """only members that can read another sequence"""
    streaming: bool = False
    """only members with an exact state, one token at a time"""
    padding: bool = False
    """only members whose padded rows equal the rows alone"""
    mixers: bool = False
    """only members that `create_mixer` and the drop-in modules know"""
    json: bool = False
    """machine output"""


@verb(
    ListOptions,
    about="See what exists: one line a member.",
    examples=("everyformer list --streaming", "everyformer list --task classify-image --json"),
)
def run(options: ListOptions) -> int:
    """Print the family table."""
    if options.task is not None and not tasks_called(options.task):
        raise unknown("task", options.task, [*TASKS, *(task.word for task in TASKS.values())])
    needed = tuple(name for name in ABILITIES if getattr(options, name))
    members = list_members(task=options.task, abilities=needed)
    members = [m for m in members if m.is_mixer or not options.mixers]
    if options.json:
        emit([describe(m) for m in members])
        return 0
    rows = []
    for m in members:
        marks = ["yes" if able else "-" for able in (m.is_mixer, *map(m.can, ABILITIES))]
        rows.append((m.name, m.title, str(m.year), *marks, _growth(m.cost.time)))
    print(table(("member", "title", "year", "mixer", *ABILITIES, "time grows like"), rows))
    return 0


def _growth(exponent: float) -> str:
    """A power of the length L."""
    return "L" if exponent == 1 else f"L^{exponent:g}"


def describe(member: Member) -> dict[str, object]:
    """A member's row as plain values."""
    values = dataclasses.asdict(member)
    derived = {"mixer": member.is_mixer, "strictly_causal": member.strictly_causal}
    return {**values, **derived}
