"""`everyformer verify [NAMES]`: every law, on this machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import tyro

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import say, verb
from everyformer.core.config import Options
from everyformer.family import info, list_members

if TYPE_CHECKING:
    from everyformer.verification.result import LawResult


@dataclass(frozen=True)
class VerifyOptions(Options):
    """The words of `everyformer verify`."""

    members: tyro.conf.Positional[tuple[str, ...]] = ()
    """members to check (default: all)"""
    laws: tuple[str, ...] = ()
    """laws to check (default: all): equation, causality, chunks, padding, limits, numbers, cost,
    compiles, keeps, reproducible, bidirectional"""
    device: str = "cpu"
    """where tensors live: cpu, cuda ..."""
    precision: Literal["float64", "float32", "bfloat16"] = "float64"
    """dtype of the identities; error bounds follow from it"""
    full: bool = False
    """also capture every choice of options as one graph, and run the real compiler on every member
    (minutes)"""
    json: bool = False
    """machine output"""


@verb(
    VerifyOptions,
    about="Check every law of the members on this machine.",
    examples=("everyformer verify", "everyformer verify aft-local gmlp --precision float32"),
    default=VerifyOptions(),
    names=[member.name for member in list_members()],
)
def run(options: VerifyOptions) -> int:
    """Check the laws; exit code 1 if one is broken."""
    for name in options.members:
        info(name)
    from everyformer.verification.verify import verify

    where = {"device": options.device, "dtype": options.precision}
    results = []
    for result in verify(options.members, laws=options.laws, full=options.full, **where):
        results.append(result)
        say(f"{result.member:<12} {result.law:<13} {result.status:<7} {result.detail}")
    failed = [r for r in results if r.status == "failed"]
    if options.json:
        emit([dataclasses.asdict(r) for r in results])
    else:
        _print(results)
    return 1 if failed else 0


def _print(results: list[LawResult]) -> None:
    members = list(dict.fromkeys(r.member for r in results))
    laws = list(dict.fromkeys(r.law for r in results))
    signs = {"held": "ok", "exempt": "-", "failed": "FAIL"}
    marks = {(r.member, r.law): signs[r.status] for r in results}
    print(table(("member", *laws), [(m, *(marks[m, law] for law in laws)) for m in members]))
    for status, mark in (("exempt", "-"), ("failed", "FAILED")):
        for r in results:
            if r.status == status:
                print(f"{mark} {r.member}, {r.law}: {r.detail}")
    count = {status: sum(r.status == status for r in results) for status in signs}
    print(f"{count['held']} held, {count['failed']} failed, {count['exempt']} do not apply")
