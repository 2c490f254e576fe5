"""Two boards: what is broken that held, what is mended, what went quiet, what came and went."""

import dataclasses
from typing import Any

from sequence_laws.verdict import BROKEN

QUIET = ("exempt", "undecided", "not_built")
Cell = tuple[str, str, str]
"""library, model, law"""


@dataclasses.dataclass
class Changes:
    """What differs between an old board and a new one, as sentences."""

    broken: list[str] = dataclasses.field(default_factory=list)
    """fails now, of an old model or a new one"""
    quiet: list[str] = dataclasses.field(default_factory=list)
    """was judged, and is not any more"""
    mended: list[str] = dataclasses.field(default_factory=list)
    other: list[str] = dataclasses.field(default_factory=list)
    gone: list[str] = dataclasses.field(default_factory=list)
    """models"""
    new: list[str] = dataclasses.field(default_factory=list)
    """models"""
    untried: list[str] = dataclasses.field(default_factory=list)
    """laws that one of the two boards did not try, which are not compared"""

    @property
    def red(self) -> bool:
        """Whether somebody must look."""
        return bool(self.broken or self.quiet)

    def __str__(self) -> str:
        lines = []
        for title, found in (
            ("newly broken", self.broken),
            ("gone quiet", self.quiet),
            ("mended", self.mended),
            ("otherwise", self.other),
            ("models gone", self.gone),
            ("models new", self.new),
            ("laws not compared", self.untried),
        ):
            if found:
                lines += [f"{title} ({len(found)}):", *(f"  {one}" for one in found)]
        return "\n".join(lines or ["nothing differs"])


def compare(old: dict[str, Any], new: dict[str, Any]) -> Changes:
    """What differs, of the laws that both tried."""
    changes = Changes()
    laws = [law for law in new["laws"] if law in old["laws"]]
    changes.untried = sorted({*old["laws"]} ^ {*new["laws"]})
    before, after = (
        {f"{one['library']}/{one['model']}": one for one in board["models"]} for board in (old, new)
    )
    changes.gone = sorted(before.keys() - after.keys())
    changes.new = sorted(after.keys() - before.keys())
    for model, one in sorted(after.items()):
        for law in laws:
            had = before[model]["cells"][law]["status"] if model in before else ""
            has, detail = one["cells"][law]["status"], one["cells"][law]["detail"]
            said = f"{model}, {law}: {had or 'new'} -> {has}: {detail}"
            if has in BROKEN and had not in BROKEN:
                changes.broken.append(said)
            elif has == had or not had:
                continue
            elif had in BROKEN and has in ("held", "reported"):
                changes.mended.append(said)
            elif had not in QUIET and has in QUIET:
                changes.quiet.append(said)
            else:
                changes.other.append(said)
    return changes
