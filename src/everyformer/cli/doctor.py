"""`everyformer doctor`: what is installed, and what this machine can do."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import verb
from everyformer.core.config import Options

EXTRAS = {
    "images": ("pillow", "scikit-learn"),
    "text": ("tokenizers", "sacrebleu"),
    "data": ("datasets",),
    "hf": ("transformers", "sentencepiece"),
    "log": ("tensorboard",),
    "ray": ("ray",),
    "peers": ("aft-pytorch", "g-mlp-pytorch", "x-transformers"),
}
CORE = ("torch", "einops", "numpy", "safetensors", "tqdm", "tyro", "matplotlib", "filelock")


@dataclass(frozen=True)
class DoctorOptions(Options):
    json: bool = False
    """machine output"""


@verb(
    DoctorOptions,
    about="What is installed and what this machine can do.",
    examples=("everyformer doctor", "everyformer doctor --json"),
)
def run(options: DoctorOptions) -> int:
    """Print versions, devices and extras."""
    found = examine()
    if options.json:
        emit(found)
        return 0
    for name, value in found["machine"].items():
        print(f"{name:<12}{value}")
    rows = [(name, held or "missing", why) for name, held, why in found["packages"]]
    print("\n" + table(("package", "version", "for"), rows))
    return 0 if all(held for _, held, why in found["packages"] if why == "core") else 1


def examine() -> dict:
    """Machine facts, and (package, version or None, core or extra) for each package."""
    import torch

    from everyformer import __version__

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
        },
        "packages": packages,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
