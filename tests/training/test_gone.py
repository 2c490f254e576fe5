"""Runs of earlier versions: what is gone of their options has its default, or they are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.cli.trained import open_run
from everyformer.core.config import Options, from_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.core.tasks import GONE, TASKS
from everyformer.data.config import DataConfig
from everyformer.genes.retrieval import KnnOptions
from everyformer.system.plain import from_json
from everyformer.system.sealed import write_json

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
