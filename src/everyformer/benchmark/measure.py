"""What happens inside the process of one point."""

from __future__ import annotations

import dataclasses
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from everyformer.benchmark.peers import build_peer
from everyformer.benchmark.points import Point, Setting
from everyformer.core.allocator import keep_freed_memory
from everyformer.core.errors import EveryformerError
from everyformer.core.memory import is_out_of_memory, out_of_memory
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.engines.flops import count_flops
from everyformer.family import info
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_mixers
from everyformer.training.result import peak_rss

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DECODE_STEPS, DECODE_WARM_UP, DECODE_CHUNK = 30, 5, 4096


def fill(send: Any, point: Point, setting: Setting, options: dict[str, Any]) -> None:
    """Measure and send the point back; every way to fail is a point too."""
    try:
        if setting.threads is not None:
            torch.set_num_threads(setting.threads)
        result = {"pass": _pass, "decode": _decode}[point.work](point, setting, options)
    except (MemoryError, torch.OutOfMemoryError) as error:
        result = dataclasses.replace(point, status="out of memory", detail=str(error))
    except (EveryformerError, ImportError) as error:
        result = dataclasses.replace(point, status="refused", detail=str(error))
    except KeyboardInterrupt:
        return
    except Exception as error:  # a peer may fail in any way; the others go on
        short = f"{type(error).__name__}: {error}".splitlines()[0]
        result = dataclasses.replace(point, status="failed", detail=short)
        if is_out_of_memory(error):
            what = str(out_of_memory(f"{point.member} at {point.length} tokens", error))
            result = dataclasses.replace(point, status="out of memory", detail=what)
    send.send(result)
    send.close()


def _pass(point: Point, setting: Setting, options: dict[str, Any]) -> Point:
    module = _build(point, setting, options)
    size = (setting.batch, point.length, setting.width)
    x = torch.randn(size, device=setting.device, dtype=DTYPES[setting.precision])
    x.requires_grad_(setting.backward)
    call = _call(module, x, setting.backward)
    call()
    peak = _peak(call, setting.device)
    keep_freed_memory()
    call()
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    timed = timer.blocked_autorange(min_run_time=setting.seconds)
    times = torch.tensor(timed.times, dtype=torch.float64)
    low, high = (float(times.quantile(q)) for q in (0.25, 0.75))
    return dataclasses.replace(
        point,
        seconds=timed.median,
        quartiles=(low, high),
        peak_bytes=peak,
        flops=count_flops(call) if point.source == "everyformer" else None,
    )


def _decode(point: Point, setting: Setting, options: dict[str, Any]) -> Point:
    steps = DECODE_WARM_UP + DECODE_STEPS
    longest = dataclasses.replace(point, length=point.length + steps)
    mixer = _build(longest, setting, options)
    assert isinstance(mixer, Mixer)
    mixer.eval()
    keep_freed_memory()
    size = (setting.batch, point.length + steps, setting.width)
    x = torch.randn(size, device=setting.device, dtype=DTYPES[setting.precision])
    times = []
    with torch.inference_mode():
        state: Any = mixer.init_state(setting.batch)
        for start in range(0, point.length, DECODE_CHUNK):
            state = mixer(x[:, start : min(start + DECODE_CHUNK, point.length)], state=state).state
        for step in range(point.length, point.length + steps):
            start_time = time.perf_counter()
            state = mixer(x[:, step : step + 1], state=state).state
            _synchronise(setting.device)
            times.append(time.perf_counter() - start_time)
    kept = sorted(times[DECODE_WARM_UP:])
    low, _, high = statistics.quantiles(kept, n=4)
    return dataclasses.replace(
        point, seconds=statistics.median(kept), quartiles=(low, high), state_bytes=state.nbytes
    )


def _build(point: Point, setting: Setting, options: dict[str, Any]) -> nn.Module:
    member = info(point.member)
    causal = setting.causal if member.can("causal") else False
    causal = causal or not member.can("bidirectional")
    if point.source != "everyformer":
        built = build_peer(point, setting.width, setting.heads, causal)
    else:
        sizes: dict[str, Any] = {"width": setting.width, "heads": setting.heads, "layers": 1}
        config = configure_layers(member.name, causal, point.length, **sizes, **options)
        built = build_mixers(config)[0]
    return built.to(setting.device, DTYPES[setting.precision])


def _call(module: nn.Module, x: Tensor, backward: bool) -> Callable[[], None]:
    """One pass; gradients of weights and input are made and dropped."""

    def call() -> None:
        out = module(x)
        y = out.y if isinstance(out, MixerOutput) else out
        if backward:
            y.sum().backward()
            module.zero_grad(set_to_none=True)
            x.grad = None

    return call


def _peak(call: Callable[[], None], device: str) -> int | None:
    """Bytes by which one call raises the memory in use."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before_bytes = _reset_peak()
    call()
    after = memory_peak()
    return None if after is None or before_bytes is None else max(0, after - before_bytes)


def _reset_peak() -> int | None:
    """Let the process's peak start from what it holds now (Linux), and what that is."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return peak_rss()
    return memory_peak()


def memory_peak() -> int | None:
    """Largest resident memory of this process in bytes.

    On Linux not as getrusage has it, whose peak is inherited from the process that started this.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return peak_rss()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return 1024 * int(found[1]) if found else peak_rss()


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
