"""`verify`: run the laws for members on this machine, in this dtype, and say what holds.

Most are those of `sequence_laws`, tried on a member's cases (`everyformer.checks.shared`); what
concerns members alone has laws of its own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from everyformer.checks import conditions, devices, laws, traffic
from everyformer.checks.check import Check
from everyformer.checks.shared import DEFAULTS, subjects
from everyformer.core.devices import pick_device, widest
from everyformer.core.dispatch import all_pairs_allowed
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.member import Member
from everyformer.family import info, list_members
from sequence_laws import compiling
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.judging import LAWS as SHARED
from sequence_laws.judging import check as check
from sequence_laws.judging import judged, known_laws
from sequence_laws.subject import Subject
from sequence_laws.verdict import LawBroken, LawResult, Status

OWN: dict[str, Callable[..., None]] = {
    "equation": laws.equation,
    "limits": laws.limits,
    "bidirectional": laws.bidirectional,
    "conditions": conditions.conditions,
    "devices": devices.devices,
    "traffic": traffic.traffic,
}
"""laws of members alone"""
NOT_OF_MEMBERS = ("batch", "lengths", "order")
"""of models of anyone: of members they follow from others, or say nothing"""
LAWS = (*(law for law in SHARED if law not in NOT_OF_MEMBERS), *OWN)
MANY = ("equation", "conditions")
"""of these, those that can be tried on few"""
FULL: dict[str, Callable[[Subject], str]] = {
    "compiles-everywhere": partial(compiling.one_graph, lengths=(9, 12, 17, 23, 31), dynamic=False),
    DEFAULTS: compiling.compiled_gradients,
}
"""those that take minutes a member"""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_NEEDS = {
    "causality": "causal",
    "streaming": "streaming",
    "padding": "padding",
    "packing": "padding",
    "bidirectional": "bidirectional",
    "traffic": "streaming",
}


def exemption(member: Member, law: str) -> str | None:
    """Reason why a law does not apply to a member, or None if it does."""
    if law in member.exempt:
        return member.exempt[law]
    ability = _NEEDS.get(law)
    if ability is not None and not member.can(ability):
        return f"not {ability}: {getattr(member, ability)}"
    return None


def check_law(
    member: Member,
    law: str,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    *,
    few: bool = False,
) -> LawResult:
    """One law for one member; never raises for a broken law.

    Args:
        few: of a member's cases the first of each form (of streaming all), of lengths and
            conditions some.
    """
    reason = exemption(member, law)
    if reason is not None:
        return LawResult(member.name, law, "exempt", reason)
    start = time.perf_counter()
    torch.manual_seed(0)
    if law not in OWN:
        with all_pairs_allowed():
            return _shared(member, law, device, dtype, few, start)
    found, given = Check(), {"few": few} if law in MANY else {}
    try:
        OWN[law](member, found, device, dtype, **given)
    except FAILURES as error:  # a crash inside a law is a broken law, and is shown as one
        detail = str(error) if isinstance(error, LawBroken) else describe(error)
        return LawResult(member.name, law, "failed", detail, time.perf_counter() - start)
    if not found.count:
        return LawResult(member.name, law, "exempt", "it states nothing that could be checked")
    return LawResult(member.name, law, "held", found.summary(), time.perf_counter() - start)


def _shared(
    member: Member, law: str, device: str, dtype: torch.dtype, few: bool, start: float
) -> LawResult:
    """A law of any model on all subjects of a member, up to the first that breaks it."""
    verdicts, tried = [], {**SHARED, **FULL}[law]
    for subject in subjects(member, law, device, dtype, few=few):
        verdicts.append(one := judged(subject, law, tried))
        if one.status not in ("held", "exempt"):  # a member claims what can be judged
            found = f"{subject.name}: {one.detail}"
            took = time.perf_counter() - start
            return LawResult(member.name, law, "failed", found, took, one.reproduction)
    held = [one for one in verdicts if one.status == "held"]
    details = [one.detail for one in (*held, *verdicts)] or ["it states nothing to be checked"]
    words = f"{len(held)} cases, of the first: {details[0]}" if len(held) > 1 else details[0]
    status: Status = "held" if held else "exempt"
    return LawResult(member.name, law, status, words, time.perf_counter() - start)


def verify(
    names: Sequence[str] = (),
    *,
    laws: Sequence[str] = (),
    device: str = "cpu",
    dtype: str = "float64",
    full: bool = False,
) -> Iterator[LawResult]:
    """Check laws for members (all of both by default) and yield each result as it is known.

    Args:
        names: members; none means all. laws: their names; none means all.
        device: where tensors live; "auto" is an accelerator if there is one. dtype: of identities;
            bounds follow from it.
        full: also capture every case of every member, and run the real compiler on it (minutes).
    """
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    known_laws(laws, (*LAWS, *FULL))
    members = [info(name) for name in names] or list_members()
    chosen, place = list(laws) or [*LAWS, *(FULL if full else ())], pick_device(device)
    if DTYPES[dtype] is torch.float64 and widest(place) is not torch.float64:
        raise ConfigError(
            f"device '{device}' has no float64, in which laws are checked by default: "
            "give precision float32"
        )
    return (check_law(m, law, str(place), DTYPES[dtype]) for m in members for law in chosen)
