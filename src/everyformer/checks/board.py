"""The members as a library of `sequence_laws`: of each the mixer with its defaults."""

import torch

from everyformer.checks.cases import Case
from everyformer.checks.shared import SHORT, SPARED, CaseMixer
from everyformer.checks.verify import exemption
from everyformer.family import info, list_members
from sequence_laws.judging import LAWS
from sequence_laws.libraries import Library
from sequence_laws.subject import Subject


def groups() -> dict[str, list[str]]:
    """All members."""
    return {"all": [member.name for member in list_members()]}


def subject(name: str) -> Subject:
    """A member's mixer, causal where it can be."""
    member = info(name)
    case = Case(member, SHORT.get(name, {}), member.can("causal"))
    made = CaseMixer(case, "cpu", torch.float64)
    made.name, made.idle, made.idles = name, SPARED, "have none by right"
    reasons = {law: exemption(member, law) for law in LAWS}
    made.exempts = {law: reason for law, reason in reasons.items() if reason is not None}
    return made


LIBRARY = Library("everyformer", groups, subject, ("everyformer",), ("everyformer.checks.board",))
