"""Surroundings of a run or an experiment: versions, machine and revision."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from everyformer.core.devices import accelerator_name


def environment() -> dict[str, Any]:
    """Versions, device, threads, platform, and the git revision of the current folder, if any."""
    packages = ("everyformer", "torch", "numpy", "safetensors")
    revision = _git("rev-parse", "HEAD")
    changed = revision and _git("status", "--porcelain", "--untracked-files=no")
    return {
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in packages},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerator": accelerator_name(),
        "folder": os.getcwd(),
        "git_revision": revision,
        "git_changes": bool(changed),
    }


def version_of(package: str) -> str | None:
    """The installed version of a package; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
