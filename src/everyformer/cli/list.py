"""`everyformer list`: what exists, filtered by what you need. Needs no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import verb
from everyformer.core.config import Options
from everyformer.core.errors import unknown
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS
from everyformer.family import list_members

ABILITIES = ("causal", "bidirectional", "cross", "streaming", "padding")


@dataclass(frozen=True)
class ListOptions(Options):
    task: str | None = None
    """only members that have this task: lm, mlm, classify-text, classify-image, seq2seq, pixels,
    super-resolution"""
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
    if options.task is not None and options.task not in TASKS:
        raise unknown("task", options.task, TASKS)
    wanted = tuple(name for name in ABILITIES if getattr(options, name))
    members = list_members(task=options.task, abilities=wanted)
    members = [m for m in members if m.is_mixer or not options.mixers]
    if options.json:
        emit([describe(m) for m in members])
        return 0
    rows = [
        (
            m.name,
            m.title,
            str(m.year),
            "yes" if m.is_mixer else "-",
            *_marks(m),
            f"L^{m.cost.time:g}",
        )
        for m in members
    ]
    print(table(("member", "title", "year", "mixer", *ABILITIES, "time"), rows))
    return 0


def describe(member: Member) -> dict[str, object]:
    """The row as plain values."""
    values = dataclasses.asdict(member)
    derived = {"mixer": member.is_mixer, "strictly_causal": member.strictly_causal}
    return {**values, **derived}


def _marks(member: Member) -> list[str]:
    return ["yes" if member.can(ability) else "-" for ability in ABILITIES]
