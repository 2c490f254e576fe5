"""`verify`: run the laws for members on this machine, in this dtype, and say what holds."""

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from everyformer.checks import devices, laws, machine, traffic
from everyformer.checks.check import Check
from everyformer.core.devices import pick_device, widest
from everyformer.core.errors import ConfigError, UnknownNameError, unknown
from everyformer.core.member import Member
from everyformer.family import info, list_members
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.judging import check as check
from sequence_laws.verdict import LawBroken, LawResult

Law = Callable[[Member, Check, str, torch.dtype], None]
LAWS: dict[str, Law] = {
    "equation": laws.equation,
    "causality": laws.causality,
    "chunks": laws.chunks,
    "padding": laws.padding,
    "limits": laws.limits,
    "numbers": laws.numbers,
    "cost": machine.cost,
    "compiles": machine.compiles,
    "keeps": machine.keeps,
    "reproducible": machine.reproducible,
    "bidirectional": laws.bidirectional,
    "devices": devices.devices,
    "traffic": traffic.traffic,
}
OF_LAYERS = ("chunks", "padding")
"""those that also try several layers, with any choice of the genes around them"""
FULL: dict[str, Law] = {
    "compiles-everywhere": machine.compiles_everywhere,
    "compiles-fully": machine.compiles_fully,
}
"""those that take minutes a member"""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
_NEEDS = {
    "causality": "causal",
    "chunks": "streaming",
    "padding": "padding",
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
    member: Member, law: str, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> LawResult:
    """One law for one member; never raises for a broken law."""
    reason = exemption(member, law)
    if reason is not None:
        return LawResult(member.name, law, "exempt", reason)
    check, start = Check(), time.perf_counter()
    torch.manual_seed(0)
    try:
        ({**LAWS, **FULL})[law](member, check, device, dtype)
    except FAILURES as error:  # a crash inside a law is a broken law, and is shown as one
        detail = str(error) if isinstance(error, LawBroken) else describe(error)
        return LawResult(member.name, law, "failed", detail, time.perf_counter() - start)
    if not check.count:
        return LawResult(member.name, law, "exempt", "it states nothing that could be checked")
    return LawResult(member.name, law, "held", check.summary(), time.perf_counter() - start)


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
        device: where tensors live; "auto" is an accelerator if there is one. dtype: of laws 1 to
            5; bounds follow from it.
        full: also capture every case of every member, and run the real compiler on it (minutes).
    """
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    known = {**LAWS, **FULL}
    for law in laws:
        if law == "streaming":
            raise UnknownNameError("the law of models called 'streaming' is 'chunks' of members")
        if law not in known:
            raise unknown("law", law, known)
    members = [info(name) for name in names] or list_members()
    chosen, place = list(laws) or [*LAWS, *(FULL if full else ())], pick_device(device)
    if DTYPES[dtype] is torch.float64 and widest(place) is not torch.float64:
        raise ConfigError(
            f"device '{device}' has no float64, in which laws are checked unless told: give "
            "precision float32"
        )
    return (check_law(m, law, str(place), DTYPES[dtype]) for m in members for law in chosen)
