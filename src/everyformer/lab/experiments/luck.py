"""A comparison of a member with itself: how often luck is taken for a difference.

Attention under two names is compared as `compare` does it (its jobs, rows, contrasts and verdict),
in trainings of a fraction of a second. In half of the trials stands one that is worse by
construction: what so many seeds find of that, and what the comparison says they can find.

Budgets are in steps: what else the machine does cannot enter. It does not enter a budget in seconds
either, since twins are timed as one and so have the same steps.
"""

import dataclasses
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from everyformer.core.student import power
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.contrasts import contrasts, letters, scatter, smallest_seen
from everyformer.lab.compare.plan import Candidate, candidates, job
from everyformer.lab.compare.results import Metric, TableRow
from everyformer.lab.compare.summary import member_row, rank
from everyformer.lab.compare.verdict import verdict
from everyformer.lab.experiments.figures import Bars, Lines, Panel
from everyformer.lab.experiments.study import Outcome, Study, experiment, finished
from everyformer.system.files import write_text
from everyformer.system.machine import LoadMeter, cores
from everyformer.tasks.classify.scores import wilson
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.spec import build_run

TRIALS, SEEDS, ERROR = 200, 3, 0.05
EQUAL = ("attention", "attention@again")
WORSE = {"attention@half": "half the width", "attention@slow": "a third of the learning rate"}
KINDS: dict[str, tuple[str, Metric, int]] = {
    "text": ("lm", "bits_per_byte", 80),
    "classes": ("classify-series", "accuracy", 50),
    "numbers": ("regress-text", "rmse", 50),
}
"""tasks of the trials, what members are ranked by, and the steps after which they surely beat what
takes no model"""
MACHINES = ("machine as it is", "one busy process more")
WANTED, RATIO = "threads that want a core, {}", "difference over the smallest that shows, {}"


@dataclass(frozen=True)
class Bench:
    """One kind of task with its data, and the members that are trained on it."""

    metric: Metric
    config: CompareConfig
    data: Dataset
    ready: dict[str, Candidate]

    def row(self, name: str, first_seed: int) -> TableRow:
        """The row of a member, of `SEEDS` seeds."""
        candidate, lr = self.ready[name], self.config.training.lr
        rate, runs = lr / 3 if name == "attention@slow" else lr, list[Any]()
        for seed in range(first_seed, first_seed + SEEDS):
            run = job(self.config, candidate, seed, rate).run
            result = finished(train(build_run(run, self.data), self.data, run.training, show=False))
            runs.append({**dataclasses.asdict(result), "status": "done"})
        return member_row(name, self.data.does, candidate.parameters or 0, runs, self.metric)

    def judged(self, rows: Sequence[TableRow], seeds: int = SEEDS) -> tuple[bool, list[str]]:
        """Whether two rows are told apart by their first ``seeds``, and who is named the best."""
        own: Any = [
            {**row, "values": (few := row["values"][:seeds]), "quality": mean(few)} for row in rows
        ]
        ranked: Any = rank(own, self.metric)
        told = contrasts(ranked, self.metric)
        for row, tiers in zip(ranked, letters(ranked, told), strict=True):
            row["letters"] = tiers
        outcome = verdict(ranked, self.metric, in_seconds=False, cores=cores())
        named = [] if outcome["doubts"] or len(outcome["best"]) > 1 else outcome["best"]
        return any(one["apart"] for one in told), named


@experiment(
    f"of {TRIALS} comparisons of attention with itself at most {ERROR:.0%} (within its interval) "
    f"name a winner with {SEEDS} seeds and none does with one seed, while one with half the width "
    "or a third of the learning rate is surely found more often",
    members=("attention",),
    minutes=35,
)
def luck(study: Study) -> Outcome:
    """Trials by kind of task and state of the machine; a worse member in half of them."""
    for _ in study.seeds():
        with tempfile.TemporaryDirectory() as folder:
            trials(study, {kind: bench_of(kind, Path(folder)) for kind in KINDS})
    return outcome_of(study)


def bench_of(kind: str, folder: Path) -> Bench:
    """Data and members of a kind of task: attention of width 16, in one layer."""
    task, metric, steps = KINDS[kind]
    words = ("a", "warm", "tree", "and", "the", "quick", "fox", "jumped")
    write_text(folder / "text.txt", " ".join(random.Random(0).choices(words, k=6000)))
    draw = random.Random(0)
    texts = ["".join(draw.choices("abcd", k=12)) for _ in range(2000)]
    lines = [f"{text},{text.count('a')}" for text in texts]
    write_text(folder / "numbers.csv", "\n".join(["text,label", *lines]) + "\n")
    files = {"text": str(folder / "text.txt"), "numbers": str(folder / "numbers.csv")}
    training = TrainingConfig(
        steps=steps, batch=8, lr=2e-2, threads=1, device="cpu", evaluate_every=None,
        evaluate_sequences=128, checkpoint_every=None,
    )  # fmt: skip
    config = CompareConfig(
        members=(*EQUAL, *WORSE), task=task, training=training, options=("attention@half.width=8",),
        data=DataConfig(source=files.get(kind, "waves"), length=16),
        model={"width": 16, "layers": 1, "heads": 2},
    )  # fmt: skip
    data = load_dataset(config.data, config.task)
    return Bench(metric, config, data, {one.member: one for one in candidates(config, data)})


def trials(study: Study, benches: dict[str, Bench]) -> None:
    """Keep what came of all trials of a seed of the study."""
    count, shares = study.steps(TRIALS), dict[str, list[float]]()
    pairs: dict[str, list[tuple[TableRow, TableRow]]] = {}
    kept: Any = lambda name, value: shares.setdefault(name, []).append(float(value))  # noqa: E731
    for n in range(count):
        turn, which = divmod(n, len(KINDS))
        kind, machine = list(KINDS)[which], MACHINES[turn % 2]
        bench, seed = benches[kind], SEEDS * (n + count * study.seed)
        with spinning(machine == MACHINES[1]), LoadMeter() as load:
            first, again = (bench.row(name, seed) for name in EQUAL)
            if turn // 2 % 2 == 0:
                worse = list(WORSE)[turn // 4 % 2]
                other = bench.row(worse, seed)
                kept(f"found, {worse}, {kind}", bench.judged((first, other))[0])
                pairs.setdefault(f"{worse}, {kind}", []).append((first, other))
        if load.mean is not None:
            kept(WANTED.format(machine), load.mean)
        apart, named = bench.judged((first, again))
        kept("named, 3 seeds", bool(named))
        kept("named, 1 seed", bool(bench.judged((first, again), 1)[1]))
        for where in ("3 seeds", kind, machine):
            kept(f"told apart, {where}", apart)
        if n % 20 == 19:
            study.say(f"{n + 1} of {count} trials")
    for name, values in shares.items():
        study.keep(name, mean(values))
        study.keep(f"trials: {name}", len(values))
    for name, own in pairs.items():
        ratio, chance = foreseen(own, KINDS[name.rpartition(", ")[2]][1])
        study.keep(RATIO.format(name), ratio)
        study.keep(f"foreseen, {name}", chance)


def foreseen(pairs: Sequence[tuple[TableRow, TableRow]], metric: Metric) -> tuple[float, float]:
    """The mean difference over the usual smallest that a comparison says would show, and the share
    of comparisons that should find it."""
    difference = abs(mean(b["quality"] - a["quality"] for a, b in pairs))
    usual = median(smallest_seen(pair, metric) or 0.0 for pair in pairs)
    spread = math.sqrt(mean((scatter(pair, metric) or 0.0) ** 2 for pair in pairs))
    return difference / usual, power(difference / spread, SEEDS)


def outcome_of(study: Study) -> Outcome:
    """The sentence, from what all trials kept."""
    names = ("named, 3 seeds", "named, 1 seed", "told apart, 3 seeds")
    named, alone, apart = (rate(study, name) for name in names)
    shares = [
        f"{share:.1%} ({low:.1%} to {high:.1%})" for share, low, high in (named, alone, apart)
    ]
    arms = [f"{worse}, {kind}" for worse in WORSE for kind in KINDS]
    arms = [arm for arm in arms if f"found, {arm}" in study.numbers]
    found = [
        mean(study.mean(f"found, {arm}") for arm in arms if arm.startswith(worse))
        for worse in {arm.partition(", ")[0] for arm in arms}
    ]
    each = "; ".join(
        f"{WORSE[worse]} on {kind} [found, {arm}|.0%] ([foreseen, {arm}|.0%])"
        for arm in arms
        for worse, _, kind in [arm.partition(", ")]
    )
    load = "; ".join(
        f"{m}, [{WANTED.format(m)}|.1f] threads wanting a core: [told apart, {m}|.1%]"
        for m in MACHINES
        if WANTED.format(m) in study.numbers
    )
    sentence = (
        f"Of {sum(study.numbers['trials: named, 3 seeds']):,.0f} comparisons of attention with "
        f"itself {shares[0]} named a winner with {SEEDS} seeds, and with one seed {shares[1]} did; "
        f"{shares[2]} told the twins apart ({load}). What is worse was found with {SEEDS} seeds "
        f"(in brackets, foreseen from the scatter): {each}."
    )
    holds = max(named[1], apart[1]) <= ERROR and alone[0] == 0 and min(found, default=0) > apart[2]
    return study.outcome(holds, sentence, rates=drawn(study, arms))


def rate(study: Study, name: str) -> tuple[float, float, float]:
    """A share over all trials, and its interval."""
    counts = study.numbers[f"trials: {name}"]
    hits = sum(share * count for share, count in zip(study.numbers[name], counts, strict=True))
    low, high = wilson(round(hits), round(sum(counts)))
    # the ends of none and of all may be rounded to beyond them
    return hits / sum(counts), max(0.0, low), min(1.0, high)


def drawn(study: Study, arms: Sequence[str]) -> list[Panel]:
    """Rates of equal members with their intervals; what is found against how large it is."""
    names = ["named, 1 seed", "named, 3 seeds", *(f"told apart, {w}" for w in (*KINDS, *MACHINES))]
    rates = {name: rate(study, name) for name in names if name in study.numbers}
    found = {kind: study.series(f"{kind}, {{}}", arms) for kind in ("found", "foreseen")}
    sizes = study.series(RATIO, arms)
    return [
        Bars(
            {name: share for name, (share, *_) in rates.items()}, "of comparisons with itself",
            {name: (low, high) for name, (_, low, high) in rates.items()}, level=ERROR,
        ),
        Lines(found, sizes, ("difference / smallest that shows", "share"), style="o"),
    ]  # fmt: skip


@contextmanager
def spinning(busy: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """While it lasts, one process more that never waits, if ``busy``."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()
