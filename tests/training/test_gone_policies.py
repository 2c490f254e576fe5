"""Runs of earlier versions, which had policies: their options are passed over, or refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.cli.trained import open_run
from everyformer.core.config import from_dict
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.data.config import DataConfig
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


def test_options_of_policies_are_passed_over_at_their_defaults(tmp_path: Path) -> None:
    model = saved(tmp_path / "m", policy=POLICY)
    tokens = torch.arange(8)[None]
    assert torch.equal(ef.load(tmp_path / "m")(tokens).logits, model.eval()(tokens).logits)
    assert from_dict(DataConfig, {"source": "copy", **DATA}) == DataConfig("copy")


def test_other_values_of_them_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "m", policy=POLICY | {"clip": 0.3})
    with pytest.raises(ConfigError, match="option 'policy' left the library"):
        ef.load(tmp_path / "m")
    with pytest.raises(ConfigError, match="option 'env' left the library"):
        from_dict(DataConfig, {"env": "CartPole-v1"})


def test_a_policy_is_refused_in_one_sentence_that_names_the_example(tmp_path: Path) -> None:
    saved(tmp_path / "m", task="policy")
    for read in (ef.load, lambda path: open_run(str(path))):
        with pytest.raises(CheckpointError) as caught:
            read(tmp_path / "m")
        assert str(caught.value).endswith(
            "m has the task policy, which is gone, since proximal policy optimisation left the "
            "library for examples/ppo_gtrxl.py: use it with the everyformer that made it, or train "
            "one of another task"
        )
