"""All classes of transformers, each in a process of its own: `sequence-laws hf:all`.

What is known of a class lies in one file of a folder, so that a sweep goes on where it ended; all
of it in words is ``table.md`` next to them. A class that ends its process, or takes too long, has
that for a verdict.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sequence_laws.adapters.transformers import quiet_library
from sequence_laws.children import each
from sequence_laws.errors import LawsError
from sequence_laws.verdict import (
    BROKEN,
    SIGNS,
    LawResult,
    ended_with,
    read_verdicts,
    write_verdicts,
    write_whole,
)

IMPORTS = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.export",
    "transformers.conversion_mapping",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
    "torch.distributed.tensor",
    "torch.utils.flop_counter",
    "sequence_laws.targets",
    "sequence_laws.judging",
    "sequence_laws.first_graph",
)
"""what all processes share, read once"""
BUILD = "build"
"""stands for a law where no model could be made"""


MARKS = {"failed": "**no**", "failed_by_default": "**call**"}


def classes(group: str) -> list[str]:
    """``hf:`` and the class, of all that write text, that read it both ways, or of both."""
    quiet_library("a sweep over transformers")
    from transformers.models.auto import modeling_auto as auto

    writing = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    reading = {
        **auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
        **auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    }
    chosen: list[Any] = [] if group == "hf:encoders" else [*writing.values()]
    if group != "hf:causal":
        chosen += reading.values()
    names = [name[0] if isinstance(name, tuple) else name for name in chosen]
    return [f"hf:{name}" for name in dict.fromkeys(names)]


def sweep(
    names: Sequence[str], folder: Path, laws: Sequence[str], *, seconds: float, jobs: int
) -> Iterator[LawResult]:
    """The verdicts of all, those that ``folder`` has first, then each as its process ends.

    Args:
        seconds: after which a model's process is ended. jobs: processes at a time.
    """
    waiting = []
    for name in names:
        path = folder / f"{name.partition(':')[2]}.json"
        if path.exists():
            yield from read_verdicts(path)
        else:
            waiting.append((name, path))
    calls = [(name, str(path), tuple(laws)) for name, path in waiting]
    for number, code, took in each(judge_one, calls, imports=IMPORTS, jobs=jobs, seconds=seconds):
        name, path = waiting[number]
        if code is None or not path.exists():
            result = LawResult(
                name.partition(":")[2], BUILD, "failed", ended_with(code, seconds), took
            )
            write_verdicts(path, [result])
        yield from read_verdicts(path)
    write_whole(folder / "table.md", table(folder))


def judge_one(name: str, path: str, laws: Sequence[str]) -> int:
    """Write the verdicts of one model; its process does nothing else."""
    from sequence_laws.judging import judge
    from sequence_laws.targets import target

    gc.freeze()  # what was imported lives as long as this process: no need to look through it
    began = time.monotonic()
    try:
        results = list(judge(target(name), laws))
    except LawsError as error:
        took = time.monotonic() - began
        results = [LawResult(name.partition(":")[2], BUILD, "undecided", str(error), took)]
    write_verdicts(Path(path), results)
    return 0


def table(folder: Path) -> str:
    """All verdicts of a folder in Markdown: a row for each class, then what is broken, with the
    program that shows it, and what could not be made."""
    import torch
    import transformers

    read_all = [read_verdicts(path) for path in sorted(folder.glob("*.json"))]
    results = [one for verdicts in read_all for one in verdicts if one.law != BUILD]
    laws = list(dict.fromkeys(one.law for one in results))
    lines = [
        f"torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}: "
        f"{len(read_all)} classes, {len({one.member for one in results})} of them made small.",
        "ok: held; **no**: broken; **call**: as called by default; -: does not apply; ?: not "
        "judged; *: a finding that is neither right nor wrong.",
        "",
        f"| class | {' | '.join(laws)} |",
        f"|---|{'---|' * len(laws)}",
    ]
    for verdicts in read_all:
        signs = {one.law: MARKS.get(one.status, SIGNS[one.status]) for one in verdicts}
        if BUILD not in signs:
            row = " | ".join(signs.get(law, "") for law in laws)
            lines.append(f"| {verdicts[0].member} | {row} |")
    lines += ["", "## Broken"]
    for one in results:
        if one.status in BROKEN:
            lines += ["", f"### {one.member}, {one.law}", "", _plain(one.detail)]
            if one.reproduction:
                lines += ["", "```python", one.reproduction, "```"]
    lines += ["", "## Not made", ""]
    every = [one for verdicts in read_all for one in verdicts]
    lines += [f"- {one.member}: {_plain(one.detail)}" for one in every if one.law == BUILD]
    return "\n".join(lines) + "\n"


def _plain(words: str) -> str:
    """Words of which Markdown makes nothing of its own."""
    return words.replace("<", "\\<").replace("_", "\\_").replace("*", "\\*")
