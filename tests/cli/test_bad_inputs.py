"""Bad inputs, one a line: a command line, and the one sentence that answers it.

Every command runs in this process, on a run of three steps; nothing may be written but what is said
to be, and no line may take long. Python calls that the command line cannot make stand below.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import everyformer as ef
from everyformer.cli import main
from everyformer.core.errors import EveryformerError
from everyformer.generation.sampling import stream
from everyformer.generation.state_file import load_state, save_state
from everyformer.training.storage import write_tensors
from sequence_laws.memory import free_memory

SIZES = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "16", "--batch", "4")
TRAIN = ("--data", "text.txt", "--steps", "3", "--training.threads", "1")
HUGE = str(10**12)
NOBODY = "~nosuch-user/x"
MIB = 1 << 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text.txt and two runs in it."""
    made = tmp_path_factory.mktemp("bad")
    (made / "text.txt").write_text("a warm tree and the quick brown fox sleep " * 60)
    (made / "deep.json").write_text("[" * 100_000)
    (made / "deep.toml").write_text("a = " + "[" * 100_000)
    (made / "deep.jsonl").write_text('{"text": ' + "[" * 100_000 + "\n")
    (made / "moods.csv").write_text("text,mood,day\n" + "a b,glad,1\nc d,sad,2\n" * 20)
    (made / "nan.json").write_text('{"member": "gmlp", "training": {"lr": NaN}}')
    (made / "class.json").write_text('{"member": "gmlp", "training": {"__class__": 1}}')
    (made / "member.toml").write_text('member = "attention"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        patch.setenv("EVERYFORMER_CACHE", str(made / "cache"))
        for member in ("attention", "aft-local"):
            run = ("train", member, *TRAIN, *SIZES, "--out", f"runs/{member}")
            assert main(run) == 0
        damage(made)
    return made


def damage(home: Path) -> None:
    """Copies of what was made, each with one thing wrong."""
    (home / "shrunk.txt").write_text((home / "text.txt").read_text())
    words = ("train", "gmlp", "--data", "shrunk.txt", *TRAIN[2:], *SIZES, "--out", "runs/shrunk")
    assert main(words) == 0
    (home / "shrunk.txt").write_text("a warm tree " * 60)
    made = "generate", "runs/attention", "--prompt", "a", "--tokens", "3", "--state"
    assert main((*made, "whole.state")) == 0
    whole = (home / "whole.state").read_bytes()
    (home / "cut.state").write_bytes(whole[: len(whole) // 2])
    (home / "flipped.state").write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
    for name, file in {
        "weights": "checkpoints/step-00000003/model.safetensors",
        "optimiser": "checkpoints/step-00000003/optimiser.safetensors",
        "progress": "checkpoints/step-00000003/state.json",
        "options": "config.json",
        "metrics": "metrics.jsonl",
    }.items():
        shutil.copytree(home / "runs/attention", home / "flipped" / name)
        content = bytearray((home / "flipped" / name / file).read_bytes())
        middle = len(content) // 2
        if file.endswith("json"):
            # in a word, so that it is JSON still
            middle = next(n for n in range(middle, len(content)) if content[n : n + 3].isalpha())
        content[middle] ^= 1
        (home / "flipped" / name / file).write_bytes(content)


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(home / "cache"))
    return home


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No more than a gigabyte beside what this process holds, as `ulimit -v` has it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits of memory are Linux's")
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 1024 * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def train(words: str) -> str:
    member, _, rest = words.partition(" ")
    usual = (*TRAIN, *SIZES)
    pairs = zip(usual[::2], usual[1::2], strict=True)
    kept = (f"{flag} {value}" for flag, value in pairs if flag not in rest.split())
    return f"train {member} {' '.join(kept)} --out made {rest}"


RANGES = [
    (train("gmlp --lr=nan"), "'--training.lr' must be above 0, not nan"),
    (train("gmlp --model.block.dropout=1.5"), "must be at least 0 and below 1, not 1.5"),
    (train("gmlp --model.max-length=-1"), "'--model.max-length' must be at least 1, not -1"),
    (train(f"gmlp --seed {2**64}"), "'--training.seed' must be at least 0 and at most"),
    ("bench attention --width 0", "'--width' must be at least 1, not 0"),
    ("bench attention --lengths 8 --device nowhere", "device 'nowhere' cannot be used here"),
    ("verify gmlp --device nowhere", "device 'nowhere' cannot be used here"),
    ("verify torch:nn.Linear --device meta", "are checked on the CPU"),
    *(
        (f"{verb} runs/attention --device nowhere", "device 'nowhere' cannot be used here")
        for verb in ("calibrate", "eval", "generate", "predict")
    ),
    ("index runs/attention --data text.txt --device nowhere", "'nowhere' cannot be used here"),
    ("generate runs/attention --device meta", "cannot be used here: its tensors have no numbers"),
    (f"compare attention --seeds {HUGE}", "'--seeds' must be at least 1 and at most 1,000"),
    ("show attention --length 10000000", "'--length' must be at least 1 and at most 65,536"),
    ("train gmlp --tokenizer bpe:1000000000000", "a vocabulary has at most 1,000,000 tokens"),
    (train("attention --layers 10000000"), "must be at least 1 and at most 1,024"),
    (f"eval runs/attention --search-exits {HUGE}", "must be at least 1 and at most 10,000"),
]
LARGE = [
    (train("attention --width 10000000"), "TiB of memory, but"),
    (train("attention --batch 1000000000"), "a batch of 1,000,000,000 sequences of 16 tokens"),
    (train("routing --mixer.clusters 1000000000"), "routing: 1,000,000,000 clusters of"),
    (train(f"sinkhorn --mixer.block-size {HUGE}"), f"--mixer.block-size {10**12:,} tokens needs"),
    (train(f"attention --length {HUGE}"), "'text.txt' is too short"),
    (f"eval runs/attention --mode sliding --stride {HUGE}", "--stride must be 1 to 16 tokens"),
    (f"eval runs/attention --lengths {HUGE}", "is too short"),
    (f"generate runs/aft-local --tokens 1 --prompt {'ab' * 50_000}", "over 16 positions"),
]
FILES = [
    ("train gmlp --data text.txt --out=", "was named by an empty text"),
    ("train --config deep.json", "deep.json is not valid JSON: its tables and lists are nested"),
    ("train --config deep.toml", "deep.toml is not valid TOML: its tables and lists are nested"),
    ("train gmlp --data deep.jsonl --out made", "nested too deeply"),
    ("train gtrxl --data moods.csv --data.label-column mood --out made",
     "member 'gtrxl' has no task 'classify-text' (it has lm); members that "),
    ("train --config nan.json", "NaN is no number of JSON"),
    ("train --config class.json", "unknown option 'training.__class__'"),
    ("train gmpl --config member.toml", "unknown member 'gmpl'; did you mean 'gmlp'"),
]  # fmt: skip
PLACES = [
    *(
        (f"{line.replace('~', NOBODY)}", "a user that this machine does not know")
        for line in (
            "train gmlp --data ~ --out made",
            "train gmlp --data text.txt --out ~",
            "train gmlp --config ~",
            "eval ~",
            "generate runs/attention --state ~",
            "show attention --out ~",
            "convert ~ --out made",
            "compare --out ~",
        )
    ),
    *(
        (line, "is an address, and a folder or file of this machine is needed here: mount")
        for line in (
            "train gmlp --data text.txt --out s3://bucket/run",
            "train gmlp --data text.txt --out gs://bucket/run --resume auto",
            "train --resume --out hdfs://host/run",
            "train gmlp --data s3://bucket/text --out made",
            "train gmlp --data text.txt --from s3://bucket/run --out made",
            "compare gmlp --data text.txt --out s3://bucket/compared",
            "compare --resume --out s3://bucket/compared",
            "convert runs/attention --to hf --out s3://bucket/model",
            "convert s3://bucket/run --to hf --out made",
            "eval s3://bucket/run",
            "generate s3://bucket/run",
            "show s3://bucket/compared table",
        )
    ),
    ("compare --resume --out nowhere", "there is no comparison in nowhere to resume"),
    ("eval runs/attention --mode sliding --out x.unknown", "give a name that ends in .png or .svg"),
    ("show attention --out text.txt", "cannot write into text.txt: text.txt is a file"),
    ("show attention --out text.txt/x", "text.txt is a file; choose another --out"),
]


RESUME = "train --resume --steps 5 --out"
DAMAGED = [
    ("generate runs/attention --state flipped.state", "flipped.state was changed or damaged after"),
    ("generate runs/attention --state cut.state", "cut.state cannot be read"),
    ("generate runs/attention --state text.txt", "text.txt cannot be read"),
    ("generate runs/aft-local --state whole.state", "whole.state is one of another model"),
    ("eval flipped/weights", "all 1 checkpoints in flipped/weights/checkpoints are damaged"),
    ("convert flipped/weights --to hf --out made", "all 1 checkpoints in flipped/weights/check"),
    ("eval flipped/options", "config.json was changed or damaged after it was written"),
    (f"{RESUME} flipped/options", "config.json was changed or damaged after it was written"),
    (f"{RESUME} flipped/weights", "flipped/weights/checkpoints are damaged: train again"),
    (f"{RESUME} flipped/optimiser", "flipped/optimiser/checkpoints are damaged: train again"),
    (f"{RESUME} flipped/progress", "flipped/progress/checkpoints are damaged: train again"),
    (f"{RESUME} flipped/metrics", "metrics.jsonl was changed or damaged after it was written"),
    (f"{RESUME} runs/shrunk", "shrunk was started with another model or other data"),
    (f"{RESUME} nowhere", "there is no run in nowhere to resume"),
    # before data are read, which here there are none of
    ("train gmlp --data none.txt --resume --out nowhere", "there is no run in nowhere to resume"),
    ("train gmlp --data none.txt --resume --out runs", "there is no run in runs to resume"),
    ("eval nowhere", "there is no run at nowhere"),
    ("train gmlp --from nowhere --data text.txt --out made", "holds no saved model and no run"),
]
"""what was lost, cut or changed since it was written"""
SYSTEM = [
    (train("gmlp").replace("--out made", "--out /proc/made"), "cannot write into /proc/made: "),
    (train("gmlp").replace("--out made", "--out /dev/full"), "cannot write into /dev/full: "),
    ("reproduce attention --out /proc/made", "cannot write into /proc/made: "),
    ("convert runs/attention --to hf --out /proc/made", "cannot write into /proc"),
    ("show attention --out /proc/made", "cannot write /proc/made/weights.png: "),
]


@pytest.mark.filterwarnings("ignore:checkpoint step-.* is skipped")
@pytest.mark.parametrize(
    ("line", "said"),
    [*RANGES, *FILES, *PLACES, *DAMAGED, *SYSTEM],
    ids=lambda value: str(value)[:60],
)
def test_bad_inputs_are_answered_in_one_sentence(line, said, at_home, refused):
    before = sorted(path.name for path in at_home.iterdir())
    assert said in refused(*line.split())
    assert sorted(path.name for path in at_home.iterdir()) == before


@pytest.mark.parametrize(("line", "said"), LARGE, ids=lambda value: str(value)[:60])
def test_what_cannot_fit_is_refused_with_both_numbers(line, said, at_home, little_memory, capsys):
    assert main(line.split()) in (1, 2)
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert said in told.strip().splitlines()[-1]


def test_what_ulimit_leaves_is_all_there_is(little_memory: None) -> None:
    assert free_memory() <= 1024 * MIB
    with pytest.raises(EveryformerError, match=r"at least 3.7 GiB of memory, but [\d.,]+ [MG]iB"):
        ef.create_model("learned", width=1000, heads=2, max_length=10**6)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(
    ("words", "closing", "code"),
    [
        (["list"], ">&-", 0),
        (["list"], "2>&-", 0),
        (["info", "gmpl"], "2>&-", 2),
        (["generate", "runs/attention", "--tokens", "3", "--prompt", "-"], "<&-", 2),
        (["generate", "runs/attention", "--tokens", "30", "--prompt", "h\u00e4"], "", 0),
    ],
)
def test_streams_that_are_closed_or_narrow_end_nothing(words, closing, code, at_home):
    line = " ".join([sys.executable, "-m", "everyformer", *words, closing])
    own = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["sh", "-c", line], env=own, capture_output=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert b"fault" not in done.stderr + done.stdout


KEYS, NUMBER = "layers.0.keys", "'num_tokens' must be a number of tokens"
STATES: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "no tokens": (lambda t: t.pop("next"), "holds no state of a text"),
    "one token for all": (lambda t: t.update(next=t["next"][0]), "one int64 token a row"),
    "halves of tokens": (lambda t: t.update(next=t["next"] / 2), "one int64 token a row"),
    "tokens below none": (lambda t: t.update(next=t["next"] - 999), "not all below this one's"),
    "tokens beyond all": (lambda t: t.update(next=t["next"] + 10**9), "not all below this one's"),
    "negative": (lambda t: t.update(num_tokens=t["num_tokens"] - 99), NUMBER),
    "endless": (lambda t: t.update(num_tokens=t["num_tokens"] + 2**60), NUMBER),
    "real": (lambda t: t.update(num_tokens=t["num_tokens"].float()), NUMBER),
    "without": (lambda t: t.pop("layers.0.keys"), "'layers.0.keys' is nothing"),
    "more": (lambda t: t.update(other=t["num_tokens"].clone()), "they hold 'other'"),
    "short": (lambda t: t.update({KEYS: t[KEYS][:, :, 1:].clone()}), "do not fit"),
    "flat": (lambda t: t.update({KEYS: t[KEYS][0].clone()}), "'layers.0.keys' is"),
    "halved": (lambda t: t.update({KEYS: t[KEYS].half()}), "float16"),
}


@pytest.mark.parametrize("change", STATES)
def test_forged_states_are_refused(change: str, tmp_path: Path) -> None:
    model = ef.create_model("attention", width=16, heads=2, layers=1, vocabulary=11).eval()
    drawn = stream(model, [1, 2, 3], tokens=4)
    last = list(drawn)[-1]
    assert drawn.state is not None
    file = save_state(tmp_path / "state", drawn.state, last)
    tensors = load_file(file)
    forge, said = STATES[change]
    forge(tensors)
    write_tensors(file, tensors, sealed=True)
    with pytest.raises(EveryformerError) as caught:
        load_state(file, model)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("aliases", ["{", "[1]", '{"a": [1]}', '{"a": "b"}', "[" * 100_000, "NaN"])
def test_forged_names_of_a_state_are_refused(aliases: str, tmp_path: Path) -> None:
    model = ef.create_model("attention", width=16, heads=2, layers=1, vocabulary=11).eval()
    save_file({"next": torch.tensor([1])}, tmp_path / "state", metadata={"aliases": aliases})
    with pytest.raises(EveryformerError, match="cannot be read"):
        load_state(tmp_path / "state", model)


def test_keys_of_python_are_no_options() -> None:
    for key in ("__class__", "__init__", "training.__class__"):
        with pytest.raises(EveryformerError, match="unknown option"):
            ef.create_model("attention", **{key: json})
