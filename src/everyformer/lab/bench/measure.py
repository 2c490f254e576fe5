"""Measurements of points, inside a process of their own."""

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from everyformer.core.errors import EveryformerError, PluginError
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.family import info
from everyformer.genes.config import ModelConfig
from everyformer.lab.bench.limits import account, least_seconds
from everyformer.lab.bench.peers import build_peer
from everyformer.lab.bench.points import Point, Setting
from everyformer.lab.bench.timing import STEADY, Call, Times, summary, timed
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_mixers, layer_in_words
from everyformer.system.process import keep_freed_memory, return_freed_memory
from everyformer.training.result import peak_rss
from sequence_laws.flops import count_flops
from sequence_laws.foreign import FAILURES, describe
from sequence_laws.memory import is_out_of_memory, out_of_memory
from sequence_laws.operations import Counter

T = TypeVar("T")
Measure = Callable[[Sequence[Point], Setting], list[Point]]
Own = Mapping[str, dict[str, Any]]
"""mixer options by member"""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DECODE_STEPS, DECODE_WARM_UP, DECODE_CHUNK = 30, 5, 4096
PEAKS, SMALL_PEAK = 5, 2**20
"""calls whose peaks are measured, and bytes by which any two may differ"""


def fill(send: Any, measured: Measure, points: Sequence[Point], setting: Setting) -> None:
    """Measure ``points`` with as many threads as were requested, and send them back."""
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    with contextlib.suppress(KeyboardInterrupt):
        send.send(measured(points, setting))
        send.close()


def one_by_one(points: Sequence[Point], setting: Setting, options: Own) -> list[Point]:
    """``points`` of whole calls and of tokens, measured; every way to fail is a point too."""
    works = {"pass": _pass, "decode": _decode}
    results = []
    for point in points:
        work = partial(works[point.work], point, setting, options.get(point.member, {}))
        results.append(outcome(point, work))
    return results


def in_turn(
    points: Sequence[Point], setting: Setting, make: Callable[[Point], Call]
) -> list[Point]:
    """``points`` with the times of the calls that ``make`` gives for each, and their peaks.

    A call is called once before it is measured.
    """
    # before any thread has a heap of its own
    return_freed_memory()
    calls: dict[Point, Call] = {}
    result: dict[Point, Point] = {}
    for point in points:
        initial = outcome(point, lambda p=point: _first(make(p)))  # type: ignore[misc]
        if isinstance(initial, Point):
            result[point] = initial
        else:
            calls[point] = initial
    peaks = {point: peaks_of(call, setting.device) for point, call in calls.items()}
    keep_freed_memory()
    for point, times in timed(calls, setting.seconds, setting.device).items():
        result[point] = with_peaks(with_times(point, times), peaks[point])
    return [result[point] for point in points]


def _first(call: Call) -> Call:
    """``call``, called once: what is computed for the first alone is not counted."""
    call()
    return call


def layers_in_turn(points: Sequence[Point], setting: Setting, options: Own) -> list[Point]:
    """``points`` of one layer each at one length, with their times and peaks.

    Members whose layers are the same function are measured once, so that they do not differ.
    """

    def of(point: Point) -> dict[str, Any]:
        return options.get(point.member, {})

    def words_of(point: Point) -> str:
        return f"{point.source}: {layer_in_words(layer_config(point, setting, of(point)))}"

    words = {point: outcome(point, partial(words_of, point)) for point in points}
    first: dict[str, Point] = {}
    for point, text in words.items():
        if isinstance(text, str):
            first.setdefault(text, point)
    distinct = list(first.values())
    timed = in_turn(distinct, setting, lambda point: pass_of(point, setting, of(point)))
    known = dict(zip(first, timed, strict=True))
    return [
        dataclasses.replace(known[text], member=point.member) if isinstance(text, str) else text
        for point, text in words.items()
    ]


def outcome(point: Point, work: Callable[[], T]) -> T | Point:
    """The result of ``work``; where it fails, ``point`` with the reason."""
    try:
        return work()
    except (MemoryError, torch.OutOfMemoryError) as error:
        return dataclasses.replace(point, status="out of memory", detail=str(error))
    except (EveryformerError, ImportError) as error:
        ours = not isinstance(error, PluginError)
        return dataclasses.replace(
            point, status="refused" if ours else "failed", detail=describe(error)
        )
    except FAILURES as error:  # a peer may fail in any way; the others go on
        if is_out_of_memory(error):
            what = str(out_of_memory(f"{point.member} at {point.length} tokens", error))
            return dataclasses.replace(point, status="out of memory", detail=what)
        return dataclasses.replace(point, status="failed", detail=describe(error))


def _pass(point: Point, setting: Setting, options: dict[str, Any]) -> Point:
    calls: list[Call] = []

    def make(point: Point) -> Call:
        calls.append(pass_of(point, setting, options))
        return calls[-1]

    [result] = in_turn([point], setting, make)
    counted = result.status == "ok" and point.source == "everyformer"
    return dataclasses.replace(result, flops=count_flops(calls[0]) if counted else None)


def _decode(point: Point, setting: Setting, options: dict[str, Any]) -> Point:
    steps = DECODE_WARM_UP + DECODE_STEPS
    longest = dataclasses.replace(point, length=point.length + steps)
    mixer = _build(longest, setting, options)
    assert isinstance(mixer, Mixer)
    mixer.eval()
    keep_freed_memory()
    size = (setting.batch, point.length + steps, setting.width)
    x = torch.randn(size, device=setting.device, dtype=DTYPES[setting.precision])
    with torch.inference_mode():
        before: Any = mixer.init_state(setting.batch)
        for start in range(0, point.length, DECODE_CHUNK):
            before = mixer(
                x[:, start : min(start + DECODE_CHUNK, point.length)], state=before
            ).state
        state, place = before, point.length

        def token() -> None:
            nonlocal state, place
            if place == longest.length:
                state, place = before, point.length
            state = mixer(x[:, place : place + 1], state=state).state
            place += 1

        for _ in range(DECODE_WARM_UP):
            token()
        [times] = timed({point: token}, setting.seconds, setting.device).values()
        state = before
        for place in range(point.length, longest.length - 1):
            state = mixer(x[:, place : place + 1], state=state).state
        last = partial(mixer, x[:, -1:], state=state)
        with Counter() as counter:
            state = last().state
    assert state is not None
    limit = least_seconds(counter, setting.device)
    result = with_times(point, times)
    return dataclasses.replace(
        result,
        detail=account(last, result.seconds or 0.0, device=setting.device),
        state_bytes=state.nbytes,
        operations=counter.operations,
        bytes_read=counter.read,
        limit=limit,
    )


def with_times(point: Point, times: Times) -> Point:
    """``point`` with the seconds of several calls."""
    median, ends = summary(times.values)
    return dataclasses.replace(
        point,
        seconds=median,
        quartiles=(ends[0], ends[1]) if ends else None,
        samples=len(times.values),
        stable=times.steady,
    )


def with_peaks(point: Point, peaks: list[int]) -> Point:
    """``point`` with the bytes of several calls, if any are known."""
    if not peaks:
        return point
    spread, usual = (min(peaks), max(peaks)), round(statistics.median(peaks))
    even = spread[1] - spread[0] <= max(STEADY * usual, SMALL_PEAK)
    return dataclasses.replace(
        point, peak_bytes=usual, peak_range=spread, stable=point.stable and even
    )


def _build(point: Point, setting: Setting, options: dict[str, Any]) -> nn.Module:
    if point.source != "everyformer":
        built = build_peer(point, setting.width, setting.heads, _causal(point, setting))
    else:
        built = build_mixers(layer_config(point, setting, options))[0]
    return built.to(setting.device, DTYPES[setting.precision])


def layer_config(point: Point, setting: Setting, options: dict[str, Any]) -> ModelConfig:
    """The one layer of this library that a point is about."""
    sizes: dict[str, Any] = {"width": setting.width, "heads": setting.heads, "layers": 1}
    causal = _causal(point, setting)
    return configure_layers(point.member, causal, point.length, **sizes, **options)


def _causal(point: Point, setting: Setting) -> bool:
    """True if the future is hidden, where the member can do both."""
    member = info(point.member)
    causal = setting.causal if member.can("causal") else False
    return causal or not member.can("bidirectional")


def pass_of(point: Point, setting: Setting, options: dict[str, Any]) -> Callable[[], None]:
    """A whole call of a layer, built again, on drawn input."""
    module = _build(point, setting, options)
    size = (setting.batch, point.length, setting.width)
    x = torch.randn(size, device=setting.device, dtype=DTYPES[setting.precision])
    x.requires_grad_(setting.backward)
    return call_of(module, x, setting.backward)


def call_of(module: nn.Module, x: Tensor, backward: bool) -> Callable[[], None]:
    """One pass; gradients of weights and input are made and dropped."""

    def call() -> None:
        out = module(x)
        y = out.y if isinstance(out, MixerOutput) else out
        if backward:
            y.sum().backward()
            module.zero_grad(set_to_none=True)
            x.grad = None

    return call


def peaks_of(call: Callable[[], None], device: str) -> list[int]:
    """`peak_of` several calls, while nothing that is freed stays with the process; none where the
    system does not tell."""
    return_freed_memory()
    call()
    results = []
    for _ in range(PEAKS):
        return_freed_memory()
        results.append(peak_of(call, device))
    return [peak for peak in results if peak is not None]


def peak_of(call: Callable[[], None], device: str) -> int | None:
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
    after = peak_rss()
    return None if after is None or before_bytes is None else max(0, after - before_bytes)


def _reset_peak() -> int | None:
    """Let the process's peak start from what it holds now (Linux), and what that is."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        pass  # what it was at most so far stays
    return peak_rss()
