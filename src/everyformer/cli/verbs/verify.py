"""`everyformer verify [NAMES]`: every law, on this machine, of members and of any other models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import tyro

from everyformer.cli.parsing import say, verb
from everyformer.core.bounds import Count, Positive
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.family import info, list_members
from everyformer.genes import GENES
from everyformer.system.console import emit
from everyformer.system.files import expanded
from sequence_laws.command import verdicts
from sequence_laws.formats import as_text, line
from sequence_laws.names import is_group, is_target
from sequence_laws.verdict import BROKEN, LawResult

OF_ANYONE = ("causal", "vocabulary", "width", "claims")
"""options that describe a model that is no member"""


@dataclass(frozen=True)
class VerifyOptions(Options):
    """The words of `everyformer verify`."""

    members: tyro.conf.Positional[tuple[str, ...]] = ()
    """members to check (default: all), or any other models: file.py:factory, module:factory,
    hf:NAME, FILE.onnx, FILE.pt2; hf:all, hf:causal and hf:encoders are all that transformers has"""
    position: str | None = None
    """a position to check, alone or with members: the laws of attention with it"""
    laws: tuple[str, ...] = ()
    """laws to check (default: all): causality, streaming, padding, packing, numbers, gradients,
    determinism, saving, compiles, cost; of members also equation, limits, bidirectional,
    conditions, devices, traffic; of other models also batch, lengths, order"""
    device: str = "cpu"
    """of members: where tensors live: cpu, cuda ..., auto"""
    precision: Literal["float64", "float32", "bfloat16"] = "float64"
    """of members: dtype of the identities; error bounds follow from it"""
    full: bool = False
    """also capture every choice of options as one graph, and run the real compiler on every member
    (minutes)"""
    causal: bool | None = None
    """of another model: it claims that outputs depend on earlier inputs alone (default: as
    its kind does; a module of your own does, unless it pools)"""
    vocabulary: Count | None = None
    """of another model: it reads token ids below this (default: found by trying)"""
    width: Count | None = None
    """of another model: it reads features of so many channels (default: found by trying)"""
    claims: str | None = None
    """of another model: cost that it claims, by length: constant, linear, quadratic, or an
    exponent"""
    out: str = "runs/laws"
    """of hf:all: folder of the verdicts, with which it resumes"""
    seconds: Positive = 300.0
    """of hf:all: after so many a model is given up"""
    jobs: Count = 2
    """of hf:all: processes at a time"""
    json: bool = False
    """machine output"""
    junit: str | None = None
    """file for the verdicts as JUnit XML, which continuous integration shows as tests"""


@verb(
    VerifyOptions,
    about="Check every law, of members or of any other models, on this machine.",
    examples=(
        "everyformer verify aft-local gmlp --precision float32",
        "everyformer verify mymodel.py:Net hf:gpt2",
    ),
    default=VerifyOptions(),
    names=[member.name for member in list_members()],
)
def run(options: VerifyOptions) -> int:
    """Check the laws; exit code 1 if one is broken."""
    results = []
    for result in _verdicts(options):
        results.append(result)
        say(line(result))
    if options.junit is not None:
        from sequence_laws.junit import write_junit

        write_junit(results, expanded(options.junit))
    if options.json:
        emit([dataclasses.asdict(r) for r in results])
    else:
        print(as_text(results))
    return 1 if any(r.status in BROKEN for r in results) else 0


def _verdicts(options: VerifyOptions) -> Iterator[LawResult]:
    """Members first, by their own laws; then other models."""
    foreign = [name for name in options.members if is_target(name)]
    members = [name for name in options.members if name not in foreign]
    if options.position is not None:
        members.append(GENES["position"].alternatives.get(options.position).name)
    for name in members:
        info(name)
    if foreign and (options.device, options.precision) != ("cpu", "float64"):
        raise ConfigError(
            f"models that are no members ({foreign[0]}) are checked on the CPU, in dtypes of each "
            "law's own: leave out --device and --precision"
        )
    described = any(getattr(options, name) is not None for name in OF_ANYONE)
    if described and all(map(is_group, foreign)):
        raise ConfigError(
            "--causal, --vocabulary, --width and --claims describe a model that is no member, as "
            f"file.py:factory, not of {', '.join(options.members) or 'members'}: leave them out"
        )
    if foreign:
        from sequence_laws.judging import known_laws

        known_laws(options.laws)  # before those of members are tried
    if members or not foreign:
        from everyformer.checks.verify import verify

        where = {"device": options.device, "dtype": options.precision}
        yield from verify(members, laws=options.laws, full=options.full, **where)
    if foreign:
        given = {name: getattr(options, name) for name in (*OF_ANYONE, "out", "seconds", "jobs")}
        yield from verdicts(foreign, options.laws, **given)
