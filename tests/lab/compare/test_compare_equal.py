"""Equal footing: the same batches, tokens, seeds and budgets for all, and all of it on record."""

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_comparisons import SMALL

from everyformer.core.student import quantile, within
from everyformer.data.batch import WHOLE, Portion
from everyformer.data.dataset import Dataset
from everyformer.lab.bench.points import Point
from everyformer.lab.compare import calibration, rounds, timing, worker
from everyformer.lab.report.notes import notes
from everyformer.training import precision
from helpers import overridden

Compare = Callable[..., Any]
MEMBERS = ("attention", "aft-local", "gmlp")


def test_all_members_see_the_same_batches_in_the_same_order(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[str, int], list[Any]] = defaultdict(list)
    work, load = worker.work, worker.load_dataset
    running: list[tuple[str, int]] = []

    def working(folder: Any, job: dict[str, Any], *more: Any) -> Any:
        running.append((job["run"]["member"], job["run"]["training"]["seed"]))
        return work(folder, job, *more)

    def loading(*given: Any, **more: Any) -> Dataset:
        dataset = load(*given, **more)
        draw = dataset.train_batch

        def drawn(step: int, size: int, seed: int, portion: Portion = WHOLE) -> Any:
            batch = draw(step, size, seed, portion)
            seen[running[-1]].append((step, batch.inputs.tolist(), batch.targets.tolist()))
            return batch

        object.__setattr__(dataset, "train_batch", drawn)
        return dataset

    monkeypatch.setattr(worker, "work", working)
    monkeypatch.setattr(worker, "load_dataset", loading)
    done = compare(*MEMBERS, "--steps", "4", "--seeds", "2", "--seed", "5")
    assert done.code == 0
    # the last row's mean over seeds is reached when its slower seed has ended, and not before
    last = done.results["rows"][-1]
    ends = [run["evaluations"][-1]["seconds"] for run in done.runs(last["member"])]
    assert last["seconds_to_slowest"] == max(ends)
    assert set(seen) == {(member, seed) for member in MEMBERS for seed in (5, 6)}
    for seed in (5, 6):
        first = seen["attention", seed]
        assert [step for step, *_ in first] == [0, 1, 2, 3]
        assert all(seen[member, seed] == first for member in MEMBERS)
    assert seen["attention", 5] != seen["attention", 6]


def test_a_budget_of_tokens_is_the_same_number_for_all(compare: Compare) -> None:
    """Of a comparison that is in a file, and prints JSON alone."""
    sizes = "[model]\nwidth = 16\nlayers = 1\nheads = 2\n[training]\nbatch = 4\nthreads = 1\n"
    Path("all.toml").write_text(
        f'members = {[*MEMBERS]}\noptions = ["gmlp.spatial=toeplitz"]\nlengths = []\n'
        f'[data]\nsource = "text.txt"\nlength = 16\n{sizes}budget_tokens = 300\n',
        encoding="utf-8",
    )
    done = compare("--config", "all.toml", "--json", small=False)
    assert done.code == 0, done.err
    # batches have 4 x 16 tokens: five of them are the first to reach 300
    assert [(run["tokens"], run["steps"]) for run in done.results["runs"]] == [(320, 5)] * 3
    scored = {run["evaluation"]["scored"] for run in done.results["runs"]}
    assert len(scored) == 1
    assert {row["member"] for row in json.loads(done.out)["rows"]} == {*MEMBERS}
    assert "[1 of 3] attention-seed0" in done.err
    assert done.job("runs/gmlp-seed0")["run"]["mixer"]["spatial"] == "toeplitz"


def test_a_budget_of_operations_is_kept_to_within_a_step(compare: Compare) -> None:
    done = compare(*MEMBERS, "--budget-flops=1e7")
    for run in done.results["runs"]:
        step = run["flops"] / run["steps"]
        assert 1e7 <= run["flops"] < 1e7 + step
    assert len({run["steps"] for run in done.results["runs"]}) > 1


def test_a_member_learns_the_same_as_alone(compare: Compare, tree: Any) -> None:
    from everyformer.cli import main

    run = compare("attention", "gmlp", "--steps", "3", "--seed", "2").runs("gmlp")[0]
    sizes = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "16", "--batch", "4")
    words = ("--data", "text.txt", "--steps", "3", "--seed", "2", "--training.threads", "1")
    assert main(["train", "gmlp", *words, *sizes, "--out", "alone"]) == 0
    lines = (tree / "alone" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["evaluation"]["loss"] == run["evaluation"]["loss"]


def test_parameters_are_matched_within_a_tenth(compare: Compare) -> None:
    """One that cannot be matched fails alone; options of one member reach that member alone."""
    options = ("--options", "aft-conv.expansion=400.0", "aft-local.window=3")
    members = (*MEMBERS, "aft-conv")
    done = compare(*options, *members, "--steps", "1", "--match", "parameters", "--width", "64")
    assert done.code == 1
    assert done.row("attention")["parameter_ratio"] == 1
    for member in ("aft-local", "gmlp"):
        assert 0.9 <= done.row(member)["parameter_ratio"] <= 1.1
    jobs = {run["member"]: done.job(run["folder"])["run"] for run in done.results["runs"]}
    assert jobs["attention"]["model"]["width"] == 64
    assert jobs["gmlp"]["model"]["width"] != 64
    assert [jobs[name]["mixer"]["window"] for name in ("attention", "aft-local")] == [None, 3]
    assert {done.row(member)["status"] for member in MEMBERS} == {"done"}
    assert "no width comes within 10%" in done.row("aft-conv")["error"]


def test_the_best_learning_rate_of_the_grid_is_kept(compare: Compare, launched: list[str]) -> None:
    done = compare("gmlp", "--steps", "3", "--lr-grid", "1e-9", "0.03", "--seeds", "2")
    assert [run["lr"] for run in done.runs("gmlp")] == [0.03, 0.03]
    # what was tried is kept too, apart from what the table is made of
    [tried] = done.results["tried"]
    assert (tried["lr"], tried["seed"], tried["folder"]) == (1e-9, 0, "runs/gmlp-seed0-lr1e-09")
    assert tried["evaluation"]["loss"] > done.runs("gmlp")[0]["evaluation"]["loss"]
    assert done.row("gmlp")["lr"] == 0.03
    assert "The best learning rate of gmlp is 0.03, the largest tried; try 1e-1, 3e-1" in done.out
    assert [line["lr"] for line in done.table()] == ["0.03", "0.03"]
    assert launched == ["gmlp-seed0-lr1e-09", "gmlp-seed0-lr0.03", "gmlp-seed1-lr0.03"]


@pytest.mark.usefixtures("steps_timed")
def test_everything_is_on_record(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(names: list[str], length: int, **given: Any) -> Any:
        return [Point(name, length, seconds=float(length)) for name in names]

    monkeypatch.setattr(timing, "bench_together", measured)
    often = ("--training.log-every", "1", "--training.evaluate-every", "2")
    words = (*MEMBERS, "--steps", "4", *often)
    done = compare(*words, "--lengths", "8", "16")
    assert done.code == 0, done.err
    results = done.results
    assert {"config", "environment", "data", "metric", "better", "rows", "runs"} < set(results)
    assert results["metric"] == "bits_per_byte"
    assert results["config"]["training"]["steps"] == 4
    assert "held out" in results["data"]["split"]
    values = [row["quality"] for row in results["rows"]]
    assert values == sorted(values)
    for row in results["rows"]:
        low, high = row["interval"]
        assert low < row["quality"] < high
        assert row["decode_ms"].keys() == row["decode_bytes"].keys() == {"4", "8", "16"}
        assert row["seconds_to_slowest"] <= max(run["seconds"] for run in done.runs(row["member"]))
    for run in results["runs"]:
        assert [r["step"] for r in run["training"]] == [1, 2, 3, 4]
        assert [r["step"] for r in run["evaluations"]] == [2, 4]
        assert run["sample"]["text"]
    assert [line["member"] for line in done.table()] == [row["member"] for row in results["rows"]]
    assert float(done.table()[0]["quality"]) == values[0]
    lines = done.out.splitlines()
    lines = lines[2 + next(n for n, line in enumerate(lines) if line.startswith("member")) :]
    assert [line.split()[0] for line in lines[:3]] == [row["member"] for row in results["rows"]]
    assert re.search(r"^report  .*report.html$", done.out, re.MULTILINE)
    words = (*overridden(SMALL, (*words, "--lengths", "8", "16")), "--out", "made")
    assert results["command"] == shlex.join(["everyformer", "compare", *words])


def test_pictures_are_compared_by_accuracy(compare: Compare) -> None:
    words = ("--steps", "2", "--training.evaluate-sequences", "16")
    done = compare("vit", "gmlp", *words, "--data", "digits", "--length", "16")
    assert done.code == 0, done.err
    assert done.results["metric"] == "accuracy"
    assert done.results["better"] == "higher"
    done = compare("gmlp", *words, "--data", "digits", "--task", "pixels", out="pixels")
    assert done.results["metric"] == "bits_per_dim"


def test_the_python_call_gives_what_the_files_hold(
    tree: Any, launched: list[str], without_report: None
) -> None:
    import everyformer as ef

    done = ef.compare(
        ["gmlp"],
        data={"source": "text.txt", "length": 16},
        model={"width": 16, "layers": 1, "heads": 2},
        training={"budget_seconds": None, "steps": 2, "batch": 4, "threads": 1},
        lengths=[],
        out=str(tree / "made"),
    )
    assert done.rows == done.results["rows"]
    held = json.loads((tree / "made" / "results.json").read_text(encoding="utf-8"))
    assert held["rows"] == json.loads(json.dumps(done.rows))


def test_quantiles_are_students() -> None:
    stats = pytest.importorskip("scipy.stats")
    for n in (*range(1, 40), 99, 100, 999, 1000):
        assert within(1.3, n) == pytest.approx(2 * stats.t.cdf(1.3, n) - 1, rel=1e-10), n
        assert quantile(n, 0.99) == pytest.approx(stats.t.ppf(0.995, n), rel=1e-9), n
        assert quantile(n) == pytest.approx(stats.t.ppf(0.975, n), rel=1e-10), n


def test_presets_that_differ_in_more_than_their_gene_are_named(compare: Compare) -> None:
    made = compare("gpt", "attention", "reformer", "--steps", "2")
    (told,) = [note for note in notes(made.results) if "more than their gene" in note]
    for part in ("gpt (", "init gpt2", "dropout 0.1", "reformer (", "tie False"):
        assert part in told
    assert "attention (" not in told


@pytest.mark.parametrize(
    ("attention", "gmlp", "said"),
    [
        ("bfloat16", "float32", "attention in bfloat16, the others in float32."),
        ("bfloat16", "bfloat16", "all in bfloat16."),
        ("float32", "none", "all in float32."),
    ],
)
def test_each_member_is_timed_and_trained_in_the_precision_that_was_chosen_for_it_once(
    attention: str, gmlp: str, said: str, compare: Compare, monkeypatch: pytest.MonkeyPatch,
    steps_timed: None,
) -> None:  # fmt: skip
    """One whose precision cannot be chosen fails alone."""
    chosen: dict[str, str] = {"attention": attention, "gmlp": gmlp}
    seen: list[str] = []

    def choose(session: Any, _: Any) -> tuple[str, str]:
        model = session.model
        seen.append(model.config.member)
        if chosen[model.config.member] == "none":
            raise MemoryError
        return chosen[model.config.member], "said so"

    for name in ("keep_freed_memory", "return_freed_memory"):
        monkeypatch.setattr(rounds, name, lambda name=name: seen.append(name))

    def process(_: Any, place: Path, __: Any) -> int:
        seen.append("process")
        return rounds.main(place)

    monkeypatch.setattr(calibration, "launch", process)
    monkeypatch.setattr(precision, "slow_product", lambda *_: None)
    monkeypatch.setattr(precision, "_by_steps", choose)
    done = compare(*chosen, "--steps", "4", "--seeds", "2", "--precision", "auto")
    if gmlp == "none":
        assert done.row("attention")["calibrated"]["precision"] == "float32"
        assert "gmlp" not in {r["member"] for r in done.results["rows"] if r["status"] == "ok"}
        return
    # as trainings keep it, and in a process of its own
    kept = ["process", "keep_freed_memory", *chosen, "process", "return_freed_memory"]
    assert seen[: len(kept)] == kept
    assert not {*chosen, "process"} & {*seen[len(kept) :]}
    for name, kind in chosen.items():
        assert done.row(name)["calibrated"]["precision"] == kind
        for seed in (0, 1):
            run = done.job(f"runs/{name}-seed{seed}")["run"]
            assert run["training"]["precision"] == kind
    told = f"trained in the precision whose steps were the faster here: {said}"
    assert told in " ".join(notes(done.results))
