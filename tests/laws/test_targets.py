"""Models by name: what is not ours fails in its own name, in one sentence."""

import json

import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.cli import main
from everyformer.core.errors import ConfigError, PluginError, ResourceError, ShapeError
from sequence_laws import check, check_cost, check_streaming
from sequence_laws.adapters import subject_of
from sequence_laws.command import main as laws_main
from sequence_laws.names import is_target
from sequence_laws.targets import target

FILE = """
import sys
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.head = nn.Linear(width, 16)

    def forward(self, x):
        return self.head(self.embed(x).cumsum(1))


class Wants(Net):
    def __init__(self, width, flavour, *, colour):
        super().__init__(width)


class Sized(Net):
    def __init__(self, d_model, n_layer, width=8, *, heads):
        super().__init__(width)
        self.known = d_model, n_layer, width, heads


class Short(Net):
    def forward(self, x):
        return super().forward(x)[:, :-1]


class Pooled(Net):
    def forward(self, x):
        return super().forward(x).mean(1)


class Ragged(Net):
    def forward(self, x):
        return super().forward(x)[:, :-1, 0]


class Named(Net):
    def forward(self, x):
        return {"scores": super().forward(x)[0, 0, 0], "last_hidden_state": super().forward(x)}


class Text(nn.Module):
    def forward(self, x):
        return "text"


class Two(Net):
    def forward(self, x, other):
        return super().forward(x)


class Endless(Net):
    def forward(self, x):
        return super().forward(x) / 0


class Detached(Net):
    def forward(self, x):
        return super().forward(x).detach()


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Fails(Net):
    def forward(self, x):
        if x.shape[0] == 4:
            raise ValueError("four rows are not for me")
        return super().forward(x)


def raises():
    raise RuntimeError("no weights today")


def ends():
    sys.exit(3)


def no_module():
    return {"a": 1}


def huge():
    return nn.Linear(10**7, 10**7)


def downloads():
    from transformers import AutoModel

    return AutoModel.from_pretrained("nobody/has-this")


def talks():
    print("making it")
    return Net()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "theirs.py").write_text(FILE)
    return tmp_path / "theirs.py"


WRONG = [
    ("raises", PluginError, "RuntimeError: no weights today"),
    ("ends", PluginError, "SystemExit: 3"),
    ("huge", ResourceError, "100,000,010,000,000 parameters.*needs at least .* are free"),
    (
        "downloads",
        PluginError,
        "the model '.*downloads' downloads, which .*: .*OSError: We couldn't connect",
    ),
    ("no_module", ConfigError, "gives a dict, which is no model"),
    ("Wants", ConfigError, "wants flavour, colour: name a function that makes"),
    ("Two", ConfigError, "cannot be guessed.*missing 1 required positional argument"),
    ("Short", ShapeError, "gives .2, 11, 16. for inputs of .rows, positions. .2, 12."),
    ("Ragged", ShapeError, "gives .2, 11. for inputs of .rows, positions. .2, 12."),
    ("Text", ConfigError, "no embedding and no width"),
    ("Nett", ConfigError, "has no 'Nett'.*Net"),
]


@pytest.mark.parametrize(("name", "kind", "words"), WRONG, ids=[name for name, *_ in WRONG])
def test_a_model_that_cannot_be_made_or_read_is_refused_in_its_name(file, name, kind, words):
    with pytest.raises(kind, match=words) as caught:
        target(f"{file}:{name}")
    assert name.rstrip("t") in str(caught.value) or "it" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:gpt3", "no model 'gpt3'.*gpt2"),
        ("hf:openai-community/gpt2", "nothing is downloaded"),
        ("onnx:nowhere.onnx", "no file 'nowhere.onnx'"),
        ("nowhere.py:Net", "no file 'nowhere.py'"),
    ],
)
def test_a_name_of_nothing_says_what_there_is(name, words):
    assert is_target(name)
    assert not is_target("linear")
    with pytest.raises(ConfigError, match=words):
        target(name)


def test_sizes_that_must_be_given_are_small_ones_and_stand_in_the_program(file):
    subject = target(f"{file}:Sized")
    assert subject.model.known == (32, 2, 8, 4)
    assert subject.build[-1] == "model = Sized(d_model=32, n_layer=2, heads=4)"
    wide = target(f"{file}:Sized", {"width": 64, "layers": 3, "heads": 8, "vocabulary": 5})
    assert wide.model.known == (64, 3, 64, 8)
    # outputs are found in mappings; one without a cache is not asked for it
    assert target(f"{file}:Named").call_code("x") == "model(x)['last_hidden_state']"
    assert check_streaming(target(f"{file}:Net")).startswith("exempt: it offers no cache")


TRAINS = """
import torch
from theirs import Net

model = Net()
optimiser = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    loss = model(torch.randint(0, 16, (2, 5))).square().mean()
    loss.backward()
    optimiser.step()
    print("step", step, loss.item())
"""


def test_a_file_that_trains_as_it_is_imported_does_so_on_stderr(file, capfd, monkeypatch):
    """As does a function that prints while it makes a model."""
    monkeypatch.syspath_prepend(file.parent)
    trains = file.parent / "trains.py"
    trains.write_text(TRAINS)
    for name, printed in ((f"{trains}:model", "step 2"), (f"{file}:talks", "making it")):
        assert main(["verify", name, "--laws", "batch", "--json"]) == 0
        out, err = capfd.readouterr()
        assert printed in err
        assert [one["status"] for one in json.loads(out)] == ["held"]


def test_a_model_that_fails_breaks_the_law_that_ran_it(file, capfd):
    assert main(["verify", f"{file}:Fails", "--laws", "batch", "gradients"]) == 1
    out = capfd.readouterr().out
    assert "FAILED Fails, gradients: it fails: " in out
    assert "in Fails.forward: ValueError: four rows are not for me" in out
    assert "Traceback" not in out


def test_outputs_that_are_not_finite_break_the_law_of_numbers_alone(file):
    verdicts = {one.law: one for one in check(target(f"{file}:Endless"), laws=["batch", "numbers"])}
    assert verdicts["batch"].status == "undecided"
    assert "not finite" in verdicts["batch"].detail
    assert verdicts["numbers"].status == "failed"


def test_what_carries_no_gradient_breaks_its_law_and_what_asks_for_none_is_exempt(file):
    (verdict,) = check(target(f"{file}:Detached"), laws=["gradients"])
    assert (verdict.status, verdict.detail[:29]) == ("failed", "its outputs carry no gradient")
    for module, known in ((target(f"{file}:Frozen"), {}), (Sum(), {"width": 8})):
        (verdict,) = check(module, laws=["gradients"], **known)
        assert (verdict.status, verdict.detail) == (
            "exempt",
            "none of its parameters asks for a gradient",
        )


class Sum(nn.Module):
    def forward(self, x):
        return x.cumsum(1)


WHOLE = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 32, "max_length": 32}


@pytest.mark.parametrize(
    ("member", "task", "reads_one_way"),
    [
        ("gpt", "lm", "held"),
        ("aft-full", "mlm", "exempt"),
        pytest.param("universal", "lm", "held", marks=pytest.mark.full("seconds")),
    ],
)
def test_whole_models_of_everyformer_are_judged(member, task, reads_one_way):
    model = ef.create_model(member, task, **WHOLE)
    found = {v.law: v for v in check(model, laws=["causality", "streaming", "padding", "saving"])}
    assert [found[law].status for law in ("causality", "streaming")] == [reads_one_way] * 2
    assert [found[law].status for law in ("padding", "saving")] == ["held"] * 2
    assert "its loss is the mean over targets" in found["padding"].detail


def test_the_programs_of_a_whole_model_run():
    model = ef.create_model("gpt", "lm", **WHOLE)
    subject = subject_of(model, build=["model = made"])
    padding_mask = torch.ones(1, 4, dtype=torch.bool)
    x = torch.zeros(1, 4, dtype=torch.long)
    lines = subject.code(
        f"a = {subject.call_code('x', 'padding_mask')}",
        f"b = {subject.loss_code('x', 'x', 'padding_mask')}",
        *subject.feed_code(),
        "c, state = feed(x, None)",
        double=False,
    )
    made = {"made": model, "x": x, "padding_mask": padding_mask}
    exec(lines, made)
    torch.testing.assert_close(made["a"], made["c"])
    assert made["b"].dim() == 0


@pytest.mark.parametrize("task", ["classify-text", "regress-text"])
def test_whole_models_of_one_answer_a_text_are_judged(task):
    model = ef.create_model("bert", task, **WHOLE)
    laws = ["causality", "padding", "batch", "numbers", "determinism", "saving"]
    found = {v.law: v.status for v in check(model, laws=laws)}
    assert found == dict.fromkeys(laws, "held") | {"causality": "exempt"}
    # one that reads no text is refused
    model = ef.create_model("vit", "classify-image", image=(1, 8, 8), width=16, layers=1, heads=2)
    with pytest.raises(ConfigError, match="these laws need one that reads one text"):
        check(model)


def test_a_program_shows_what_went_wrong_as_it_stands(file, tmp_path):
    """What is printed with a broken law runs, and does not print 0."""
    (tmp_path / "leaky.py").write_text(FILE.replace("cumsum(1)", "flip(1).cumsum(1)"))
    (verdict,) = check(target(f"{tmp_path / 'leaky.py'}:Net"), laws=["causality"])
    assert verdict.status == "failed"
    printed: list[torch.Tensor] = []
    exec(verdict.reproduction, {"print": printed.append})
    assert float(printed[0]) > 0.01


def test_what_a_model_reads_can_be_said():
    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(6))

        def forward(self, x):
            return x @ self.weight

    with pytest.raises(ConfigError, match="`width=D` for features"):
        check(Features())
    for known in ({"width": 6}, {"inputs": torch.randn(2, 5, 6)}):
        (verdict,) = check(Features(), laws=["causality"], **known)
        assert verdict.status == "held"
    with pytest.raises(ConfigError, match="expected token ids"):
        check(Features(), inputs=torch.randn(2, 5))


def test_claims_of_cost_have_names_and_numbers():
    linear = nn.Sequential(nn.Linear(8, 8))
    assert "claimed: L^1" in check_cost(linear, "linear")
    assert "claimed: L^1.5" in check_cost(linear, 1.5)
    with pytest.raises(AssertionError, match="grow faster than claimed"):
        check_cost(linear, "constant")
    with pytest.raises(ConfigError, match="linear"):
        check_cost(linear, "liner")


def test_members_and_models_of_anyone_have_the_same_laws(file, capsys):
    words = ["verify", "linear", f"{file}:Net", "--laws"]
    assert main([*words, "causality", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["member"], one["status"]) for one in found] == [
        ("linear", "held"),
        ("Net", "held"),
    ]
    for of_one_kind in ("equation", "batch"):
        assert main([*words, of_one_kind]) == 2
        assert f"unknown law '{of_one_kind}'" in capsys.readouterr().err


OWN_CODE = """
import torch
from torch import nn
from transformers import GPT2Config, PreTrainedModel

(__import__("pathlib").Path(__file__).parent / "ran").touch()


class OwnConfig(GPT2Config):
    model_type = "own"


class OwnForCausalLM(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size)
        self.post_init()

    def forward(self, input_ids):
        from transformers.modeling_outputs import CausalLMOutput

        return CausalLMOutput(logits=self.head(self.embed(input_ids).cumsum(1)))
"""


def test_code_that_a_folder_brings_runs_with_trust_alone(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    monkeypatch.syspath_prepend(tmp_path / "c")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "modeling_own.py").write_text(OWN_CODE)
    auto = {"AutoConfig": "OwnConfig", "AutoModelForCausalLM": "OwnForCausalLM"}
    config = {"model_type": "own", "auto_map": {k: f"modeling_own.{v}" for k, v in auto.items()}}
    (folder / "config.json").write_text(json.dumps(config))
    words = ["check", f"hf:{folder}", "--laws", "causality", "batch"]
    assert laws_main(words) == 2
    said = capsys.readouterr().err
    assert f"the folder '{folder}' brings code of its own (auto_map in its config.json: " in said
    assert "modeling_own.OwnForCausalLM), which runs with --trust alone: read it before" in said
    assert not [*tmp_path.rglob("ran")]
    assert laws_main([*words, "--trust", "--json"]) == 0
    assert [one["status"] for one in json.loads(capsys.readouterr().out)] == ["held", "held"]
    assert [*tmp_path.rglob("ran")]
    subject = target(f"hf:{folder}", trust=True)
    scope = {}
    exec(subject.code("x = torch.ones(1, 4).long()", f"y = {subject.call_code('x')}"), scope)
    assert scope["y"].shape == (1, 4, 128)


def test_a_factory_may_give_a_subject(file):
    from sequence_laws import Subject

    with file.open("a") as text:
        text.write(
            "\ndef both_ways():\n    from sequence_laws.adapters import subject_of\n"
            "    return subject_of(Net(), causal=False)\n"
        )
    subject = target(f"{file}:both_ways")
    assert isinstance(subject, Subject)
    assert (subject.name, subject.causal) == ("both_ways", False)
    assert subject.build[-1] == "model = both_ways().model"
