"""`everyformer doctor`: what is installed, what this machine can do, how it computes a member."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import tyro

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import verb
from everyformer.core.bounds import Count
from everyformer.core.config import Options

EXTRAS = {
    "images": ("pillow", "scikit-learn"),
    "text": ("tokenizers", "sacrebleu"),
    "data": ("datasets", "pyarrow"),
    "hf": ("transformers", "accelerate", "sentencepiece"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "knn": ("faiss-cpu",),
    "rl": ("gymnasium", "minari", "h5py", "pygame"),
    "log": ("tensorboard",),
    "ray": ("ray",),
    "peers": (
        *("aft-pytorch", "fla-core", "g-mlp-pytorch", "linformer", "local-attention"),
        *("performer-pytorch", "reformer-pytorch", "routing-transformer"),
        *("sinkhorn-transformer", "x-transformers"),
    ),
}
CORE = ("torch", "numpy", "safetensors", "tqdm", "tyro", "matplotlib", "filelock")


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
    found = examine()
    if options.json:
        emit(found)
        return 0
    for name, value in found["machine"].items():
        print(f"{name:<12}{value}")
    print()
    for kind, speed in found["speed"].items():
        print(f"{kind:<12}{speed:.4g} GFLOP/s in products of matrices")
    choices = [tuple(row.values()) for row in found["choices"]]
    print("\n" + table(("unset", "is here", "since"), choices))
    rows = [(name, known or "missing", why) for name, known, why in found["packages"]]
    print("\n" + table(("package", "version", "for"), rows))
    return 0 if all(known for _, known, why in found["packages"] if why == "core") else 1


def _ways(member: str, length: int, machine: bool) -> int:
    from everyformer.verification.ways import ways_of

    calls = ways_of(member, length)
    if machine:
        emit({call: [way._asdict() for way in ways] for call, ways in calls.items()})
        return 0
    rows = [(call, *way) for call, ways in calls.items() for way in ways]
    print(f"{member}, a text of {length} tokens\n")
    print(table(("call", "engine", "way", "since"), rows))
    return 0


def examine() -> dict:
    """Machine facts, speeds, what stands for unset options, and (package, version or None, core or
    extra) for each package."""
    import torch

    from everyformer import __version__
    from everyformer.cli.machine import choices, room, speeds
    from everyformer.training.distributed import pick_device

    device = pick_device("auto")
    speed = speeds(device)
    cuda = torch.cuda.is_available()
    packages = [(name, _version(name), "core") for name in CORE]
    for extra, names in EXTRAS.items():
        packages += [(name, _version(name), f"everyformer[{extra}]") for name in names]
    return {
        "machine": {
            "everyformer": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(0) if cuda else "cpu",
            "bfloat16": "yes" if not cuda or torch.cuda.is_bf16_supported() else "no",
            **room(),
        },
        "speed": speed,
        "choices": choices(device, speed),
        "packages": packages,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
