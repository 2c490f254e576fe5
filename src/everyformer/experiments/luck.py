"""A comparison of a member with itself: how often luck is taken for a difference.

Attention under two names is compared as `compare` does it (its jobs, its rows, its contrasts, its
verdict), in trainings of a fraction of a second that share data, order and seeds. In half of
the trials stands one that is worse by construction: what so many seeds find of that, and what the
comparison says they can find.

Every training has a budget in steps: what else the machine does cannot enter. It does not enter a
budget in seconds either, since twins are timed as one and so have the same steps.
"""

import dataclasses
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from everyformer.comparison.config import CompareConfig
from everyformer.comparison.contrasts import contrasts, letters, scatter, smallest_seen
from everyformer.comparison.plan import Entrant, entrants, job
from everyformer.comparison.results import Metric, TableRow, Trained
from everyformer.comparison.student import power, quantile
from everyformer.comparison.summary import member_row, rank
from everyformer.comparison.verdict import verdict
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.experiments.figures import panels
from everyformer.experiments.study import Outcome, Study, experiment, finished
from everyformer.system.files import write_text
from everyformer.system.machine import LoadMeter, cores
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.spec import build_run

TRIALS, SEEDS, ERROR = 200, 3, 0.05
EQUAL = ("attention", "attention@again")
WORSE = {
    "attention@half": "half the width",
    "attention@slow": "a third of the learning rate",
}
KINDS: dict[str, tuple[str, Metric, int]] = {
    "text": ("lm", "bits_per_byte", 80),
    "classes": ("classify-series", "accuracy", 50),
    "numbers": ("regress-text", "rmse", 50),
}
"""tasks of the trials, what members are ranked by, and the steps after which they surely beat what
takes no model"""
MACHINES = ("machine as it is", "one busy process more")
WORDS = ("a", "warm", "tree", "and", "the", "quick", "fox", "jumped")


@dataclass(frozen=True)
class Bench:
    """One kind of task with its data, and the members that are trained on it."""

    metric: Metric
    config: CompareConfig
    data: Dataset
    ready: dict[str, Entrant]

    def row(self, name: str, first_seed: int) -> TableRow:
        """The row of a member, of `SEEDS` seeds."""
        entrant, lr = self.ready[name], self.config.training.lr
        rate = lr / 3 if name == "attention@slow" else lr
        runs = []
        for seed in range(first_seed, first_seed + SEEDS):
            run = job(self.config, entrant, seed, rate).run
            result = finished(train(build_run(run, self.data), self.data, run.training, show=False))
            runs.append({**dataclasses.asdict(result), "status": "done"})
        assert entrant.parameters is not None
        every = cast(list[Trained], runs)
        return member_row(name, self.data.task, entrant.parameters, every, self.metric)

    def judged(self, rows: Sequence[TableRow], seeds: int = SEEDS) -> tuple[bool, list[str]]:
        """Whether two rows are told apart by their first ``seeds``, and who is named the best."""
        own: Any = [
            {**row, "values": (few := row["values"][:seeds]), "quality": statistics.mean(few)}
            for row in rows
        ]
        ranked: Any = rank(own, self.metric)
        told = contrasts(ranked, self.metric)
        for row, tiers in zip(ranked, letters(ranked, told), strict=True):
            row["letters"] = tiers
        said = verdict(ranked, self.metric, in_seconds=False, cores=cores())
        named = [] if said["doubts"] or len(said["best"]) > 1 else said["best"]
        return any(one["apart"] for one in told), named


@experiment(
    f"of {TRIALS} comparisons of attention with itself at most {ERROR:.0%} (within its interval) "
    f"name a winner with {SEEDS} seeds and none does with one seed, while one with half the width "
    "or a third of the learning rate is found more often than that",
    members=("attention",),
    minutes=35,
)
def luck(study: Study) -> Outcome:
    """Trials by kind of task and state of the machine; a worse member in half of them."""
    for _ in study.seeds():
        with tempfile.TemporaryDirectory() as folder:
            benches = {kind: bench_of(kind, Path(folder)) for kind in KINDS}
            trials(study, benches)
    return outcome_of(study)


def bench_of(kind: str, folder: Path) -> Bench:
    """Data and members of a kind of task: attention of width 16, in one layer."""
    (task, metric, steps), source = KINDS[kind], str(folder / kind)
    draw = random.Random(0)
    if kind == "text":
        source += ".txt"
        write_text(Path(source), " ".join(draw.choices(WORDS, k=6000)))
    elif kind == "numbers":
        source += ".csv"
        texts = ["".join(draw.choices("abcd", k=12)) for _ in range(2000)]
        lines = [f"{text},{text.count('a')}" for text in texts]
        write_text(Path(source), "\n".join(["text,label", *lines]) + "\n")
    else:
        source = "waves"
    training = TrainingConfig(
        steps=steps, batch=8, lr=2e-2, threads=1, device="cpu", evaluate_every=None,
        evaluate_sequences=128, checkpoint_every=None,
    )  # fmt: skip
    config = CompareConfig(
        members=(*EQUAL, *WORSE), task=task, data=DataConfig(source=source, length=16),
        model={"width": 16, "layers": 1, "heads": 2}, training=training,
        options=("attention@half.width=8",),
    )  # fmt: skip
    data = load_dataset(config.data, config.task)
    return Bench(metric, config, data, {one.member: one for one in entrants(config, data)})


def trials(study: Study, benches: dict[str, Bench]) -> None:
    """Keep what came of all trials of a seed of the study."""
    count = study.steps(TRIALS)
    shares: dict[str, list[float]] = {}
    pairs: dict[str, list[tuple[TableRow, TableRow]]] = {}
    kept: Any = lambda name, value: shares.setdefault(name, []).append(float(value))  # noqa: E731
    for n in range(count):
        kind = list(KINDS)[n % len(KINDS)]
        bench, machine = benches[kind], MACHINES[n // len(KINDS) % 2]
        seed = SEEDS * (n + count * study.seed)
        worse = list(WORSE)[n // (4 * len(KINDS)) % 2]
        with spinning(machine == MACHINES[1]), LoadMeter() as load:
            first, again = (bench.row(name, seed) for name in EQUAL)
            if n // (2 * len(KINDS)) % 2 == 0:
                other = bench.row(worse, seed)
                kept(f"found, {worse}, {kind}", bench.judged((first, other))[0])
                pairs.setdefault(f"{worse}, {kind}", []).append((first, other))
        if load.mean is not None:
            kept(f"threads that want a core, {machine}", load.mean)
        apart, named = bench.judged((first, again))
        kept("named, 3 seeds", bool(named))
        kept("named, 1 seed", bool(bench.judged((first, again), 1)[1]))
        for where in ("3 seeds", kind, machine):
            kept(f"told apart, {where}", apart)
        if n % 20 == 19:
            study.say(f"{n + 1} of {count} trials")
    for name, values in shares.items():
        study.keep(name, statistics.mean(values))
        study.keep(f"trials: {name}", len(values))
    for name, own in pairs.items():
        metric = KINDS[name.rpartition(", ")[2]][1]
        difference, seen = foreseen(own, metric)
        study.keep(f"difference over the smallest that shows, {name}", difference)
        study.keep(f"foreseen, {name}", seen)


def foreseen(pairs: Sequence[tuple[TableRow, TableRow]], metric: Metric) -> tuple[float, float]:
    """The mean difference of rows, over the usual smallest difference that a comparison says would
    show, and the share of comparisons that should find it."""
    differences = [abs(a["quality"] - b["quality"]) for a, b in pairs]
    signed = statistics.mean(b["quality"] - a["quality"] for a, b in pairs)
    smallest = [smallest_seen(pair, metric) or 0.0 for pair in pairs]
    spread = math.sqrt(statistics.mean((scatter(pair, metric) or 0.0) ** 2 for pair in pairs))
    usual = statistics.median(smallest)
    if spread == 0 or usual == 0:
        return math.nan, float(max(differences) > 0)
    return abs(signed) / usual, power(abs(signed) / spread, SEEDS)


def outcome_of(study: Study) -> Outcome:
    """The sentence, from what all trials kept."""
    named, apart = (rate(study, name) for name in ("named, 3 seeds", "told apart, 3 seeds"))
    alone = rate(study, "named, 1 seed")
    arms = [f"{worse}, {kind}" for worse in WORSE for kind in KINDS]
    arms = [arm for arm in arms if f"found, {arm}" in study.numbers]
    found = {
        words: statistics.mean(study.mean(f"found, {a}") for a in arms if a.startswith(worse))
        for worse, words in WORSE.items()
        if any(a.startswith(worse) for a in arms)
    }
    each = "; ".join(
        f"{WORSE[arm.partition(', ')[0]]} on {arm.partition(', ')[2]} "
        f"[found, {arm}|.0%] (foreseen [foreseen, {arm}|.0%], the difference "
        f"[difference over the smallest that shows, {arm}|.2f] times the smallest that shows)"
        for arm in arms
    )
    sentence = (
        f"Of {named[3]:,} comparisons of attention with itself {said(named)} named a winner with "
        f"{SEEDS} seeds, and with one seed {said(alone)} did; {said(apart)} told the twins apart"
        f"{machines(study)}. What is worse was found with {SEEDS} seeds: {each}."
    )
    holds = max(named[1], apart[1]) <= ERROR and alone[0] == 0
    holds = holds and bool(found) and min(found.values()) > apart[0]
    return study.outcome(holds, sentence, rates=drawn(study, arms))


def machines(study: Study) -> str:
    """That rate by what else the machine did; '' where the threads that wanted a core are not
    known."""
    wanted = "threads that want a core, {}"
    if not all(wanted.format(machine) in study.numbers for machine in MACHINES):
        return ""
    usual, busy = (
        f"{study.mean(f'told apart, {m}'):.1%} while {study.mean(wanted.format(m)):.1f} threads"
        for m in MACHINES
    )
    return (
        f" ({usual} wanted a core, {busy}, one of them a process that never waits; budgets were in "
        "steps, which no machine changes)"
    )


def rate(study: Study, name: str) -> tuple[float, float, float, int]:
    """A share over all trials, its interval, and the trials."""
    counts = study.numbers[f"trials: {name}"]
    total = int(sum(counts))
    hits = sum(share * count for share, count in zip(study.numbers[name], counts, strict=True))
    return hits / total, *wilson(round(hits), total), total


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927), also of none and of all."""
    z = statistics.NormalDist().inv_cdf(0.975)
    share, square = hits / trials, z * z / trials
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def said(known: tuple[float, float, float, int]) -> str:
    share, low, high, _ = known
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


def drawn(study: Study, arms: Sequence[str]) -> Figure:
    """Rates of equal members with their intervals; what is found against how large it is."""
    figure, [left, right] = panels(2, size=(8, 3))
    names = ["named, 1 seed", "named, 3 seeds", *(f"told apart, {w}" for w in (*KINDS, *MACHINES))]
    names = [name for name in names if name in study.numbers]
    for n, name in enumerate(names):
        share, low, high, _ = rate(study, name)
        left.errorbar([100 * share], [n], xerr=[[100 * (share - low)], [100 * (high - share)]],
                      fmt="o", color="C0", capsize=2)  # fmt: skip
    left.axvline(100 * ERROR, color="grey", linestyle=":")
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set(xlabel="% of comparisons with itself")
    ratios = np.linspace(0, 4, 80)
    t = quantile(SEEDS - 1) / math.sqrt(SEEDS)
    right.plot(ratios, [power(r * t, SEEDS) for r in ratios], color="grey", label="foreseen")
    for n, worse in enumerate(WORSE):
        own = [arm for arm in arms if arm.startswith(worse)]
        x = [study.mean(f"difference over the smallest that shows, {arm}") for arm in own]
        right.plot(x, [study.mean(f"found, {arm}") for arm in own], "o", color=f"C{n + 1}",
                   label=WORSE[worse])  # fmt: skip
    right.set(xlabel="difference / smallest that shows", ylabel="share found")
    right.legend(fontsize=7, loc="lower right")
    return figure


@contextmanager
def spinning(busy: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """While it lasts, one process more that never waits, if ``busy``."""
    if not busy:
        yield None
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
