"""What this machine can do now, for `doctor`: its load, room and speed, and what follows."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from everyformer.system.machine import cores, load_averages
from everyformer.system.memory import free_memory, size

UNKNOWN = "unknown"
"""where the system does not tell"""
SIDE, LONGEST = 512, 0.2
"""of the matrices that are multiplied, and seconds that each kind may take"""
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def room() -> dict[str, str]:
    """Load, free memory and free disk, in words."""
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
    found = {}
    for name, kind in KINDS.items():
        one = torch.ones(SIDE, SIDE, dtype=kind, device=device)
        begin, best = time.perf_counter(), math.inf
        while time.perf_counter() - begin < LONGEST:
            start = time.perf_counter()
            # reading a number waits for the device
            float((one @ one)[0, 0])
            best = min(best, time.perf_counter() - start)
        found[name] = 2 * SIDE**3 / best / 1e9
    return found


def choices(device: torch.device, found: dict[str, float]) -> list[dict[str, Any]]:
    """What stands for options that nobody sets: (option, what it is here, why)."""
    quicker = found["bfloat16"] / found["float32"]
    threads = torch.get_num_threads()
    busy = _busy(threads)
    rows = (
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
            + (": try --precision bfloat16" if quicker > 1.2 else ""),
        ),
        ("--compile", "no", "as always; it pays from some minutes of training on"),
        (
            "--mixer.backend",
            "flex" if device.type == "cuda" else "blocked or dense",
            "of sparse members, by text and pattern; `everyformer doctor MEMBER` tells",
        ),
    )
    return [dict(zip(("option", "here", "since"), row, strict=True)) for row in rows]


def _busy(threads: int) -> str:
    """A remark on other work, where it and so many threads want more than the cores."""
    load = (load_averages() or (0.0,))[0]
    if load + threads <= cores() + 1:
        return ""
    return f"; other work takes {load:.1f}: fewer may be faster"
