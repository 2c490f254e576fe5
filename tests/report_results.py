"""The results of a comparison as `collect` returns them, made up: no training."""

import itertools
from typing import Any

from everyformer.core.config import to_dict
from everyformer.family import info, list_members
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.contrasts import letters
from everyformer.lab.compare.verdict import verdict

NASTY = "<script>alert(1)</script>"


def made_up(
    members: tuple[str, ...] = ("attention", "gmlp"),
    *,
    metric: str = "bits_per_byte",
    qualities: tuple[float, ...] = (2.0, 2.5),
    half: float = 0.1,
    seeds: int = 3,
    failed: dict[str, str] | None = None,
    waiting: tuple[str, ...] = (),
    doubts: tuple[str, ...] = (),
) -> Any:
    """Members trained with the given qualities and half-widths of intervals, then those failed.

    Steps, speeds and times grow from each member to the next.
    """
    rows, runs, bench = [], [], []
    for n, (member, value) in enumerate(zip(members, qualities, strict=True)):
        rows.append(_row(member, value, half, seeds, n))
        runs += [_run(member, value + 0.01 * seed, half, seed, metric) for seed in range(seeds)]
        bench += [_point(member, length, n) for length in (128, 256, 512)]
    better = "higher" if metric == "accuracy" else "lower"
    rows.sort(key=lambda row: row["quality"], reverse=better == "higher")
    for member, error in (failed or {}).items():
        rows.append({"member": member, "status": "failed", "error": error})
    trained = [row for row in rows if row["status"] == "done"]
    told = [] if seeds == 1 else [_contrast(a, b) for a, b in itertools.combinations(trained, 2)]
    for row, own in zip(trained, letters(trained, told), strict=True):
        row["letters"] = own
    everyone = [*members, *(failed or {}), *waiting]
    judged: Any = verdict(trained, metric, in_seconds=False, cores=2)  # type: ignore[arg-type]
    config = to_dict(CompareConfig()) | {"members": everyone, "seeds": seeds}
    return {
        "format": "everyformer-comparison",
        "command": "everyformer compare attention gmlp --out runs/cmp",
        "config": config,
        "environment": {
            "python": "3.12.0", "packages": {"everyformer": "0.1.0", "torch": "2.13.0"},
            "platform": "Linux", "processor": "x86_64", "cores": 2, "torch_threads": 2,
            "accelerator": None, "folder": "/nowhere", "git_revision": None, "git_changes": False,
        },
        "data": {
            "name": "stdlib", "task": "classify-image" if metric == "accuracy" else "lm",
            "kind": "text", "vocabulary": 256, "classes": [], "length": 64, "image": None,
            "bytes_per_token": 1.0, "fingerprint": "f00d", "tokenizer": "bytes",
            "split": "the end is held out: 1,000 training and 100 validation tokens",
        },
        "metric": metric,
        "better": better,
        "rows": rows,
        "runs": runs,
        "bench": bench,
        "contrasts": told,
        "verdict": judged | {"doubts": [*judged["doubts"], *doubts]},
        "waiting": list(waiting),
        "next": [["look into it", "everyformer show 'runs/a b' all"]],
    }  # fmt: skip


def _contrast(better: Any, worse: Any) -> dict[str, Any]:
    """Two members, told apart where their intervals have no value in common."""
    low, high = (
        pick(row["interval"][n] for row in (better, worse)) for n, pick in ((0, max), (1, min))
    )
    apart = low > high
    return {
        "better": better["member"],
        "worse": worse["member"],
        "difference": abs(worse["quality"] - better["quality"]),
        "interval": [0.01, 0.5],
        "probability": 0.012 if apart else 0.4,
        "apart": apart,
    }


def many(count: int = 32, **known: Any) -> Any:
    """So many members of the family, in a few tiers, some of them the same function."""
    names = tuple(member.name for member in list_members(task="lm"))[:count]
    qualities = tuple(2.0 + 0.03 * ((7 * n) % count) for n in range(count))
    results = made_up(names, qualities=qualities, half=0.05, **known)
    for row in results["rows"]:
        row["group"] = info(row["member"]).group
        row["limits"] = ["reads no more than 256 tokens"] if row["group"] == "positions" else []
    return results


def same(results: Any, *names: str) -> None:
    """The losses of ``names`` do not differ."""
    for row in results["rows"]:
        if row["member"] in names:
            row["same_as"] = [name for name in names if name != row["member"]]


def _row(member: str, value: float, half: float, seeds: int, n: int) -> dict[str, Any]:
    more = n + 1
    unknown = ("baseline", "beats_baseline", "calibrated", "load", "leaks", "longest")
    return dict.fromkeys(unknown) | {
        "member": member, "status": "done", "group": "attention", "seeds": seeds,
        "parameters": 100_000 + 30_000 * n, "parameter_ratio": 1 + 0.3 * n,
        "quality": value, "interval": [value - half, value + half],
        "interval_of": "seeds" if seeds > 1 else "validation sequences",
        "values": [value + 0.01 * seed for seed in range(seeds)],
        "tokens_per_second": 1000.0 * more, "trained_tokens_per_second": 1000.0 * more,
        "speed_spread": [990.0 * more, 1010.0 * more],
        "tokens": 60_000 * more, "flops": 1e9 * more, "steps": 60 * more, "seconds": 6.0,
        "peak_bytes": 5_000_000, "seconds_to_slowest": 3.0 + n,
        "decode_ms": {"64": 0.5, "1024": 0.6 + n},
        "decode_spread": {"64": [0.45, 0.55], "1024": [0.55 + n, 0.65 + n]},
        "decode_bytes": {"64": 1024, "1024": 1024 * more}, "state_bytes": 1024 * more,
        "limits": [], "letters": [], "same_as": [],
        "by_position": [[0.0, 2.0], [32.0, 1.5]],
        "sample": {"prompt": f"{NASTY} & ", "text": "after\x00</pre>"},
        "beats_attention_from": 512 if n else None,
    }  # fmt: skip


def _run(member: str, value: float, half: float, seed: int, metric: str) -> dict[str, Any]:
    def spent(step: int) -> dict[str, Any]:
        return {"step": step, "seconds": step / 10, "tokens": 1000 * step, "flops": 1e7 * step}

    evaluations = [
        spent(s) | {"evaluation": _evaluation(value + (60 - s) / 60, half, metric)}
        for s in (20, 40, 60)
    ]
    return {
        "member": member, "seed": seed, "lr": 1e-3, "folder": f"runs/{member}-seed{seed}",
        "status": "done", "evaluation": evaluations[-1]["evaluation"], "evaluations": evaluations,
        "training": [spent(s) | {"loss": 5 - s / 30} for s in range(1, 61, 5)],
    }  # fmt: skip


def _evaluation(value: float, half: float, metric: str) -> dict[str, Any]:
    return {"loss": value, metric: value, f"{metric}_interval": [value - half, value + half]}


def _point(member: str, length: int, n: int) -> dict[str, Any]:
    # attention quadratic, the others linear: they cross at 256
    seconds = 1e-8 * length**2 if n == 0 else 2.5e-6 * length
    return {
        "member": member, "length": length, "source": "everyformer", "work": "pass",
        "status": "ok", "detail": "", "seconds": seconds, "flops": 1, "state_bytes": None,
        "quartiles": [0.9 * seconds, 1.1 * seconds], "peak_bytes": 1000 * length,
    }  # fmt: skip
