"""`--json` of every verb: one JSON document on stdout, and nothing else there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from everyformer.cli import VERBS
from everyformer.lab.bench.points import Point
from everyformer.lab.compare.compare import Outcome

SMALL = "--length 16 --batch 4 --width 16 --layers 1 --heads 2 --threads 1"
LINES: dict[str, tuple[str, ...]] = {
    "list": ("--task lm",),
    "info": ("gmlp",),
    "train": (f"gmlp --data text.txt --steps 2 {SMALL} --out made",),
    "eval": ("RUN", "RUN --lengths 8"),
    "predict": ("RUN text",),
    "generate": ("RUN --tokens 3", "RUN --tokens 3 --prompt a --prompt b"),
    "index": ("RUN --data text.txt --out store --key attention-output",),
    "calibrate": (
        "CALM --tokens 2 --prompt-length 4 --prompts 60 --delta 0.5 --thresholds 0.9 0.5",
    ),
    "convert": ("RUN --to program --out made.pt2",),
    "compare": ("gmlp aft-full --data text.txt",),
    "verify": ("gmlp --laws causality",),
    "bench": ("gmlp --lengths 8",),
    "show": ("RUN spatial", "gmlp masks"),
    "reproduce": ("gmlp",),
    "doctor": ("", "gmlp --length 16"),
}
"""verb -> words after which it prints a result"""


@pytest.mark.full("seconds each", parts=3)
def test_every_verb_prints_one_document(say, trained, monkeypatch):
    run, calm = str(trained()), str(trained("calm"))
    found = {"experiment": "e", "holds": True, "figures": [], "numbers": {}}
    monkeypatch.setattr("everyformer.lab.experiments.base.perform", lambda *_: found)
    point = Point("gmlp", 8, seconds=1.0, quartiles=(1.0, 1.0))
    monkeypatch.setattr("everyformer.lab.bench.bench.bench", lambda *_, **__: [point])
    compared = Outcome([], cast(Any, {"rows": []}), Path(run))
    monkeypatch.setattr("everyformer.lab.compare.compare.run_comparison", lambda *_, **__: compared)
    assert LINES.keys() == VERBS.keys()
    for verb, lines in LINES.items():
        for line in lines:
            code, out, err = say(
                verb, *line.replace("RUN", run).replace("CALM", calm).split(), "--json"
            )
            assert code == 0, err
            assert json.loads(out), f"{verb} {line}"


def test_an_endless_text_has_no_document(refused: Callable[..., str], trained: Callable) -> None:
    run = str(trained("aft-simple"))
    assert "--tokens" in refused("generate", run, "--tokens", "none", "--json")
