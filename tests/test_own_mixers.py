"""Mixers of the user's own: the page's twenty lines, by option, by entry point and in Python."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from everyformer import family
from everyformer.checks.verify import check_law
from everyformer.cli import main
from everyformer.core import plugins
from everyformer.core.errors import ConfigError, GeneError, PluginError, UnsupportedError
from everyformer.core.tasks import TASKS
from everyformer.genes.mixers import MIXERS
from everyformer.genes.positions import POSITIONS

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-member.md"
SIZES = (
    *("--width", "16", "--heads", "2", "--layers", "1", "--length", "16", "--batch", "2"),
    *("--steps", "3", "--training.threads", "1", "--training.evaluate-sequences", "2"),
)


pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the first program of the page in mine.py."""
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert len(code[1].rstrip().splitlines()) <= 25
    (tmp_path / "mine.py").write_text(code[1], encoding="utf-8")
    (tmp_path / "text.txt").write_text("the quick brown fox " * 60, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_page_s_mixer_keeps_every_law(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "cum-mean", "--plugin", "mine.py:CumMean", "--json"]) == 0
    found = {r["law"]: r["status"] for r in json.loads(capsys.readouterr().out)}
    unsaid = {"equation", "streaming", "limits", "cost", "bidirectional", "traffic"}
    assert {law for law, status in found.items() if status == "exempt"} == unsaid
    assert {law for law, status in found.items() if status == "held"} >= {
        *("causality", "padding", "packing", "numbers", "compiles"),
        *("conditions", "gradients", "saving", "determinism"),
    }


def test_the_page_s_state_goes_on_from_any_piece(mine: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (mine / "mine.py").write_text("\n".join(c for c in code if "ef.register" not in c))
    family.register_spec("mine.py:StreamingMean")
    for law in ("streaming", "conditions", "causality", "compiles"):
        result = check_law(family.info("streaming-mean"), law)
        assert result.status == "held", result.detail


def test_every_verb_knows_it(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, plugin = ("--data", "text.txt"), ("--plugin", "mine:CumMean")
    for words, said in (
        (("list",), "Running means: every token reads the mean of those up to it"),
        (("info", "cum-mean"), "a running mean reads the past"),
        (("train", "cum-mean", *data, *SIZES, "--out", "run"), "3 steps"),
        (("eval", "run"), "bits_per_byte"),
        (("generate", "run", "--prompt", "the", "--tokens", "3"), "the"),
        (("show", "run", "encodings"), "png"),
    ):
        assert main([*words, *plugin]) == 0
        assert said in capsys.readouterr().out


def test_printed_commands_know_it_and_a_refusal_says_how(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = ("train", "cum-mean", "--data", "text.txt", *SIZES, "--out", "run")
    for words, printed in (
        (trained, "^next +everyformer .*$"),
        (("info", "cum-mean"), "^try +everyformer train cum-mean .*$"),
        (("convert", "run", "--to", "ours", "--out", "kept"), "^next +everyformer .*$"),
    ):
        assert main([*words, "--plugin", "mine.py:CumMean"]) == 0
        found = re.search(printed, capsys.readouterr().out, re.MULTILINE)
        assert found is not None
        assert f" --plugin {mine / 'mine.py'}:CumMean" in found[0]
    os.environ[plugins.VARIABLE] = ""
    family._known.cache_clear()
    MIXERS._entries.pop("cum-mean", None)
    assert main(["generate", "run", "--prompt", "the"]) == 2
    assert "one of your own is known by --plugin" in capsys.readouterr().err
    assert main(["list", "--plugin"]) == 2
    assert "module:Class or path/file.py:Class" in capsys.readouterr().err


def test_a_plugin_imports_what_lies_beside_it(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (mine / "deep").mkdir()
    (mine / "deep" / "beside.py").write_text("NAME = 'beside-mean'\n", encoding="utf-8")
    text = (mine / "mine.py").read_text(encoding="utf-8")
    text = "from beside import NAME\n" + text.replace('name = "cum-mean"', "name = NAME")
    (mine / "deep" / "mine2.py").write_text(text, encoding="utf-8")
    family.register_spec("deep/mine2.py:CumMean")
    assert family.info("beside-mean").name == "beside-mean"


@pytest.mark.full("half a minute", parts=3)
def test_processes_that_are_started_know_it(mine: Path) -> None:
    """A comparison trains, and a benchmark measures, in processes of their own."""
    words = (
        *("compare", "cum-mean", "--plugin=mine.py:CumMean", "--data", "text.txt"),
        *(*SIZES, "--lengths", "16", "--json"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "everyformer", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert {row["member"]: row["status"] for row in results["rows"]} == {"cum-mean": "done"}
    assert {p["member"]: p["status"] for p in results["bench"]}["cum-mean"] == "ok"


def test_a_class_is_registered_in_python(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import everyformer as ef

    monkeypatch.syspath_prepend(str(mine))
    sys.modules.pop("mine", None)
    from mine import CumMean  # type: ignore[import-not-found]

    row = ef.register(CumMean)
    # nobody said how its time grows with the length
    assert (row.cost.growth, row.cost.time, row.cost.memory) == ("not stated", None, None)
    assert row not in [m for m in ef.list_members() if m.cost.whole <= 2]
    assert (row.name, row.causal, row.cross) == ("cum-mean", True, "it has no cross form")
    assert row.bidirectional == "a running mean reads the past"
    assert "empty_state" in str(row.streaming)
    assert ef.register(CumMean) == row
    model = ef.create_model("cum-mean", width=16, layers=1, heads=2)
    assert type(model.stack.mixers[0]) is CumMean
    assert type(ef.create_mixer("cum-mean", width=8, causal=True)) is CumMean
    assert os.environ[plugins.VARIABLE] == "mine:CumMean"


SAW = """
import everyformer.genes.positions.sinusoidal as waves
from everyformer.genes.positions import POSITIONS

print("imported")


@POSITIONS.register("saw")
class Saw(waves.Sinusoidal):
    name = "saw"


"""


@pytest.fixture
def saw(mine: Path) -> Iterator[Path]:
    """mine.py with a position of its own, too, that prints as it is imported."""
    text = (mine / "mine.py").read_text(encoding="utf-8")
    (mine / "mine.py").write_text(SAW + text, encoding="utf-8")
    yield mine / "mine.py"
    POSITIONS.forget("saw")


def test_a_file_is_executed_once_and_what_it_prints_is_no_output(
    saw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--plugin", "mine.py:CumMean", "--json"]) == 0
    said = capsys.readouterr()
    assert "cum-mean" in {row["name"] for row in json.loads(said.out)}
    assert said.err.splitlines() == ["imported"]
    # and one that was edited again
    first = MIXERS.get("cum-mean")
    saw.write_text(saw.read_text().replace("Running means", "Means"), encoding="utf-8")
    family.register_spec("mine.py:CumMean")
    assert family.info("cum-mean").title.startswith("Means")
    assert MIXERS.get("cum-mean").__doc__ != first.__doc__
    assert capsys.readouterr().err.splitlines() == ["imported"]


def test_a_gene_of_a_file_is_known_in_processes_that_are_started(
    saw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugins.VARIABLE, f"{saw}:CumMean")
    assert POSITIONS.get("saw").name == "saw"


def test_another_class_cannot_take_the_name_of_a_gene(saw: Path) -> None:
    family.register_spec("mine.py:CumMean")
    saw.with_name("other.py").write_text(saw.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match="position 'saw' is registered twice"):
        family.register_spec("other.py:CumMean")


def test_a_class_that_is_registered_again_is_the_one_that_is_made(mine: Path) -> None:
    import everyformer as ef

    def cell() -> type[ef.Mixer]:
        """A notebook's cell, as it is executed once more."""
        space: dict[str, Any] = {"__name__": "__main__"}
        exec((mine / "mine.py").read_text(encoding="utf-8"), space)
        made: type[ef.Mixer] = space["CumMean"]
        return made

    first, second = cell(), cell()
    for each in (first, second):
        ef.register(each)
        assert type(ef.create_mixer("cum-mean", width=8, causal=True)) is each
        model = ef.create_model("cum-mean", width=16, layers=1, heads=2)
        assert type(model.stack.mixers[0]) is each


def test_a_mixer_that_is_causal_only_is_built_and_trained_as_such(mine: Path) -> None:
    """And its row, which is made by building it, draws no numbers: a seed gives the same model."""
    import everyformer as ef

    family.register_spec("mine.py:CumMean")
    drawn = []
    for look in (family.info, family.info, str):
        torch.manual_seed(0)
        look("cum-mean")
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[1], drawn[2])
    with pytest.raises(GeneError, match=r"causal only \(a running mean reads the past\): build it"):
        ef.create_mixer("cum-mean", width=8, causal=False)
    with pytest.raises(UnsupportedError, match="has no task 'mlm'"):
        ef.create_model("cum-mean", "mlm", width=8)
    found = check_law(family.info("cum-mean"), "bidirectional")
    assert (found.status, found.detail) == (
        "exempt", "not bidirectional: a running mean reads the past"
    )  # fmt: skip
    writes = {"lm", "pixels", "decision", "compress"}
    writes |= {name for name, task in TASKS.items() if task.answers}
    assert set(family.info("cum-mean").tasks) == writes


IGNORES = "no output depends on a later token, so it is causal alone"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", IGNORES),
        ("    reads = 'both'\n", IGNORES),
        # it obeys
        ("    def forward_rows(self, rows, state):\n"
         "        mean = rows.x.mean(1, keepdim=True).expand_as(rows.x)\n"
         "        y = super().forward_rows(rows, state).y if self.causal else mean\n"
         "        return MixerOutput(y, None, {})\n", True),
        # it reads no other token, so nothing is found out
        ("    def forward_rows(self, rows, state):\n"
         "        return MixerOutput(self.out(self.value(rows.x)), None, {})\n", True),
        # each token reads the next one alone
        ("    def forward_rows(self, rows, state):\n"
         "        return MixerOutput(rows.x.roll(-1, 1), None, {})\n", True),
        ("    def build(self, max_length):\n"
         "        super().build(max_length)\n"
         "        if not self.causal:\n"
         "            raise GeneError('it looks back')\n", "it looks back"),
    ],
)  # fmt: skip
def test_what_is_both_ways_is_found_by_trying(
    line: str, told: bool | str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.sub(
        r"    causal_only = .*\n", "", (mine / "mine.py").read_text(encoding="utf-8")
    ).replace("cum-mean", "base-mean")
    head = "from everyformer.core.errors import GeneError\n"
    more = f"\n\nclass Mine(CumMean):\n    name = 'mine'\n{line}"
    (mine / "mine.py").write_text(head + text + more, encoding="utf-8")
    family.register_spec("mine.py:Mine")
    row = family.info("mine")
    assert row.bidirectional == told
    assert ("mlm" in row.tasks) == (told is True)
    assert main(["list", "--both-ways"]) == 0
    assert ("\nmine " in capsys.readouterr().out) == (told is True)
    assert main(["list", "--causal"]) == 0
    assert "\nmine " in capsys.readouterr().out


def test_the_loss_of_one_that_looks_ahead_is_said_to_measure_nothing(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (mine / "mine.py").read_text(encoding="utf-8")
    (mine / "mine.py").write_text(code.replace("self.value(rows.x)", "self.value(rows.x.flip(1))"))
    plugin = ("--plugin", "mine.py:CumMean")
    for words in (
        ("train", "cum-mean", "--data", "text.txt", *SIZES, "--out", "run"),
        ("eval", "run"),
    ):
        assert main([*words, *plugin]) == 0
        out, err = capsys.readouterr()
        assert re.search("^baseline +not strictly autoregressive", out, re.MULTILINE)
        assert "better than" not in out
        said = r"output 0 of the mixer 'cum-mean' \(.*mine.py, line \d+\) changes"
        assert re.search(said, out + err)


def test_a_slow_import_has_a_name(mine: Path) -> None:
    text = (mine / "mine.py").read_text(encoding="utf-8")
    seen = "from everyformer.system.status import _works\nWORKS = [*_works]\n"
    (mine / "mine.py").write_text(seen + text, encoding="utf-8")
    assert main(["list", "--plugin", "mine.py:CumMean"]) == 0
    module = sys.modules[plugins.add_spec("mine.py:CumMean").__module__]
    assert module.WORKS[-1] == "still importing mine.py, Ctrl-C stops"


@pytest.mark.parametrize("group", ["mixer alone", "mixer of another name", "broken"])
def test_an_entry_point_without_a_row_is_a_member(
    group: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import everyformer as ef

    name = "mean" if group == "mixer of another name" else "cum-mean"
    value = "mine:Missing" if group == "broken" else "mine:CumMean"
    info = mine / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[everyformer.mixers]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(mine))
    sys.modules.pop("mine", None)
    if group == "mixer alone":
        assert ef.create_mixer("cum-mean", width=8, causal=True).name == "cum-mean"
        assert ef.create_model("cum-mean", width=8, heads=2, layers=1).config.member == "cum-mean"
        return
    said = "calls itself 'cum-mean'"
    if group == "broken":
        said = "the package 'mine' .* fails as it is imported: AttributeError"
    with pytest.raises((ConfigError, PluginError), match=said):
        ef.info("cum-mean")


@pytest.mark.parametrize(
    ("spec", "text", "said"),
    [
        ("mine.py", "", "names no class: write module:Class"),
        ("none.py:A", "", "there is no file '.*none.py'"),
        ("nomodule:A", "", "there is no module 'nomodule': install it, or write module:Class"),
        ("no/folder:A", "", "'no/folder' is neither a module nor a .py file: write module:Class"),
        (".:A", "", "'.' is neither a module nor a .py file"),
        ("bad.py:A", "class B: pass", "has no 'A'; .*B"),
        ("bad.py:A", "class A: pass", "is no mixer: derive a class from everyformer.Mixer"),
        (
            "bad.py:A",
            "from everyformer.genes.mixers.base import StreamingMixer\n"
            "class A(StreamingMixer): pass",
            "has no name: give the class one",
        ),
    ],
)
def test_a_word_that_names_no_mixer_says_why(
    spec: str, text: str, said: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine / "bad.py").write_text(text, encoding="utf-8")
    assert main(["list", "--plugin", spec]) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gmlp", "'gmlp' is a member of this library"),
        ("by-head", "'by-head' is a part of this library: give your mixer another name"),
        ("base", "'base' is a part of this library"),
        ("", "is called '': give it a name of letters, digits, - and _"),
        ("my mean", "is called 'my mean': give it a name"),
        ("mean@2", "is called 'mean@2': give it a name"),
    ],
)
def test_a_mixer_cannot_have_a_name_that_nothing_could_be_made_by(
    name: str, said: str, mine: Path
) -> None:
    text = (mine / "mine.py").read_text(encoding="utf-8").replace("cum-mean", name)
    (mine / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        family.register_spec("mine.py:CumMean")
