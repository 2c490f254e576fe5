"""The distribution `sequence-laws` by itself: without everyformer, and by its command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sequence_laws.command import main

PROGRAM = """
import sys
sys.modules["everyformer"] = None  # cannot be imported
import torch
from sequence_laws import check
print(check(torch.nn.GRU(4, 4, batch_first=True), laws=["causality", "streaming"]))
try:
    import everyformer
except ImportError:
    print("alone")
"""
MODEL = """
from torch import nn

class Ahead(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 8)

    def forward(self, x):
        return self.table(x) + self.table(x.roll(-1, 1))
"""


def test_it_needs_nothing_of_everyformer() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.split()[:2] for line in said[:2]] == [["causality", "held"], ["streaming", "held"]]
    assert said[-1] == "alone"


def test_a_quick_look_finds_a_leak_and_imports_no_compiler(tmp_path: Path) -> None:
    """Nor does `import sequence_laws` import anything but itself."""
    (tmp_path / "ahead.py").write_text(MODEL)
    code = """
import sys, torch
before = {*sys.modules}
import sequence_laws
print(*({*sys.modules} - before))
from sequence_laws.command import main
print(main(["ahead.py:Ahead", "--quick", "--format", "github"]), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    imported, annotation, *_, code = done.stdout.splitlines()
    assert imported == "sequence_laws"
    start = "::error file=ahead.py,line=4,title=Ahead breaks causality::outputs before 8%2C when"
    assert annotation.startswith(start)
    assert "%0A%0Aimport torch%0A" in annotation
    assert code == "1 False"


def test_the_command_tells_what_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "ahead.py"
    file.write_text(MODEL)
    words = [f"{file}:Ahead", "--laws", "causality", "gradients"]
    assert main([*words, "--junit", str(tmp_path / "laws.xml")]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == ["member  causality  gradients", "Ahead   FAIL       ok"]
    assert "FAILED Ahead, causality: output 0 moves by" in said.out
    assert said.out.endswith("1 held, 1 failed, 0 do not apply\n")
    assert (tmp_path / "laws.xml").read_text().startswith("<testsuite")
    assert main([*words, "--causal", "False", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in told] == ["exempt", "held"]
    assert main(["check", *words, "--format", "junit"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("<testsuite")
    assert printed.count("<failure") == 1
    assert main(["check", *words, "--format", "json"]) == 1
    broken = json.loads(capsys.readouterr().out)[0]
    assert broken["place"] == f"{file}, line 4"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nosuch.py:Net"], "sequence-laws: there is no file 'nosuch.py'\n"),
        (["hf:gpt2", "--quick", "--laws", "order"], "unknown law 'order'; known: batch, "),
        (["check", "hf:all", "--quick"], "--quick and --deep are of one model, not of hf:all"),
        (["board", "hf"], "'hf' names no models: write LIBRARY:all or FILE.py:all\n"),
        (["hf:gpt2", "--laws", "gradient"], "unknown law 'gradient'; did you mean 'gradients'"),
    ],
)
def test_what_cannot_be_tried_is_one_sentence(words, says, capsys) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert not said.out
