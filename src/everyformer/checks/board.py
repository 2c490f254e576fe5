"""The members as a library of `sequence_laws`: of each the mixer, with blocks that are short."""

import re
from typing import Self

import torch

from everyformer.checks.cases import Case
from everyformer.checks.shared import COST_WIDTH, SHORT, SPARED, CaseMixer
from everyformer.checks.verify import exemption
from everyformer.family import info, list_members
from sequence_laws.judging import LAWS
from sequence_laws.libraries import Library
from sequence_laws.subject import Subject

IDLE = re.compile(f"{SPARED.pattern}|^summary")
"""of a mixer alone, which nothing follows"""


class Alone(CaseMixer):
    """A mixer by itself, which costs what it does with its defaults."""

    def of_length(self, length: int) -> Self:
        """Made for texts of a length."""
        usual = Case(self.case.member, {}, self.case.causal)
        return type(self)(usual, self.device, self.wide, width=COST_WIDTH, length=length)


def groups() -> dict[str, list[str]]:
    """All members."""
    return {"all": [member.name for member in list_members()]}


def subject(name: str) -> Subject:
    """A member's mixer, causal where it can be."""
    member = info(name)
    options = SHORT.get(name, {})
    torch.manual_seed(0)
    made = Alone(Case(member, options, member.can("causal")), "cpu", torch.float64)
    made.name, made.idle, made.idles = name, IDLE, "have none by right"
    made.exports = not options  # as `verify` has it
    reasons = {law: exemption(member, law) for law in LAWS}
    made.exempts = {law: reason for law, reason in reasons.items() if reason is not None}
    return made


LIBRARY = Library("everyformer", groups, subject, ("everyformer",), ("everyformer.checks.board",))
