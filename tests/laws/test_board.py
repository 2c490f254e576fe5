"""Boards of libraries: judged in processes, continued, shown and compared; what cannot be."""

import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from sequence_laws import board as boards
from sequence_laws.adapters import fla, timm, torch_layers, x_transformers
from sequence_laws.against import compare
from sequence_laws.board import VERSION, Entry, read, run
from sequence_laws.command import main
from sequence_laws.errors import ConfigError, PluginError, UnknownNameError
from sequence_laws.judging import LAWS, check
from sequence_laws.libraries import Library
from sequence_laws.pages import WORDS, markdown, page, write_pages
from sequence_laws.targets import chosen, loaded
from sequence_laws.verdict import LawResult

FILE = """
import os, socket, sys, torch
from torch import nn
from sequence_laws import Subject
from sequence_laws.adapters import subject_of

PACKAGES = ("torch", "no-such-distribution")

class Right(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, x):
        return self.head(self.embed(x).cumsum(1))

class Leaks(Right):
    def forward(self, x):
        return self.head(self.embed(x).flip(1).cumsum(1))

class Wants(Right):
    def __init__(self, colour):
        super().__init__()

class Prints(Right):
    def forward(self, x):
        print("<b>here</b> I am")
        return super().forward(x)

class Exits(Right):
    def forward(self, x):
        sys.exit(3)

class Dies(Right):
    "Ends its process for three rows, as in the law of batches alone."

    def forward(self, x):
        if len(x) == 3:
            os._exit(0)
        return super().forward(x)

class Forks(Right):
    def forward(self, x):
        os.fork()
        return super().forward(x)

class Large(Right):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(10**7, 10**7))

class Downloads(Right):
    def __init__(self):
        super().__init__()
        socket.create_connection(("models.example.com", 443))

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no way back")

class NoWayBack(Right):
    def forward(self, x):
        return Backward.apply(super().forward(x))

class AsksForCuda(Right):
    def forward(self, x):
        raise AssertionError("Torch not compiled with CUDA enabled")

class AsksForCudaLate(Right):
    def forward(self, x):
        if len(x) == 3:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return super().forward(x)

def made():
    return subject_of(Leaks(), causal=False)

def of_a_size(size):
    raise AssertionError("it is no factory")

class _Hidden(Right):
    pass

class NoModel:
    pass

held = Right()
"""
TRIED = ["causality", "batch", "gradients"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "boarded.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def folder(file: Path) -> Path:
    """A board of the file, to which nothing is added."""
    out = file.parent / "board"
    assert main(["board", f"{file}:all", "--out", str(out), "--laws", *TRIED]) == 0
    return out


def statuses(board: dict[str, Any]) -> dict[str, list[str]]:
    return {m["model"]: [m["cells"][law]["status"] for law in TRIED] for m in board["models"]}


WRONG = {
    "Wants": "wants colour: name a function",
    "Exits": "cannot be made: .*in Exits.forward: the program was ended .SystemExit: 3.",
    "Forks": "in Forks.forward: RuntimeError: it forks a process, which nothing that is checked",
    "Large": "100,000,000,000,272 parameters and .* needs at least .* are free",
    "Downloads": "downloads, which .*: nothing is downloaded here .from models.example.com.",
    "AsksForCuda": r"needs CUDA \(.*boarded.py, line 72\): check it on a machine with a GPU",
}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_each_model_of_a_file_has_a_verdict_of_each_law(folder: Path) -> None:
    found = read(folder)
    assert found == json.loads((folder / "board.json").read_text())
    assert found["laws"] == TRIED
    other = {
        "Right": ["held", "held", "held"],
        "Leaks": ["failed", "held", "held"],
        "Prints": ["held", "held", "held"],
        "Dies": ["held", "failed", "held"],
        "NoWayBack": ["held", "held", "failed"],
        "AsksForCudaLate": ["held", "undecided", "held"],
        "made": ["exempt", "held", "held"],
    }
    assert statuses(found) == other | {name: ["not_built"] * 3 for name in WRONG}
    models = {one["model"]: one for one in found["models"]}
    assert [*models] == sorted(models)
    for name, words in WRONG.items():
        assert re.search(words, models[name]["not_built"]), models[name]["not_built"]
        assert models[name]["cells"]["batch"]["detail"] == models[name]["not_built"]
    assert models["Dies"]["cells"]["batch"]["detail"] == "its process ended with 0"
    assert "no way back" in models["NoWayBack"]["cells"]["gradients"]["detail"]
    assert "needs CUDA" in models["AsksForCudaLate"]["cells"]["batch"]["detail"]
    assert models["Right"]["versions"].keys() == {"sequence-laws", "torch"}
    assert all(cell["detail"] for one in found["models"] for cell in one["cells"].values())
    program = models["Leaks"]["cells"]["causality"]["program"]
    printed: list[torch.Tensor] = []
    exec(program, {"print": printed.append})
    assert float(printed[0]) > 0.01


def test_a_board_continues_with_what_it_lacks(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is judged again, a law that was not tried is, and parts of files are removed."""
    for source in folder.glob("*/*.json"):
        target = tmp_path / source.parent.name / source.name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(source.read_bytes())
    (part := tmp_path / "boarded.py" / ".Right.json.17").write_text("{")
    (tmp_path / "boarded.py" / "Right.json").unlink()
    before = Entry.read(tmp_path / "boarded.py" / "Leaks.json")
    cells = {"causality": before.cells["causality"]}
    interrupted = Entry(**{**vars(before), "cells": cells, "trying": "batch"})
    interrupted.write(tmp_path / "boarded.py" / "Leaks.json")
    called = []

    def here(judge: Any, calls: Any, **_: Any) -> Iterator[tuple[int, int, float]]:
        for number, (entry, path, laws) in enumerate(calls):
            called.append((entry.model, entry.lacks(laws)))
            judge(entry, path, laws)
            yield number, 0, 0.1

    monkeypatch.setattr(boards, "each", here)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    results = [*run([f"{file}:all"], tmp_path, TRIED, seconds=9, jobs=1, before=folder)]
    assert sorted(called) == [("Leaks", ["batch", "gradients"]), ("Right", TRIED)]
    assert len(results) == len(WRONG) + 3 * (len(read(folder)["models"]) - len(WRONG))
    assert statuses(read(tmp_path)) == statuses(read(folder))
    assert not part.exists()


def test_those_that_took_longest_come_first(file: Path, folder: Path, tmp_path: Path) -> None:
    took = {
        one["model"]: one["seconds"] for one in read(folder)["models"] if one["model"] != "made"
    }
    found = read(folder)
    found["models"] = [one for one in found["models"] if one["model"] in took]
    (tmp_path / "board.json").write_text(json.dumps(found))
    names = [
        one.model for one in boards.begin([f"{file}:all"], tmp_path / "new", tmp_path).values()
    ]
    assert names[0] == "made"
    seconds = [took[name] for name in names[1:]]
    assert seconds == sorted(took.values(), reverse=True)


def test_what_takes_too_long_is_undecided_and_the_laws_behind_it(tmp_path: Path) -> None:
    entry = Entry("hf", "Slow", {}, "", cells={"batch": {}}, trying="numbers", source="hf")
    boards.fill(entry, ["numbers", "saving"], None, 9.0, 9.0)
    told = [(law, one["status"], one["detail"]) for law, one in entry.cells.items() if one]
    assert told == [
        ("numbers", "undecided", "it was not done in 9 s"),
        ("saving", "undecided", "not tried: numbers was not done in 9 s"),
    ]
    killed = Entry("hf", "Large", {}, "", trying="batch", source="hf")
    boards.fill(killed, ["batch", "numbers"], boards.KILLED, 1.0, 9.0)
    assert killed.cells["batch"]["status"] == "undecided"
    assert killed.lacks(["batch", "numbers"]) == ["numbers"]
    lost = Entry("hf", "Lost", {}, "", trying=boards.BUILD, source="hf")
    boards.fill(lost, ["batch"], -11, 1.0, 9.0)
    assert lost.not_built == "its process ended with -11 as the model was made"


SLOW = """
import time
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)

    def forward(self, x):
        time.sleep(0.5)
        return self.embed(x)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="its Ctrl-C is another")
def test_an_interrupted_board_says_so_and_leaves_whole_files(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    code = "import sys; from sequence_laws.command import main; sys.exit(main())"
    words = ["board", f"{tmp_path / 'slow.py'}:all", "--out", str(tmp_path / "out")]
    job = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    file = tmp_path / "out" / "slow.py" / "Slow.json"
    while not file.exists():
        assert job.poll() is None
        time.sleep(0.1)
    job.send_signal(signal.SIGINT)
    error = job.communicate()[1]
    assert job.returncode == 130
    assert error.endswith("sequence-laws: interrupted; a board goes on where it ended\n")
    assert "Traceback" not in error
    assert Entry.read(file).trying


def test_boards_of_other_versions_are_refused(file: Path, folder: Path, tmp_path: Path) -> None:
    entry = Entry.read(folder / "boarded.py" / "Right.json")
    place = tmp_path / "boarded.py" / "Right.json"
    how: dict[str, Any] = {"seconds": 9, "jobs": 1}
    for change, words in (
        ({"board": 2}, "is of a board of version 2, and this is 1: choose another folder"),
        (
            {"versions": {**entry.versions, "torch": "1.0"}},
            "a board of boarded.py with torch 1.0, and here it is .*: choose another folder",
        ),
        ({"versions": {"torch": entry.versions["torch"]}}, "with sequence-laws not there, and"),
        ({"source": "other/boarded.py"}, "other/boarded.py and .* have one name on a board"),
    ):
        Entry(**{**vars(entry), **change}).write(place)
        with pytest.raises(ConfigError, match=words):
            next(run([f"{file}:all"], tmp_path, TRIED, **how))
    for wrong in ('{"board": 1, "size": 3}', '{"member": "gpt"}', "[]", "{"):
        place.write_text(wrong)
        with pytest.raises(ConfigError, match=r"is no .* a board: choose another folder"):
            next(run([f"{file}:all"], tmp_path, TRIED, **how))
    with pytest.raises(ConfigError, match="is no file of a board"):
        read(tmp_path / "nowhere")


def test_libraries_that_are_not_there_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    out = tmp_path / "out"
    assert main(["board", "torch:all", "timm:all", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "the library 'timm' cannot be imported (ModuleNotFoundError: " in said
    assert said.endswith("): install it, or leave out timm:all\n")
    assert not out.exists()
    for name, kind, words in (
        ("timn:all", UnknownNameError, "unknown library 'timn'; did you mean 'timm'"),
        ("torch:GRV", UnknownNameError, "unknown model of torch 'GRV'; did you mean 'GRU'"),
        (f"{tmp_path}/no.py:all", ConfigError, "there is no file"),
    ):
        with pytest.raises(kind, match=words):
            chosen(name)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')")
    with pytest.raises(PluginError, match=r"fails as it is imported: .*RuntimeError: no"):
        chosen(f"{tmp_path}/broken.py:all")


def cell(status: str, detail: str = "so") -> dict[str, str]:
    return {"status": status, "detail": detail, "program": "print(1 < 2)"}


def board_of(models: dict[str, list[str]], laws: list[str] = TRIED, **more: Any) -> dict[str, Any]:
    return {
        "board": VERSION,
        "laws": laws,
        "causes": [],
        "models": [
            {
                "library": "hf",
                "model": model,
                "versions": {"transformers": "5.24.0"},
                "date": "2026-11-29",
                "not_built": "",
                "seconds": 1.0,
                "cells": {law: cell(one) for law, one in zip(laws, found, strict=True)},
            }
            for model, found in models.items()
        ],
        **more,
    }


OLD = {
    "Same": ["held", "failed", "exempt"],
    "Changed": ["held", "failed", "held"],
    "Default": ["failed_by_default", "held", "reported"],
    "Gone": ["failed", "failed", "held"],
}
NEW = {
    "Same": ["held", "failed", "exempt"],
    "Changed": ["failed_by_default", "held", "undecided"],
    "Default": ["failed", "exempt", "held"],
    "New": ["held", "failed", "exempt"],
}


def test_two_boards_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    changes = compare(board_of(OLD), board_of(NEW))
    assert changes.broken == [
        "hf/Changed, causality: held -> failed_by_default: so",
        "hf/New, batch: new -> failed: so",
    ]
    assert changes.quiet == [
        "hf/Changed, gradients: held -> undecided: so",
        "hf/Default, batch: held -> exempt: so",
    ]
    assert changes.mended == ["hf/Changed, batch: failed -> held: so"]
    assert changes.other == [
        "hf/Default, causality: failed_by_default -> failed: so",
        "hf/Default, gradients: reported -> held: so",
    ]
    assert (changes.gone, changes.new) == (["hf/Gone"], ["hf/New"])
    assert changes.red
    # a class that had a cache and has none: quiet alone is red, too
    assert compare(board_of({"A": ["held"] * 3}), board_of({"A": ["held", "exempt", "held"]})).red
    mended = compare(board_of({"A": ["failed"] * 3}), board_of({"A": ["held"] * 3}))
    assert not mended.red
    # a law that one of them did not try is no change, and is named
    fewer = compare(board_of(OLD), board_of({"Same": ["held"]}, ["causality"]))
    assert (fewer.untried, fewer.quiet) == (["batch", "gradients"], [])
    for name, found in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.json").write_text(json.dumps(board_of(found)))
    words = ["board", "--against", str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    assert main(words) == 1
    assert "gone quiet (2):\n  hf/Changed, gradients" in capsys.readouterr().out
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["gone"] == ["hf/Gone"]
    assert main([*words[:3], words[2]]) == 0
    assert capsys.readouterr().out == "nothing differs\n"


CAUSES = """
[[cause]]
cells = ["hf/Same/*"]
says = "thus"
text = "of other words"

[[cause]]
cells = ["hf/Def*/causality", "hf/Same/*"]
text = "a mask that </script> cuts"
place = "modeling_x.py:12"
mended = true

[[cause]]
cells = ["hf/Other/batch"]
text = "it was seen before"
design = true

[[cause]]
cells = ["other/*/batch"]
text = "of another library's board"
"""


def test_pages_show_each_cell_and_each_cause(tmp_path: Path) -> None:
    around, tmp_path = tmp_path, tmp_path / "board"
    tmp_path.mkdir()
    (around / "causes.toml").write_text(CAUSES)  # of all boards that are there
    (tmp_path / "board.json").write_text(json.dumps(board_of(OLD)))
    found = boards.read(tmp_path)
    assert "of another library's board" not in str(found["causes"])
    text = markdown(found)
    assert "- hf: 4 of 4 models made; transformers 5.24.0; 2026-11-29" in text
    assert "| hf | causality | 2 | 1 | 1 |  |  |  |  |" in text
    cause = "### a mask that \\</script> cuts; modeling\\_x.py:12; it holds when that is mended"
    first = text.index(cause)
    assert text.index("- hf, Same, batch: so") > first
    assert text.index("- hf, Default, causality (as called by default): so") > first
    assert text.index("- hf, Gone, batch: so") > text.index("### Not looked at by anybody") > first
    assert text.endswith(
        "## Causes of what is not broken\n\n- hf/Same/*: of other words\n"
        "- hf/Other/batch: it was seen before\n"
    )
    html = page(found)
    data = re.search('id="board">(.*?)</script>', html, re.DOTALL)
    assert data
    inside = json.loads(data[1])
    one = next(one for one in inside["models"] if one["model"] == "Same")
    assert one["cells"]["batch"]["cause"]["place"] == "modeling_x.py:12"
    assert one["cells"]["batch"]["program"] == "print(1 < 2)"
    assert inside["words"] == WORDS
    # nothing of it comes from elsewhere
    assert not re.search(r"(src|href)=|https?://|@import|url\(", html)
    # a cause that was found later is on the pages that are written again
    assert main(["board", "--out", str(tmp_path)]) == 0
    written = (tmp_path / "board.json").read_text()
    assert json.loads(written) == {**board_of(OLD), "causes": found["causes"]}
    assert sum('"model":' in line for line in written.splitlines()) == len(found["models"])
    assert "modeling_x.py:12" in (tmp_path / "index.html").read_text()
    for wrong in ('cause = "x"', "[[cause]]\ntext = 'x'", "[[cause]]\ncells='a'\ntext='b'", "["):
        (tmp_path / "causes.toml").write_text(wrong)
        with pytest.raises(ConfigError, match="is no list of causes"):
            write_pages(tmp_path)


def test_a_model_that_was_not_tried_by_a_law_says_so(tmp_path: Path) -> None:
    for name, law in (("A", "batch"), ("B", "causality")):
        entry = Entry("hf", name, {}, "2026-11-29", source="hf")
        entry.add(law, "held", "so")
        entry.write(tmp_path / "hf" / f"{name}.json")
    (one, other) = read(tmp_path)["models"]
    assert one["cells"]["causality"] == {"status": "undecided", "detail": "it was not tried"}
    assert other["cells"]["causality"]["status"] == "held"


def test_the_members_are_a_library() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    groups = tomllib.loads(project.read_text())["project"]["entry-points"]
    value = groups["sequence_laws.libraries"]["everyformer"]
    library: Library = EntryPoint("everyformer", value, "").load()
    names = library.groups()["all"]
    assert len(names) >= 46
    verdicts = {
        one.law: one.status
        for one in check(library.subject("aft-full"), laws=["batch", "causality"])
    }
    assert verdicts["batch"] == "held"
    subject = library.subject("attention")
    assert [one.status for one in check(subject, laws=["causality", "streaming"])] == ["held"] * 2
    assert library.versions["everyformer"]


@pytest.mark.filterwarnings("ignore")  # of torch, of nested tensors
@pytest.mark.parametrize("name", torch_layers.MODELS)
def test_layers_of_torch_are_called_as_they_are_meant(name: str) -> None:
    subject = loaded("torch").subject(name)
    one_way = name.endswith("causal") or name.startswith(("RNN", "GRU", "LSTM"))
    assert subject.causal == (one_way and not name.endswith("both ways"))
    found = {one.law: one for one in check(subject, depth="quick")}
    assert {one.status for one in found.values()} <= {"held", "exempt"}
    assert found["batch"].status == "held"
    scope: dict[str, Any] = {"x": subject.inputs.draw(2, 6)}
    program = subject.code(f"y = {subject.call_code('x')}", double=False)
    if subject.masks:
        scope["padding_mask"] = torch.ones(2, 6, dtype=torch.bool)
        program += f"\nz = {subject.call_code('x', 'padding_mask')}"
    exec(program, scope)
    expected = subject.run(subject.copy(torch.float32), scope["x"])
    torch.testing.assert_close(scope["y"], expected)
    if subject.masks:
        torch.testing.assert_close(scope["z"], expected)


@pytest.mark.full("seconds for each of forty models")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("library", "name"),
    [
        *(("x-transformers", name) for name in x_transformers.LAYERS),
        *(("timm", name) for name in (*timm.VIT, *timm.MIXERS)),
        *(("fla", name) for name in fla.OPERATORS),
    ],
)
def test_models_of_libraries_are_called_as_they_are_meant(library: str, name: str) -> None:
    package = {"x-transformers": "x_transformers"}.get(library, library)
    if library == "fla":  # of whose operators a release has some
        package = f"fla.ops.{name.partition('.')[0]}.naive"
    pytest.importorskip(package)
    subject = loaded(library).subject(name)
    found = {one.law: one for one in check(subject, depth="quick")}
    known = {("x-transformers", "decoder sparse"), ("x-transformers", "decoder shifted tokens")}
    if (library, name) not in known:
        assert {one.status for one in found.values()} <= {"held", "exempt", "undecided"}, found
    assert subject.causal == (library == "fla" or name.startswith("decoder"))
    if name == "decoder cross attention":  # whose context no weight moves
        assert [one.status for one in check(subject, laws=("gradients",))] == ["held"]
    if library == "timm":
        x = torch.arange(2 * 3 * 32 * 32).float().view(2, 3, 32, 32)
        patches = x.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 1, 4, 5).reshape(2, 16, -1)
        assert torch.equal(timm.pictures(patches), x)


def test_results_of_an_entry_are_those_of_its_laws() -> None:
    entry = Entry("hf", "A", {}, "", source="hf")
    entry.add("batch", "failed", "so", "print(1)", 0.5)
    assert [*entry.results(["batch"])] == [LawResult("A", "batch", "failed", "so", 0.5, "print(1)")]
    entry.not_built = "no"
    assert [one.status for one in entry.results([*LAWS])] == ["not_built"]
