"""Points of a benchmark: numbers that follow from the work, and every way to fail is a result."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from everyformer.cli import main
from everyformer.cli.verbs.bench import exit_code, render
from everyformer.core.errors import ConfigError, GeneError, PluginError
from everyformer.family import list_members
from everyformer.lab.bench import bench as benches
from everyformer.lab.bench import limits, timing
from everyformer.lab.bench import measure as inside
from everyformer.lab.bench.bench import bench, bench_together, measure
from everyformer.lab.bench.limits import BEGIN, least_seconds
from everyformer.lab.bench.peers import PEERS, build_peer
from everyformer.lab.bench.points import Point, Setting, crossover
from helpers import overridden
from sequence_laws.operations import Counter

SMALL = Setting(width=16, heads=2, seconds=0.005, threads=1)


def here(asked: Point, options: dict[str, Any] | None = None, **setting: Any) -> Point:
    """The point, measured in this process."""
    own = {asked.member: options or {}}
    [point] = inside.one_by_one([asked], dataclasses.replace(SMALL, **setting), own)
    return point


@pytest.mark.parametrize(("length", "width"), [(8, 32), (24, 16)])
def test_operations_of_fused_attention_equal_a_count_by_hand(length: int, width: int) -> None:
    projections = 4 * 2 * length * width * width
    products = 2 * 2 * length * length * width
    forward = here(Point("attention", length), width=width, backward=False)
    assert forward.flops == projections + products
    # backwards: two products for each projection, and five of the size of q k^T inside attention
    both = here(Point("attention", length), width=width)
    assert both.flops == 3 * projections + products + 5 * products // 2


@pytest.mark.dear("a measurement is the same for all")
@pytest.mark.parametrize("member", [m.name for m in list_members()])
def test_every_member_is_measured(member: str) -> None:
    point = here(Point(member, 16))
    assert point.status == "ok", point.detail
    assert point.seconds is not None
    assert point.quartiles is not None
    assert 0 < point.quartiles[0] <= point.seconds <= point.quartiles[1]
    assert point.flops is not None
    assert point.flops > 0
    assert point.peak_bytes is None or point.peak_bytes >= 0


@pytest.mark.dear("a measurement is the same for all")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("member", [m.name for m in list_members(abilities=("streaming",))])
def test_a_streaming_member_is_timed_token_by_token(member: str, precision: str) -> None:
    point = here(Point(member, 9, work="decode"), precision=precision)
    assert point.status == "ok", point.detail
    assert point.seconds is not None
    assert point.state_bytes is not None
    assert point.state_bytes > 0
    assert point.operations is not None
    assert point.bytes_read is not None
    assert point.bytes_read > point.operations > 0
    assert point.limit is not None
    assert point.limit >= point.operations * BEGIN


@pytest.mark.parametrize(
    ("operations", "read", "least"), [(3, 10, 6e-6), (1, 10**9, None), (50, 0, 1e-4)]
)
def test_the_limit_is_the_larger_of_beginning_and_reading(
    operations: int, read: int, least: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "bandwidth", lambda device: 1e9)
    counter = Counter()
    counter.operations, counter.read = operations, read
    assert least_seconds(counter, "cpu") == pytest.approx(1.0 if least is None else least)
    point = Point("attention", 9, work="decode", seconds=3e-3, quartiles=(2e-3, 4e-3), limit=1e-3)
    assert "1.000 (3.0x)" in render([point])


def test_a_constant_state_is_constant_and_a_cache_is_not() -> None:
    size = {
        (member, context): here(Point(member, context, work="decode")).state_bytes
        for member in ("aft-simple", "attention")
        for context in (16, 64)
    }
    assert size["aft-simple", 16] == size["aft-simple", 64]
    assert (size["attention", 64] or 0) > (size["attention", 16] or 0)


@pytest.mark.parametrize(
    ("asked", "setting", "options", "status", "detail"),
    [
        (Point("vit", 16, work="decode"), {}, {}, "refused", "no exact streaming form"),
        (Point("attention", 16), {"width": 17}, {}, "refused", "heads that fit: 1, 17"),
        (Point("gmlp", 16), {}, {"windw": 3}, "refused", "unknown option `windw`"),
        (Point("attention", 10**9), {"width": 4096}, {}, "out of memory", "at once were requested"),
        (Point("attention", 16), {"device": "nowhere"}, {}, "failed", "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_a_result(
    asked: Point, setting: dict[str, Any], options: dict[str, Any], status: str, detail: str
) -> None:
    point = here(asked, options, **setting)
    assert point.status == status
    assert detail in point.detail
    assert "\n" not in point.detail
    assert (point.member, point.length, point.work) == (asked.member, asked.length, asked.work)
    assert point.seconds is None


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (SystemExit(0), "failed", "the program was ended (SystemExit: 0)"),
        (PluginError("a mixer gave None"), "failed", "a mixer gave None"),
        (GeneError("heads"), "refused", "heads"),
    ],
    ids=str,
)
def test_whatever_a_member_raises_is_a_result(
    error: BaseException, status: str, detail: str
) -> None:
    def work() -> Point:
        raise error

    point = inside.outcome(Point("gmlp", 16), work)
    assert point.status == status
    assert detail in point.detail


@pytest.mark.full("many cases", parts=3)
@pytest.mark.filterwarnings("ignore")  # of what the peers warn is theirs
@pytest.mark.parametrize("member", [m.name for m in list_members()])
def test_peers_have_the_shape_of_what_they_stand_beside(member: str) -> None:
    for source in (name for name, able in PEERS.items() if member in able):
        results = [here(Point(member, 12, source), causal=causal) for causal in (True, False)]
        # not installed, or with kernels for GPUs alone
        why = ("everyformer[peers]", "--device cuda")
        absent = any(words in p.detail for words in why for p in results)
        if absent and all(p.status == "refused" for p in results):
            continue
        assert "ok" in {p.status for p in results}, results
        for point in results:
            assert point.status == "ok" or (point.status == "refused" and point.detail), point


def test_the_rotations_of_a_peer_move_with_it() -> None:
    pytest.importorskip("x_transformers")
    peer = build_peer(Point("rope", 8, "x-transformers"), 16, 2, True)
    assert isinstance(peer.angles, torch.Tensor)
    assert peer.to("meta").angles.is_meta


@pytest.mark.filterwarnings("ignore")  # of what it warns where there is no GPU
def test_a_peer_whose_kernels_are_for_gpus_says_so_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:  # an absent one names its extra
        patch.setitem(sys.modules, "aft_pytorch", None)
        point = here(Point("aft-full", 12, "aft-pytorch"), causal=False)
    assert point.status == "refused"
    assert "pip install 'everyformer[peers]'" in point.detail
    with pytest.raises(ConfigError, match="did you mean 'gmlp'"):
        bench(["gmpl"], [8])
    with pytest.raises(ConfigError, match="nothing to measure"):
        bench(["gmlp"], [])
    pytest.importorskip("fla")
    point = here(Point("linear", 12, "flash-linear-attention"), causal=True)
    assert (point.status, "--device cuda" in point.detail) == ("refused", True)


def dies(*given: Any, options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ends(*given: Any, options: Any) -> None:
    os._exit(3)


@pytest.mark.full("seconds each", parts=3)
def test_points_are_measured_in_processes_of_their_own() -> None:
    [point] = bench(["aft-simple"], [16], **dataclasses.asdict(SMALL))
    assert point.status == "ok", point.detail
    assert point.peak_bytes is None or point.peak_bytes < 100e6


@pytest.mark.full("processes that import torch")
@pytest.mark.parametrize(
    ("end", "status", "detail"), [(dies, "out of memory", "-9"), (ends, "failed", "3")]
)
def test_a_process_that_dies_is_a_result(
    end: Callable[..., None], status: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "one_by_one", end)
    point = measure(Point("aft-simple", 16), SMALL, {})
    assert point.status == status
    assert point.detail == f"the process ended with {detail}"


@pytest.mark.full("a quarter of a minute", parts=3)
def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "print('once')\n"
        "from everyformer.lab.bench.bench import bench\n"
        "[p] = bench(['aft-simple'], [8], width=8, heads=1, seconds=0.001, threads=1)\n"
        "assert p.status == 'ok', p\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "once\n"


def test_the_crossover_is_where_a_member_stays_faster() -> None:
    def points(**seconds: list[float | None]) -> list[Point]:
        return [
            Point(member.replace("_", "-"), 2**i, seconds=second)
            for member, row in seconds.items()
            for i, second in enumerate(row)
        ]

    base: list[float | None] = [1, 2, 4, 8]
    assert crossover(points(attention=base, gmlp=[2, 1, 3, 7]), "gmlp") == 2
    assert crossover(points(attention=base, gmlp=[0, 3, 3, 7]), "gmlp") == 4
    assert crossover(points(attention=base, gmlp=[0, 1, 2, 8]), "gmlp") is None
    assert crossover(points(attention=base, gmlp=[0, 1, 2, 3]), "gmlp") == 1
    # where either has no number nothing is said
    assert crossover(points(attention=base, gmlp=[2, 1, None, None]), "gmlp") == 2
    assert crossover(points(attention=[1, 2, None, None], gmlp=[2, 3, 1, 1]), "gmlp") is None
    assert crossover(points(gmlp=[1, 1]), "gmlp") is None
    other = [dataclasses.replace(p, source="x") for p in points(gmlp=[0, 0, 0, 0])]
    assert crossover(points(attention=base) + other, "gmlp") is None


@pytest.mark.parametrize(
    ("low", "high", "start"), [(0.9, 1.4, 2), (0.9, 1.5, 4), (0.9, 1.6, 4), (0.1, 1.4, 2)]
)
def test_a_member_whose_range_overlaps_with_attentions_needs_no_less(
    low: float, high: float, start: int
) -> None:
    times, bytes_of = [], []
    ends = {("attention", 2): (1.5, 2.5), ("gmlp", 2): (low, high),
            ("attention", 4): (3.9, 4.1), ("gmlp", 4): (0.9, 1.1)}  # fmt: skip
    for (member, length), each in ends.items():
        times.append(Point(member, length, seconds=1.0, quartiles=each))
        peaks = round(10 * each[0]), round(10 * each[1])
        bytes_of.append(Point(member, length, peak_bytes=1, peak_range=peaks))
    assert crossover(times, "gmlp") == start
    assert crossover(bytes_of, "gmlp", what="peak_bytes") == start


def test_layers_of_one_length_take_turns_and_equal_ones_are_one_measurement() -> None:
    points = [Point(name, 16) for name in ("attention", "gmlp", "sinusoidal", "gpt", "vit")]
    calls: list[str] = []

    def made(point: Point, *rest: Any) -> Callable[[], None]:
        return lambda: calls.append(point.member)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inside, "pass_of", made)
        patch.setattr(timing, "TURN", 1e-12)
        patch.setattr(inside, "peaks_of", lambda call, device: [7])
        own = {"gpt": {"windw": 3}}
        found = dict(zip(points, inside.layers_in_turn(points, SMALL, own), strict=True))
    # once beforehand, then in turn; layers of sinusoidal are attention's, a wrong option is told
    assert calls[:9] == ["attention", "gmlp", "vit"] * 3
    assert [point.member for point in found.values()] == [point.member for point in points]
    attention, gmlp, sinusoidal, gpt, vit = found.values()
    assert dataclasses.replace(sinusoidal, member="attention") == attention
    assert (gpt.status, gpt.seconds) == ("refused", None)
    assert {attention.samples, gmlp.samples, vit.samples} == {len(calls) // 3 - 1}


def test_what_ends_the_process_of_all_is_left_out_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[str, ...]] = []

    def in_process(measured: Any, points: list[Point], setting: Setting) -> Any:
        tried.append(tuple(point.member for point in points))
        ended = "gmlp" in tried[-1]
        status: Any = "out of memory" if ended else "ok"
        seconds = None if ended else 1.0
        return [dataclasses.replace(p, status=status, seconds=seconds) for p in points], ended

    monkeypatch.setattr(benches, "_in_process", in_process)
    names = ["attention", "gmlp", "linear"]
    found = bench_together(names, 16, options={})
    assert tried == [
        ("attention", "gmlp", "linear"),
        *(("attention",), ("gmlp",), ("linear",)),
        ("attention", "linear"),
    ]
    assert [point.status for point in found] == ["ok", "out of memory", "ok"]
    assert [point.seconds for point in found] == [1.0, None, 1.0]


def test_peers_take_turns_with_the_member_whose_work_they_do() -> None:
    points = [Point("attention", 8), Point("attention", 8, "torch sdpa"), Point("sinusoidal", 8)]
    own, peer, same = inside.layers_in_turn(points, SMALL, {})
    sources = [point.source for point in (own, peer, same)]
    assert sources == ["everyformer", "torch sdpa", "everyformer"]
    assert own.seconds == same.seconds != peer.seconds


def test_a_table_shows_ratios_and_reasons() -> None:
    shown = render(
        [
            Point("attention", 64, seconds=0.002, quartiles=(0.001, 0.003), peak_bytes=2048),
            Point("gmlp", 64, seconds=0.001, quartiles=(0.0009, 0.0009), flops=3_000_000_000),
            Point("gmlp", 64, "g-mlp-pytorch", seconds=0.004),
            Point("amlp", 64, "g-mlp-pytorch", status="refused", detail="for a reason"),
        ]
    ).splitlines()
    row = "attention everyformer pass 64 2.00 1.00 to 3.00 - 1.00x - 2.0 KiB - - -"
    assert " ".join(shown[2].split()) == row
    assert "0.50x" in shown[3]
    assert shown[4].split()[-6:] == ["2.00x", "0.25x", "-", "-", "-", "-"]
    assert "gmlp is faster than attention from length 64 on" in shown
    assert shown[-1] == "amlp (g-mlp-pytorch) at 64: for a reason"


@pytest.mark.full("measures, seconds")
def test_the_command_line_measures(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--width", "16", "--heads", "2", "--seconds", "0.005", "--threads", "1", "--json")
    code = main(["bench", "--lengths", "8", "16", "aft-simple", "--decode", "8", *words])
    out, err = capsys.readouterr()
    points = json.loads(out)
    assert code == 0
    assert [(p["work"], p["length"]) for p in points] == [("pass", 8), ("pass", 16), ("decode", 8)]
    assert all(p["status"] == "ok" for p in points)
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ((), 0, "ms"),
        (("--heads", "7"), 2, "heads that fit: 1, 2, 4, 8, 16"),
        (("--batch", "1000000000000"), 2, "bytes at once were requested"),
        (("--json", "--heads", "7"), 2, "heads that fit: 1, 2, 4, 8, 16"),
    ],
)
def test_what_cannot_be_measured_is_told_by_the_exit(
    words: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ("--lengths", "8", "--seconds", "0.005", "--threads", "1", "--width", "16")
    assert main(["bench", "attention", *overridden([*fixed, "--heads", "2"], words)]) == code
    out, err = capsys.readouterr()
    assert told in out + err
    assert "enforce fail" not in out + err


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (("ok",), 0),
        (("ok", "refused"), 2),
        (("out of memory", "ok"), 2),
        (("refused", "failed"), 1),
        (("failed", "out of memory"), 1),
    ],
)
def test_one_point_that_broke_outweighs_those_that_were_refused(
    found: tuple[Any, ...], code: int
) -> None:
    assert exit_code([Point("attention", 8, status=status) for status in found]) == code


@pytest.mark.parametrize(
    ("times", "steady"),
    [
        ([1.0] * 5, True),
        ([0.91, 0.95, 1.0, 1.05, 1.09], True),
        ([1.0, 1.0, 1.0, 1.0, 90.0], True),
        ([0.5, 0.8, 1.0, 1.05, 1.1], False),
        ([1.0, 1.0, 1.0, 1.2, 1.2], False),
    ],
)
def test_times_are_steady_when_their_quartiles_are_near_the_median(
    times: list[float], steady: bool
) -> None:
    assert timing.is_steady(times) is steady


def times_of(drawn: list[float], seconds: float) -> timing.Times:
    """What is made of a call whose times are these again and again, where a round takes 1 s."""
    every, clock = itertools.cycle(drawn), itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "seconds_of", lambda *given: next(every))
        patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        return timing.timed({"a": lambda: None}, seconds, "cpu")["a"]


def test_what_scatters_is_measured_again_until_it_is_steady() -> None:
    scattered = [1.0, 2.0, 3.0, 4.0, 5.0, *[3.0] * 40]
    times = times_of(scattered, 0.1)
    assert (len(times.values), times.steady) == (5, False)
    # of 9 times those that lie apart are 4; half of the way to one of them is within what is shown
    point = inside.with_times(Point("gmlp", 8), times_of(scattered, 9.0))
    assert (point.samples, point.seconds, point.quartiles) == (9, 3.0, (2.5, 3.5))
    assert point.stable


def test_calls_of_a_round_take_turns_and_short_ones_are_repeated() -> None:
    asked: list[tuple[str, int]] = []

    def seconds_of(call: Callable[[], str], device: str, repeats: int = 1) -> float:
        asked.append((call(), repeats))
        return {"short": 0.0005, "long": 1.0}[call()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "seconds_of", seconds_of)
        found = timing.timed({"a": lambda: "short", "b": lambda: "long"}, 1e-9, "cpu")
    assert asked[:4] == [("short", 1), ("long", 1), ("short", 4), ("long", 1)]
    assert found["a"].values == [0.0005] * 5
    # seconds are the mean of repeated calls
    calls: list[int] = []
    clock = iter((10.0, 16.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        assert timing.seconds_of(lambda: calls.append(1), "cpu", repeats=3) == 2.0
    assert len(calls) == 3


def test_what_never_settles_says_so() -> None:
    point = inside.with_times(Point("gmlp", 8), times_of([1.0, 2.0, 3.0], 1e-9))
    assert (point.samples, point.stable) == (5, False)
    shown = render([dataclasses.replace(point, quartiles=(1.5, 2.5))])
    assert "unstable" in shown.splitlines()[2]
    assert "measure again when the machine has no other work" in shown
    base = Point("attention", 8, seconds=1.0, quartiles=(1.0, 1.0))
    assert "~2.00x" in render([base, point])


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are reset on Linux alone")
def test_peaks_are_what_a_call_claims() -> None:
    program = (
        "import torch; from everyformer.lab.bench.measure import peaks_of\n"
        "for n in (2, 9, 30):\n    print(*peaks_of(lambda: torch.zeros(n * 2**18), 'cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    for mebibytes, line in zip((2, 9, 30), done.stdout.splitlines(), strict=True):
        peaks = [int(word) / 2**20 for word in line.split()]
        assert peaks == pytest.approx([mebibytes] * 5, abs=0.3)
