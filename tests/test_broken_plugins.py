"""A plug-in that fails, in any way, fails in its own name, with its file and its line."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer import family
from everyformer.checks.verify import check_law
from everyformer.cli import _explained, main
from everyformer.training.config import TrainingConfig
from everyformer.training.optimiser import build_optimiser, check_known
from sequence_laws.foreign import FAILURES, describe

pytestmark = pytest.mark.usefixtures("forgotten")

MIXER = """
import sys
import torch
from dataclasses import dataclass
from torch import Tensor, nn
from everyformer import Mixer
from everyformer.core.config import Options
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State, state
from everyformer.genes.mixers.base import StreamingMixer

@state
class Seen(State):
    num_tokens: Tensor
    last: Tensor

@state
class Other(State):
    num_tokens: Tensor

def begun(batch, like):
    return Seen(torch.zeros(batch, dtype=torch.long), torch.zeros(batch, 1, **like))

class M(StreamingMixer):
    name = "mine"

    def build(self, max_length):
        self.out = nn.Linear(self.width, self.width)

    def forward_rows(self, rows, state):
        y = self.out(rows.x)
        return MixerOutput(y, state, {})

    def empty_state(self, batch, **like):
        return begun(batch, like)

    def text_reference(self, text):
        return self.out(text.x)
"""
Y, BUILD = (
    "        y = self.out(rows.x)\n",
    "        self.out = nn.Linear(self.width, self.width)\n",
)
BACK, CLASS = "MixerOutput(y, state, {})", "class M(StreamingMixer):\n"
BEGUN, LITERAL = "        return begun(batch, like)\n", "        return self.out(text.x)\n"
FUNCTION = """class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        raise ValueError("one\\n" * 5000)  # here

class M(StreamingMixer):
"""
WRONG_OPTIONS = """@dataclass(frozen=True)
class Mine(Options):
    def __post_init__(self):
        1 / 0  # here

class M(StreamingMixer):
    Options = Mine
"""
NO_KEYWORDS = """class M(Mixer):
    name, Options = "mine", Options

    def __init__(self, size):
        super().__init__()

    def forward(self, x, **given):
        return MixerOutput(x, None, {})
"""
DEAF = """
    causal_only = "the past"

    def __init__(self, width, heads=1, **others):
        super().__init__(width=width, heads=heads)
"""
EXTRA = 'from sequence_laws.extras import extra_module\nextra_module("nothing", "knn", "it")\n'
ZERO = r"ZeroDivisionError: division by zero"
ENDED = r"the program was ended \(SystemExit: 0\)"
FAILS = r"the plugin 'PLUGIN:M' fails as it is imported: "
NOT_BUILT = r"the mixer 'mine' \(PLUGIN, line \d+\) cannot be built, causal, 16 wide, .*: "
AT = "PLUGIN, line HERE, in "

MORE = f"{Y}        self.more = nn.Linear(8, 8)\n"

KNOWN = [
    # what stands in its place, exit code, what is said
    ("exits", CLASS, f"sys.exit(0)  # here\n{CLASS}", 1, f"{FAILS}{AT}<module>: {ENDED}"),
    ("fails", CLASS, f"1 / 0  # here\n{CLASS}", 1, f"{FAILS}{AT}<module>: {ZERO}"),
    ("is not Python", CLASS, f"def (:  # here\n{CLASS}", 1, f"{FAILS}PLUGIN, line HERE: Syntax"),
    (
        "needs a package", CLASS, f"import nothing  # here\n{CLASS}", 1,
        f"{FAILS}{AT}<module>: ModuleNotFoundError: No module named 'nothing'",
    ),
    (
        "needs a name", CLASS, f"from torch import nothing  # here\n{CLASS}", 1,
        f"{FAILS}{AT}<module>: ImportError: cannot import name 'nothing'",
    ),
    ("needs an extra", CLASS, EXTRA + CLASS, 1, f"{FAILS}it needs the package 'nothing', which"),
    (
        "has no forward_rows", "def forward_rows", "def forward_row", 2,
        r":M' \(PLUGIN, line \d+\) has no method 'forward_rows'",
    ),
    ("has no build", "def build", "def built", 2, "has no method 'build'"),
    (
        "has no forward", MIXER, "from everyformer import Mixer\nclass M(Mixer): name = 'mine'",
        2, "has no method 'forward'",
    ),
    (
        "has other options", CLASS, f"{CLASS}    Options = int\n", 2,
        "<class 'int'> as its Options: give a frozen dataclass that derives from",
    ),
    ("has wrong options", CLASS, WRONG_OPTIONS, 1, f"{NOT_BUILT}{AT}Mine.__post_init__: {ZERO}"),
    ("cannot be built", BUILD, "        1 / 0  # here\n", 1, f"{NOT_BUILT}{AT}M.build: {ZERO}"),
    (
        "ends as built", BUILD, "        sys.exit(0)  # here\n", 1,
        f"{NOT_BUILT}{AT}M.build: {ENDED}",
    ),
    (
        "loses its direction", BUILD, BUILD + DEAF, 2,
        r"neither causal \(.*\) nor bidirectional \(the past\): an __init__ of its own must take",
    ),
    ("has no keywords", CLASS, f"{NO_KEYWORDS}\nclass N(StreamingMixer):\n", 1, NOT_BUILT + "Type"),
]  # fmt: skip
GAVE = r"the mixer 'mine' \(PLUGIN, line HERE, M.forward_rows\) gave "
SHAPE = r"of float32 on cpu, not \(2, 5, 8\), for x"
RUN = [
    ("raises", Y, "        1 / 0  # here\n", f"{AT}M.forward_rows: {ZERO}"),
    ("ends", Y, "        sys.exit(0)  # here\n", f"{AT}M.forward_rows: {ENDED}"),
    (
        "is not done",
        Y,
        "        raise NotImplementedError  # here\n",
        f"{AT}M.forward_rows: NotImplemented",
    ),
    ("fails in backward", CLASS, FUNCTION, f"{AT}F.backward: ValueError: (one ){{75}}\\.\\.\\. "),
    ("too short", Y, f"{Y}        y = y[:, 1:]\n", rf"{GAVE}y \(2, 4, 8\) {SHAPE}"),
    ("too narrow", Y, f"{Y}        y = y[..., 1:]\n", rf"{GAVE}y \(2, 5, 7\) {SHAPE}"),
    ("one row", Y, f"{Y}        y = y[0]\n", rf"{GAVE}y \(5, 8\) {SHAPE}"),
    ("one number", Y, f"{Y}        y = y.mean()\n", rf"{GAVE}y \(\) {SHAPE}"),
    (
        "double", Y, f"{Y}        y = y.double()\n",
        rf"{GAVE}y \(2, 5, 8\) of float64 on cpu, not \(2, 5, 8\), for x \(2, 5, 8\) of float32",
    ),
    ("elsewhere", Y, f"{Y}        y = y.to('meta')\n", rf"{GAVE}y .* on meta, not "),
    ("nothing", f"return {BACK}", "return None", rf"{GAVE}None, not a MixerOutput\("),
    ("a pair", BACK, "(y, state)", f"{GAVE}a tuple, not a MixerOutput"),
    ("a tensor", BACK, "y", f"{GAVE}a Tensor, not a MixerOutput"),
    ("no y", BACK, "MixerOutput(None, state, {})", f"{GAVE}None as y, not a tensor"),
    ("no losses", BACK, "MixerOutput(y, state, None)", f"{GAVE}None as losses, not a dictionary"),
    (
        "a plain loss", BACK, "MixerOutput(y, state, {'a': 1.0})",
        f"{GAVE}a float as the loss 'a', not a scalar tensor",
    ),
    (
        "a wide loss", BACK, "MixerOutput(y, state, {'a': y})",
        rf"{GAVE}\(2, 5, 8\) of float32 on cpu as the loss 'a', not a scalar tensor",
    ),
]  # fmt: skip
BEGAN = r"the mixer 'mine' \(PLUGIN, line \d+, M.empty_state\) gave "
STREAM = [
    ("raises", BEGUN, "        1 / 0  # here\n", f"{AT}M.empty_state: {ZERO}"),
    ("begins with nothing", BEGUN, "        pass\n", f"{BEGAN}None as the state, not a State"),
    (
        "begins with other rows", BEGUN, "        return begun(batch + 1, like)\n",
        rf"{BEGAN}a state with \(3,\) of int64 on cpu, not 2 rows in each",
    ),
    ("continues none", BACK, "MixerOutput(y, None, {})", f"{GAVE}None as the state, not a Seen"),
    (
        "continues another", BACK, "MixerOutput(y, state and Other(state.num_tokens), {})",
        f"{GAVE}a Other as the state, not a Seen",
    ),
    (
        "continues other rows", BACK,
        "MixerOutput(y, state and Seen(state.num_tokens, y[:1]), {})",
        rf"{GAVE}a state with \(1, 5, 8\) of float32 on cpu, not 2 rows in each",
    ),
]  # fmt: skip
LAW = [
    ("raises", LITERAL, "        1 / 0  # here\n", f"{AT}M.text_reference: {ZERO}"),
    ("ends", LITERAL, "        sys.exit(0)  # here\n", f"{AT}M.text_reference: {ENDED}"),
    ("is narrow", LITERAL, "        return text.x[..., :1]\n", r"reference\) gave y \(1, 1, 1\)"),
]


def rows(table: list[Any]) -> list[Any]:
    return [pytest.param(*case[1:], id=case[0]) for case in table]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


def written(plugin: Path, old: str, new: str) -> str:
    """The plug-in with a change, and the word by which it is known."""
    assert old in MIXER
    plugin.write_text(MIXER.replace(old, new, 1), encoding="utf-8")
    return f"{plugin}:M"


def expected(plugin: Path, said: str) -> str:
    """What is said of a plug-in, with its file and the line that is marked, or of the method."""
    lines = plugin.read_text().splitlines()
    marked = [n for n, line in enumerate(lines, 1) if "# here" in line]
    marked += [n for n, line in enumerate(lines, 1) if "def forward_rows(" in line]
    here = str(marked[0]) if marked else "-"
    return said.replace("PLUGIN", re.escape(str(plugin))).replace("HERE", here)


def answered(error: BaseException, plugin: Path, said: str) -> None:
    """What the command line says of an error, in one sentence, with exit code 1."""
    sentence, code = _explained(error)
    assert code == 1, sentence
    assert re.search(expected(plugin, said), sentence), sentence
    assert "\n" not in sentence
    assert "fault of everyformer" not in sentence


@pytest.mark.parametrize(("old", "new", "code", "said"), rows(KNOWN))
def test_what_no_verb_can_know_is_named(
    old: str, new: str, code: int, said: str, plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--plugin", written(plugin, old, new)]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(expected(plugin, said), line), line
    assert line.startswith("everyformer: ")
    assert "fault of everyformer" not in line


def test_two_plugins_of_one_name_are_refused(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, other = written(plugin, Y, Y), plugin.with_name("other.py")
    other.write_text(MIXER.replace("class M(", "class N("))
    assert main(["list", "--plugin", spec, "--plugin", spec]) == 0
    assert main(["list", "--plugin", spec, "--plugin", f"{other}:N"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        rf"two classes are called 'mine': N \({other}, line \d+\) and M \({plugin}", line
    )
    # with --debug an end of the program has a traceback
    with pytest.raises(RuntimeError, match=r"is imported: .* the program was ended"):
        main(["list", "--debug", "--plugin", written(plugin, CLASS, f"sys.exit(0)\n{CLASS}")])


def test_a_plugin_called_like_that_of_a_package_is_refused(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (plugin.parent / "theirs.py").write_text(MIXER)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    info = plugin.parent / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[everyformer.mixers]\nmine = theirs:M\n")
    monkeypatch.syspath_prepend(str(plugin.parent))
    assert family.info("mine").group == "your own"
    assert main(["list", "--plugin", written(plugin, Y, Y)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "'mine' is the mixer 'mine' of the package 'theirs' (theirs:M): give your mixer" in line


@pytest.mark.parametrize(("old", "new", "said"), rows(RUN))
def test_what_fails_or_gives_something_else_is_named(
    old: str, new: str, said: str, plugin: Path
) -> None:
    spec = written(plugin, old, new)
    if new == FUNCTION:
        plugin.write_text(plugin.read_text().replace(Y, f"{Y}        y = F.apply(y)\n"))
    family.register_spec(spec)
    model = ef.create_model("mine", width=8, heads=2, layers=1, max_length=5, vocabulary=9)
    tokens = torch.arange(10).view(2, 5) % 9
    with pytest.raises(FAILURES) as caught:
        model(tokens, targets=tokens).loss.backward()
    answered(caught.value, plugin, said)


@pytest.mark.parametrize(("old", "new", "said"), rows(STREAM))
def test_a_state_that_is_none_is_named(old: str, new: str, said: str, plugin: Path) -> None:
    family.register_spec(written(plugin, old, new))
    mixer = ef.create_mixer("mine", width=8, causal=True)
    with pytest.raises(FAILURES) as caught:
        mixer(torch.ones(2, 5, 8), state=mixer.init_state(2))
    answered(caught.value, plugin, said)


@pytest.mark.parametrize(("old", "new", "said"), rows(LAW))
def test_a_law_says_where_a_reference_fails(old: str, new: str, said: str, plugin: Path) -> None:
    family.register_spec(written(plugin, old, new))
    found = check_law(family.info("mine"), "equation")
    assert found.status == "failed"
    assert re.search(expected(plugin, said), found.detail), found.detail


@pytest.mark.parametrize("autocast", [False, True])
def test_what_is_right_runs_also_under_autocast(autocast: bool, plugin: Path) -> None:
    family.register_spec(written(plugin, Y, Y))
    mixer, x = ef.create_mixer("mine", width=8, causal=True), torch.ones(2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = mixer(x, state=mixer.init_state(2))
    assert out.y.dtype == (torch.bfloat16 if autocast else torch.float32)


def test_weights_made_as_it_runs_are_named(plugin: Path) -> None:
    family.register_spec(written(plugin, Y, MORE))
    model = ef.create_model("mine", width=8, heads=2, layers=1, max_length=5, vocabulary=9)
    optimiser = build_optimiser(model, TrainingConfig())
    check_known(model, optimiser)
    model(torch.zeros(2, 5, dtype=torch.long))
    said = (
        r"M \(PLUGIN, line \d+\) made weights as it ran \(.*mixer.more.weight\), which no optimiser"
    )
    with pytest.raises(FAILURES) as caught:
        check_known(model, optimiser)
    answered(caught.value, plugin, said)


TRAINED = [case for case in RUN if case[0] in ("one number", "ends")]
TRAINED += [("makes weights", Y, MORE, "made weights as it ran")]


@pytest.mark.parametrize(("old", "new", "said"), rows(TRAINED))
def test_a_training_of_it_ends_with_1_and_its_name(
    old: str,
    new: str,
    said: str,
    plugin: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(plugin.parent)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(plugin.parent / "cache"))
    Path("text.txt").write_text("the quick brown fox " * 60)
    sizes = ("--width", "8", "--heads", "2", "--layers", "1", "--length", "5", "--batch", "2")
    words = ("train", "mine", "--data", "text.txt", "--steps", "1", *sizes, "--out", "run")
    assert main([*words, "--plugin", written(plugin, old, new)]) == 1
    err = capsys.readouterr().err
    assert re.search(expected(plugin, said), err.splitlines()[-1])
    assert "Traceback" not in err


def test_our_own_faults_stay_ours() -> None:
    def fault() -> Any:
        return torch.zeros(2) + torch.zeros(3)

    with pytest.raises(RuntimeError) as caught:
        torch.utils.checkpoint.checkpoint(fault, use_reentrant=False)
    # the test is not of everyformer either, so its own line is left out
    error = caught.value.with_traceback(None)
    assert _explained(error)[0].endswith(
        "(a fault of everyformer or of this machine; --debug shows where)"
    )
    assert describe(error).startswith("RuntimeError: The size of tensor a (2)")
