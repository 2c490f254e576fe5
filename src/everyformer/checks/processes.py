"""Laws of many members at once, each member in a process of its own."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from sequence_laws.children import each
from sequence_laws.verdict import LawResult, ended_with, read_verdicts, write_verdicts

IMPORTS = ("everyformer.checks.verify", "torch._dynamo")
Laws = Sequence[tuple[str, Sequence[str]]]
"""dtypes, with the laws that are tried in each"""


def verify_in_processes(
    names: Sequence[str], laws: Laws, device: str, folder: Path, *, jobs: int, seconds: float
) -> Iterator[list[LawResult]]:
    """The verdicts of each member as its process ends; in float64 laws have their names alone.

    Args:
        folder: for a file of each member. jobs: processes at a time. seconds: after which one is
            ended.
    """
    paths = [folder / f"{name}.json" for name in names]
    for path in paths:
        path.unlink(missing_ok=True)
    calls = [
        (name, tuple(laws), device, str(path)) for name, path in zip(names, paths, strict=True)
    ]
    for number, code, took in each(judge, calls, imports=IMPORTS, jobs=jobs, seconds=seconds):
        if paths[number].exists():
            yield read_verdicts(paths[number])
        else:
            why = ended_with(code, seconds)
            yield [LawResult(names[number], "process", "failed", why, took)]


def judge(name: str, laws: Laws, device: str, path: str) -> int:
    """Write the verdicts of one member; its process does nothing else."""
    import torch
    from torch._inductor import config

    from everyformer.checks.verify import verify

    torch.set_num_threads(1)
    config.compile_threads = 1
    results = []
    for dtype, chosen in laws:
        for result in verify([name], laws=chosen, device=device, dtype=dtype):
            law = result.law if dtype == "float64" else f"{result.law} in {dtype}"
            results.append(dataclasses.replace(result, law=law))
    write_verdicts(Path(path), results)
    return 0
