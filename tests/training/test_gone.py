"""Runs of earlier versions: what is gone of their options has its default, or they are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.cli import main
from everyformer.cli.trained import open_run
from everyformer.cli.verbs.train import read_run
from everyformer.core.config import Options, from_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.core.tasks import GONE, TASKS
from everyformer.data.config import DataConfig
from everyformer.genes.retrieval import KnnOptions
from everyformer.interop.hf import EveryformerConfig
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.report.compare import described
from everyformer.models.build import configure
from everyformer.system.plain import from_json
from everyformer.system.sealed import write_json
from everyformer.training.spec import resumed

SIZES = {"width": 8, "heads": 2, "layers": 1, "max_length": 8, "vocabulary": 20}
POLICY = {
    "horizon": 128, "segment": 32, "epochs": 4, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2,
    "value_weight": 0.5, "value_clip": None, "entropy": 0.001, "recompute_memory": False,
}  # fmt: skip
DATA = {"env": None, "env_mask": [], "env_number": 8, "env_options": []}


def saved(folder: Path, **options: Any) -> torch.nn.Module:
    """A saved model whose config.json says more than it does today."""
    model = ef.create_model("gpt", "lm", **SIZES)
    ef.save(model, folder)
    values = from_json((folder / "config.json").read_text(encoding="utf-8"))
    del values["digest"]
    values["config"] |= options
    write_json(folder / "config.json", values)
    return model


def test_options_that_are_gone_are_passed_over_at_their_defaults(tmp_path: Path) -> None:
    levels = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
    model = saved(tmp_path / "m", horizon=1, quantiles=levels, policy=POLICY)
    tokens = torch.arange(8)[None]
    assert torch.equal(ef.load(tmp_path / "m")(tokens).logits, model.eval()(tokens).logits)
    former = {"horizon": None, "season": None, "time_column": None, "past_column": []}
    former |= {"alphabet": "auto", "strands": "one", **DATA}
    searched = {"kind": "auto", "exclude_self": False, "k": 3}
    assert from_dict(KnnOptions, searched) == KnnOptions(k=3)
    assert from_dict(DataConfig, {"source": "copy", **former}) == DataConfig("copy")


def test_other_values_of_them_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "m", horizon=2)
    with pytest.raises(ConfigError, match="`horizon` left the library: 2 is for an earlier"):
        ef.load(tmp_path / "m")
    with pytest.raises(ConfigError, match="`kind` left the library: 'ivf' is for an earlier"):
        from_dict(KnnOptions, {"kind": "ivf"})
    saved(tmp_path / "n", policy=POLICY | {"clip": 0.3})
    with pytest.raises(ConfigError, match="option `policy` left the library"):
        ef.load(tmp_path / "n")
    for name, value in (("season", 7), ("alphabet", "dna"), ("env", "CartPole-v1")):
        with pytest.raises(ConfigError, match=f"`{name}` left the library: {value!r} is"):
            from_dict(DataConfig, {name: value})


def with_gone(kind: type[Any] = Options) -> list[type[Any]]:
    """Classes of options of genes, of which some are gone."""
    below = [one for each in kind.__subclasses__() for one in with_gone(each)]
    own = [kind] if kind.__module__.startswith("everyformer.genes.") and kind.gone else []
    return own + [one for one in below if one not in own]


@pytest.mark.parametrize("kind", dict.fromkeys(with_gone()), ids=lambda one: one.__name__)
def test_options_of_genes_that_are_gone_are_read_at_their_defaults_alone(kind: type[Any]) -> None:
    assert from_dict(kind, dict(kind.gone)) == kind()
    assert not {*kind.gone} & {*vars(kind())}
    for name, usual in kind.gone.items():
        with pytest.raises(ConfigError, match=f"`{name}` left the library: 'x' is for an earlier"):
            from_dict(kind, {name: "x"})
        assert usual != "x"


@pytest.mark.parametrize("task", GONE)
def test_a_model_of_a_task_that_is_gone_is_refused_in_one_sentence(task, tmp_path):
    assert task not in TASKS
    saved(tmp_path / "m", task=task)
    for read in (ef.load, lambda path: open_run(str(path))):
        with pytest.raises(CheckpointError) as caught:
            read(tmp_path / "m")
        assert f"has the task {task}, which is gone, since {GONE[task]}: use it" in str(
            caught.value
        )


def former(file: Path) -> None:
    """Makes a description of what was saved one of an earlier version."""
    values = from_json(file.read_text(encoding="utf-8"))
    values.pop("digest", None)
    for part in ("config", "model", "run"):
        if part in values:
            values[part]["wiring"] = values[part].pop("residual")
    write_json(file, values)
    assert "residual" not in file.read_text(encoding="utf-8")


def test_a_saved_model_and_a_run_of_wiring_post_are_read_as_residual_post(tmp_path: Path) -> None:
    model = ef.create_model("gpt", "lm", residual="post", **SIZES)
    ef.save(model, tmp_path / "m")
    former(tmp_path / "m" / "config.json")
    tokens = torch.arange(8)[None]
    assert torch.equal(ef.load(tmp_path / "m")(tokens).logits, model.eval()(tokens).logits)
    assert open_run(str(tmp_path / "m")).config.genes["residual"].name == "post"
    (tmp_path / "t.txt").write_text("a plain text, " * 40)
    sizes = ["--width", "8", "--heads", "2", "--layers", "1", "--residual", "post"]
    data, out = (
        ["--data", str(tmp_path / "t.txt"), "--batch", "2", "--length", "8"],
        str(tmp_path / "run"),
    )
    assert main(["train", "gpt", *sizes, *data, "--steps", "1", "--out", out]) == 0
    before = ef.load(out)(tokens).logits
    former(tmp_path / "run" / "config.json")
    assert torch.equal(ef.load(out)(tokens).logits, before)
    spec = resumed(out, "gpt")
    assert spec is not None
    assert spec.genes["residual"].name == "post"
    assert main(["train", "--resume", "--out", out, "--steps", "2"]) == 0
    assert main(["train", "--from", out, *data, "--steps", "1", "--out", f"{out}2"]) == 0


def test_descriptions_with_wiring_are_read_without_a_word() -> None:
    gated = {"name": "gated", "gate": "output"}
    compared = from_dict(CompareConfig, {"wiring": gated})
    assert compared.genes["residual"].get("gate") == "output"
    assert EveryformerConfig({"wiring": "post"}).model_config.genes["residual"].name == "post"
    with pytest.raises(ConfigError, match="`residual` is given twice, as `wiring` too: leave `wir"):
        from_dict(CompareConfig, {"wiring": "post", "residual": "pre"})


def test_wiring_is_residual_wherever_a_person_says_it_with_a_warning(tmp_path: Path) -> None:
    said = "'wiring' is 'residual' now"
    own = {"gate": "output"}
    with pytest.warns(FutureWarning, match=said):
        config = configure("gpt", wiring="gated", wiring_options=own)
    assert config == configure("gpt", residual="gated", residual_options=own)
    with pytest.warns(FutureWarning, match=said):
        assert described(["gpt"], wiring="post") == described(["gpt"], residual="post")
    file = tmp_path / "run.toml"
    file.write_text('[wiring]\nname = "gated"\ngate = "output"\n')
    for words in (["--config", str(file)], ["--wiring", "gated", "--wiring.gate=output"]):
        with pytest.warns(FutureWarning, match=said):
            genes = read_run(["gpt", *words])[2].genes
        assert (genes["residual"].name, genes["residual"].get("gate")) == ("gated", "output")
    # a value is none of the options
    assert read_run(["gpt", "--out", "wiring"])[2].out == "wiring"
