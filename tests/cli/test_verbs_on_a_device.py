"""Runs trained on a device that is not the host answer there as they do on the host."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everyformer as ef
from every_task import DATA, SIZES, write_data
from everyformer.core.errors import ConfigError

SANDBOX = Path(__file__).parents[1] / "sandbox_device.py"
MEMBERS = {
    "classify-image": "vit",
    "decision": "decision-transformer",
    "lm": "knn-lm",
    "mlm": "bert",
    "pixels": "image-transformer",
    "seq2seq": "transformer",
    "super-resolution": "image-transformer",
}
"""task -> who is trained; attention for others"""
LIKE_OTHERS = {"classify-text", "classify-series", "regress-text", "regress-image"}
ALIKE = pytest.mark.full("its inputs and its head are each tried in another task")
ORDER = ("--model.pixels.order", "blocks", "--model.pixels.tile", "2", "2")
DRAWN = ("generate", "--images", "2")
ANSWERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "decision": (),
    "lm": (("generate", "--prompt", "warm", "--tokens", "5"), ("predict", "warm tree")),
    "pixels": (DRAWN, (*DRAWN, "--complete", "held-out")),
    "seq2seq": (("generate", "--prompt", "warm", "--beam", "2"),),
    "super-resolution": (DRAWN,),
}
"""task -> what its runs are asked beside `eval`; others for what `predict` says of held-out rows"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    write_data(place)
    return place


def near(a: Any, b: Any) -> bool:
    """Whether two documents are the same, of numbers the first five digits."""
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, rel=1e-5, abs=1e-6, nan_ok=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(near(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(near, a, b))
    return bool(a == b)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=ALIKE) if task in LIKE_OTHERS else task for task in DATA]
)
def test_a_run_trained_on_a_device_answers_there_as_on_the_host(task, data, tmp_path):
    run, member = str(tmp_path / "run"), MEMBERS.get(task, "attention")
    more = ORDER if task == "pixels" else ()
    train = ("train", member, "--task", task, *DATA[task], *SIZES, *more, "--out", run)
    asked = (("eval", "--sequences", "2"), *ANSWERS.get(task, (("predict", "--sequences", "2"),)))
    lines: list[list[str]] = [[*train, "--device", "sandbox"]]
    for number, (verb, *words) in enumerate(asked):
        for device in ("sandbox", "cpu"):
            out = f"{tmp_path}/{number}-{device}"
            picture = ["--out", f"{out}.png"] if "--images" in words else []
            where = ["--device", device, *picture]
            lines.append([verb, run, *words, "--json", *where])
    done = subprocess.run(
        [sys.executable, SANDBOX, "--lines"], input=json.dumps(lines), cwd=data, text=True,
        capture_output=True, env={**os.environ, "EVERYFORMER_CACHE": str(data / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trained, *answers = json.loads(done.stdout)
    assert trained["code"] == 0, trained["err"]
    for line, one in zip(lines[1:], answers, strict=True):
        assert one["code"] == 0, (line, one["err"])
    for there, here in zip(answers[::2], answers[1::2], strict=True):
        said = there["out"].replace("-sandbox", "-cpu")
        assert near(json.loads(said), json.loads(here["out"]))
        assert there["ran"] > 0 == here["ran"]
    for picture in tmp_path.glob("*-sandbox.png"):
        other = picture.with_name(picture.name.replace("sandbox", "cpu"))
        assert picture.read_bytes() == other.read_bytes()


def test_python_takes_the_device_that_the_verbs_take(tree: Path, trained: Any) -> None:
    run = trained("attention")
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used here"):
        ef.predict(run, ["warm"], device="nowhere")
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used here"):
        ef.load(run, device="nowhere")
    assert ef.predict(run, ["warm"], device="cpu") == ef.predict(run, ["warm"])
