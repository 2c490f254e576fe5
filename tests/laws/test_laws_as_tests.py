"""The fixture for pytest and the files that continuous integration reads."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sequence_laws.junit import write_junit
from sequence_laws.verdict import LawResult

HERE = Path(__file__).parent
TESTS = """
import pytest
from right_and_wrong import Bare, Right

class Unread(Right):
    def forward(self, x):
        return x @ x.double()

def test_right(sequence_laws):
    verdicts = sequence_laws(Right(), laws=["causality", "streaming"])
    assert [one.status for one in verdicts] == ["held", "held"]

def test_wrong(sequence_laws):
    sequence_laws(Bare("a diagonal too far"), laws=["causality", "batch"])

@pytest.mark.exempt_laws(causality="it is told to leak")
def test_exempt(sequence_laws):
    verdicts = sequence_laws(Bare("a diagonal too far"), laws=["causality", "batch"])
    assert [one.law for one in verdicts] == ["batch"]

@pytest.mark.exempt_laws(causality=" ")
def test_without_a_reason(sequence_laws):
    sequence_laws(Right())

def test_much_wrong(sequence_laws):
    made = Right("a layer that nothing uses")
    wrong = Right("the number of rows")
    wrong.unused = made.unused
    wrong.layers[1].wrong = "a diagonal too far"
    sequence_laws(wrong)

def test_what_cannot_be_read(sequence_laws):
    sequence_laws(Unread())

@pytest.mark.exempt_laws(causalty="misspelt")
def test_a_law_that_there_is_not(sequence_laws):
    sequence_laws(Right())
"""


@pytest.mark.full("a quarter of a minute", parts=3)
def test_the_fixture_fails_with_the_evidence_and_leaves_out_what_is_exempt(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(f"import sys; sys.path.insert(0, {str(HERE)!r})")
    words = ["-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 failed, 2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "exempt_laws(causality=...) has no reason: say why" in done.stdout
    assert "Bare breaks causality: output" in done.stdout
    assert "other[:, " in done.stdout, "the reproduction"
    assert "unknown law 'causalty'; did you mean 'causality'" in done.stdout
    assert "what Unread reads cannot be guessed" in done.stdout
    for law in ("causality", "batch", "gradients"):
        assert f"Right breaks {law}: " in done.stdout
    assert "torch.__trace" not in done.stdout
    assert "Traceback" not in done.stdout
    # as far as the next heading: what follows the last one, warnings perhaps, is not of the failure
    failures = re.split(
        "^_+ test_", re.split("^=+ ", done.stdout, flags=re.MULTILINE)[2], flags=re.MULTILINE
    )[1:]
    assert [len(one.splitlines()) <= 40 for one in failures] == [True] * 4, done.stdout


def test_importing_the_plugin_imports_no_torch():
    code = "import sequence_laws.pytest_plugin, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_verdicts_are_tests_of_junit(tmp_path):
    results = [
        LawResult("Net", "causality", "failed", "output 3 moves <far>", 0.5, "import torch"),
        LawResult("Net", "batch", "held", "alone"),
        LawResult("Net", "padding", "exempt", "it takes no mask"),
    ]
    write_junit(results, tmp_path / "laws.xml")
    suite = ElementTree.parse(tmp_path / "laws.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    failed, held, exempt = suite.findall("testcase")
    assert failed.find("failure").get("message") == "output 3 moves <far>"
    assert failed.find("failure").text == "import torch"
    assert held.find("failure") is None
    assert exempt.find("skipped").get("message") == "exempt: it takes no mask"
