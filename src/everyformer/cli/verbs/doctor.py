"""`everyformer doctor`: what is installed, what this machine can do, how it computes a member."""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from everyformer.cli.parsing import verb
from everyformer.core.bounds import Count
from everyformer.core.config import Options
from everyformer.system.console import emit, table
from everyformer.system.machine import cores, load_averages

if TYPE_CHECKING:
    import torch

UNKNOWN = "unknown"
"""where the system does not tell"""
SIDE, LONGEST = 512, 0.2
"""of the matrices that are multiplied, and seconds that each kind may take"""

COMPILING = {
    True: "on a CPU steps gained nothing where they were measured",
    False: "it pays from some minutes of training on",
}
EXTRAS: dict[str, str] = {
    "images": "pictures as data, and the built-in digits",
    "text": "BPE tokenizers, BLEU and chrF",
    "data": "parquet files and data sets of the hub",
    "hf": "checkpoints of transformers, in and out",
    "export": "ONNX files",
    "knn": "faster search in large datastores",
    "rl": "recorded episodes of Minari",
    "log": "curves in TensorBoard",
    "llama": "llama.cpp, to compare generation with",
    "ray": "comparisons spread over a cluster",
    "fast": "kernels of our own on NVIDIA devices, under Linux",
    "peers": "third-party implementations, to compare with",
    "docs": "the site of the documentation",
    "ship": "the wheel and the source archive",
    "dev": "the tests of the library itself",
}
"""extra -> what it is for"""


@dataclass(frozen=True)
class DoctorOptions(Options):
    """The words of `everyformer doctor`."""

    member: tyro.conf.Positional[str | None] = None
    """show how this member's mixer is computed here, instead of what is installed"""
    length: Count = 2048
    """tokens of the text that a member is shown on"""
    json: bool = False
    """machine output"""


@verb(
    DoctorOptions,
    about="What is installed and what this machine can do.",
    examples=("everyformer doctor", "everyformer doctor longformer --length 4096"),
)
def run(options: DoctorOptions) -> int:
    """Print versions, devices and extras, or the ways a member's calls take."""
    if options.member is not None:
        return _ways(options.member, options.length, options.json)
    report = examine()
    if options.json:
        emit(report)
        return 0
    for name, value in report["machine"].items():
        print(f"{name:<12}{value}")
    print()
    for kind, speed in report["speed"].items():
        print(f"{kind:<12}{speed:.4g} GFLOP/s in products of matrices")
    choices = [tuple(row.values()) for row in report["choices"]]
    print("\n" + table(("unset", "is here", "since"), choices))
    rows = [(name, known or "missing", why) for name, known, why in report["packages"]]
    print("\n" + table(("package", "version", "for"), rows))
    for name, version, tried in report["untried"]:
        print(f"\n{name} {version} is newer than what was tried: pip install '{name}{tried}'")
    extras = [tuple(row.values()) for row in report["extras"]]
    print("\n" + table(("extra", "for", "is here", "get it by"), extras))
    return 0 if all(known for _, known, why in report["packages"] if why == "core") else 1


def _ways(member: str, length: int, machine: bool) -> int:
    from everyformer.checks.ways import ways_of

    calls = ways_of(member, length)
    if machine:
        emit({call: [way._asdict() for way in ways] for call, ways in calls.items()})
        return 0
    rows = [(call, *way) for call, ways in calls.items() for way in ways]
    print(f"{member}, a text of {length} tokens\n")
    print(table(("call", "engine", "way", "since"), rows))
    return 0


def examine() -> dict:
    """Machine facts, speeds, what stands for unset options, (package, version or None, core or
    extra) for each package, what of them nobody tried, and what is here of each extra."""
    import torch

    from everyformer import __version__
    from everyformer.core.devices import accelerator_name, pick_device
    from everyformer.training.surroundings import version_of

    device = pick_device("auto")
    speed = speeds(device)
    packages = [(name, version_of(name), of) for name, of in _required()]
    cuda = torch.cuda.is_available()
    return {
        "machine": {
            "everyformer": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": accelerator_name() or "cpu",
            "bfloat16": "yes" if not cuda or torch.cuda.is_bf16_supported() else "no",
            **room(),
        },
        "speed": speed,
        "choices": choices(device, speed),
        "packages": [one for one in packages if one[2] != _extra("dev")],
        "untried": list(_untried({name: known for name, known, _ in packages if known})),
        "extras": [_of_extra(name, packages) for name in EXTRAS],
    }


def _extra(name: str) -> str:
    return f"everyformer[{name}]"


def _of_extra(name: str, packages: Sequence[tuple[str, str | None, str]]) -> dict[str, str]:
    """The row of an extra: its use, whether its packages are here, and how they come."""
    lacking = [package for package, known, of in packages if of == _extra(name) and known is None]
    here = f"no: {', '.join(lacking)}" if lacking else "yes"
    command = f"pip install '{_extra(name)}'" if lacking else "-"
    return {"extra": name, "for": EXTRAS[name], "here": here, "command": command}


def _required() -> Iterator[tuple[str, str]]:
    """Packages that the library needs, and that its extras do, each with what wants it."""
    for line in requires("everyformer") or ():
        name, _, condition = line.partition(";")
        extra = re.search(r"extra == .(\w+).", condition)
        of = "core" if extra is None else _extra(extra[1])
        yield re.split(r"[^\w.-]", name)[0], of


def _untried(versions: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """(package, version, range) of each that is beyond the ceiling in our own requirements."""
    for line in dict.fromkeys(line.partition(";")[0] for line in requires("everyformer") or ()):
        name = re.split(r"[^\w.-]", line)[0]
        for kind, bound in re.findall(r"(<|==)([\d.]+)", line):
            here, last = (
                [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
                for version in (versions.get(name, "0"), bound)
            )
            if here > last or (here == last and kind == "<"):
                yield name, versions[name], kind + bound


def room() -> dict[str, str]:
    """Load, free memory and free disk, in words."""
    from sequence_laws.memory import free_memory, size

    averages = load_averages()
    load = UNKNOWN if averages is None else ", ".join(f"{n:.1f}" for n in averages)
    free = free_memory()
    try:
        disk = size(shutil.disk_usage(Path.cwd()).free)
    except OSError:
        disk = UNKNOWN
    return {
        "load": f"{load} (means over 1, 5 and 15 minutes; {cores()} cores)",
        "free memory": size(free) if math.isfinite(free) else UNKNOWN,
        "free disk": f"{disk} in this folder",
    }


def speeds(device: torch.device) -> dict[str, float]:
    """GFLOP/s of products of matrices in each kind of numbers, the best of some."""
    import torch

    rates = {}
    for name in ("float32", "bfloat16"):
        one = torch.ones(SIDE, SIDE, dtype=getattr(torch, name), device=device)
        begin, best = time.perf_counter(), math.inf
        while time.perf_counter() - begin < LONGEST:
            start = time.perf_counter()
            # reading a number waits for the device
            float((one @ one)[0, 0])
            best = min(best, time.perf_counter() - start)
        rates[name] = 2 * SIDE**3 / best / 1e9
    return rates


def choices(device: torch.device, rates: dict[str, float]) -> list[dict[str, Any]]:
    """Values of options that nobody sets: (option, value here, reason)."""
    import torch

    quicker = rates["bfloat16"] / rates["float32"]
    threads = torch.get_num_threads()
    busy = _busy(threads)
    rows = [
        (
            "--device",
            str(device),
            "there is an accelerator" if device.type != "cpu" else "no other",
        ),
        ("--threads", str(threads), f"torch's own choice, of {cores()} cores{busy}"),
        (
            "--precision",
            "float32",
            f"as always; bfloat16 products are {quicker:.2g}x as fast here"
            + (": try --precision auto" if quicker > 1.2 else ""),
        ),
        ("--compile", "no", f"as always; {COMPILING[device.type == 'cpu']}"),
        (
            "--mixer.backend",
            "flex" if device.type == "cuda" else "blocked or dense",
            "of sparse members, by text and pattern; `everyformer doctor MEMBER` tells",
        ),
    ]
    if device.type == "cuda":
        rows.append(_kernels())
    return [dict(zip(("option", "here", "since"), row, strict=True)) for row in rows]


def _kernels() -> tuple[str, str, str]:
    """The row of who computes the engines' operators on a CUDA device."""
    from everyformer.engines.cuda import triton_found

    if triton_found():
        return "kernels", "Triton's", "it is installed; float64 is torch's"
    return "kernels", "torch's", f"no Triton is here: pip install '{_extra('fast')}'"


def _busy(threads: int) -> str:
    """A remark on other work, where it and so many threads want more than the cores."""
    load = (load_averages() or (0.0,))[0]
    if load + threads <= cores() + 1:
        return ""
    return f"; other work takes {load:.1f}: fewer may be faster"
