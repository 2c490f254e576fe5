"""A mixer of a package of its own (tests/plugin), installed, works in every verb and law."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everyformer.checks.verify import LAWS

PLUGIN = Path(__file__).parent / "plugin"
SIZES = [
    *("--batch", "2", "--width", "16", "--heads", "2", "--layers", "1", "--length", "32"),
    *("--training.threads", "1", "--training.evaluate-sequences", "2"),
]
VERBS = [
    (["list"], "Exponentially decaying averages"),
    (["info", "decay"], "a at the start, the same in all heads"),
    (["train", "decay", *SIZES, "--steps", "3", "--mixer.start", "0.9", "--out", "run"], "run"),
    (["train", "--resume", "--out", "run", "--steps", "4"], "4 steps"),
    (["eval", "run"], "bits_per_byte"),
    (["generate", "run", "--tokens", "5"], ""),
    (["show", "run", "weights"], "weights.png"),
    (["show", "decay", "kernels"], "How far each head looks back"),
    (["show", "decay", "all"], "kernels.png"),
    (["convert", "run", "--to", "ours", "--out", "saved"], "saved"),
]
PROCESSES = [
    (["bench", "decay", "--lengths", "32", "64"], "decay"),
    (["compare", "decay", "attention", *SIZES, "--steps", "2", "--lengths", "32",
      "--out", "compared"], "report"),
]  # fmt: skip
"""verbs that start processes of their own"""
WRONG = {
    "equation": "mixer.weights = lambda decay, length: 1.01 * honest(decay, length)",
    "causality": "mixer.weights = lambda decay, length: honest(decay, length + 1)[:, 1:, 1:].mT",
    "streaming": "mixer.Decay.init_state = lambda self, *a, **k: begun(self, *a, **k).map("
    "lambda t, _: t + 1 if t.is_floating_point() else t)",
}
"""law -> a change of the package that it must catch"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the package as pip leaves it."""
    source = tmp_path_factory.mktemp("source")
    subprocess.run(["cp", "-r", *map(str, PLUGIN.iterdir()), str(source)], check=True)
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target"]
    pip = [sys.executable, "-m", "pip", "install", *options, str(target), str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    paths = [str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def python(code: str, environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_known(verbs: Any, installed: dict[str, str], folder: Path) -> list[str]:
    """Every verb says what it is to say; the lines that come after it."""
    code = (
        "import contextlib, sys; from everyformer.cli import main\n"
        f"for words in {[words for words, _ in verbs]!r}:\n"
        "    print('>>>', words)\n    assert main(words) == 0, words\n"
        "    if words == ['list']:\n        print('torch' in sys.modules)\n"
        "print('>>> ')\n"
        "with contextlib.redirect_stderr(sys.stdout):\n"
        "    for what in ('zzz', 'kernel', 'sort'):\n"
        "        assert main(['show', 'decay', what]) == 2\n"
    )
    environment = {**installed, "EVERYFORMER_CACHE": str(folder / "cache")}
    *said, refused = python(code, environment, folder).split(">>> ")[1:]
    for (words, expected), out in zip(verbs, said, strict=True):
        assert expected in out.split("\n", 1)[1], words
    return [said[0].splitlines()[-1], *refused.splitlines()[-3:]]


@pytest.mark.full("a whole process of its own for every verb", parts=3)
def test_every_verb_knows_it(installed: dict[str, str], tmp_path: Path) -> None:
    """`list` needs no torch, and its picture is among those that `show` names."""
    torch, unknown, close, lacking = assert_known(VERBS, installed, tmp_path)
    assert torch == "False"
    assert "known: " in unknown
    assert "kernels" in unknown
    assert "did you mean 'kernels'" in close
    assert "decay has no sort to show" in lacking
    assert lacking.endswith("and kernels")


@pytest.mark.full("test_own_mixers starts them with a mixer that is named on the command line")
def test_processes_of_their_own_know_it(installed: dict[str, str], tmp_path: Path) -> None:
    assert_known(PROCESSES, installed, tmp_path)


@pytest.mark.full("three quarters of a minute", parts=3)
def test_its_laws_hold_and_catch_a_wrong_version_of_it(
    installed: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "from decaying import mixer\nfrom everyformer.family import info\n"
        "from everyformer.checks.verify import LAWS, check_law\n"
        "honest, begun = mixer.weights, mixer.Decay.init_state\n"
        "for law in LAWS:\n    print(law, check_law(info('decay'), law).status)\n"
        f"for law, change in {WRONG!r}.items():\n"
        "    exec(change)\n    found = check_law(info('decay'), law)\n"
        "    print('wrong', law, found.status, found.detail[:9])\n"
        "    mixer.weights, mixer.Decay.init_state = honest, begun\n"
    )
    lines = python(code, installed, tmp_path).splitlines()
    held = [line for line in lines if not line.startswith("wrong")]
    assert len(held) == len(LAWS)
    # its row says why it does not read both ways
    assert [line for line in held if not line.endswith(" held")] == ["bidirectional exempt"]
    caught = [line for line in lines if line.startswith("wrong")]
    assert [line.split()[1:3] for line in caught] == [[law, "failed"] for law in WRONG]
    assert all("Error" not in line for line in caught), caught
