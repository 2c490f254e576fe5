"""Searching thresholds of early exits: what is tried, and which are on the front."""

from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError
from everyformer.data.config import DataConfig
from everyformer.data.load import load_dataset
from everyformer.genes.depth.early_exits import exit_of, set_threshold
from everyformer.lab.exits.search import Tried, pareto, read_tries, search_thresholds, write_tries
from everyformer.training.evaluate import evaluate


@pytest.mark.parametrize("depth", ["calm", "depth-adaptive"])
def test_each_is_what_eval_gives(depth: str) -> None:
    torch.manual_seed(0)
    data = load_dataset(DataConfig(source="copy", length=16), "lm")
    model = ef.create_model(
        "rope", vocabulary=data.vocabulary, width=16, heads=2, layers=4, max_length=16, depth=depth
    )
    before = exit_of(model).options
    found = list(search_thresholds(model, data, 6, limit=8))
    assert exit_of(model).options == before
    assert found[0].thresholds == ()
    assert found[0].depth == 4
    own = [one for one in found if len(one.thresholds) == 3]
    assert len(own) == (3 if depth == "depth-adaptive" else 0)
    assert len(found) == 7
    for one in found[1:]:
        set_threshold(model, one.thresholds)
        again = evaluate(model, data, limit=8)
        assert (again["mean_depth"], again["loss"]) == (one.depth, one.loss)


def test_the_front_is_what_nothing_beats_and_what_is_kept_is_read(tmp_path: Path) -> None:
    places = [(3.0, 1.0), (1.0, 2.0), (2.0, 2.5), (2.0, 1.5), (4.0, 1.0), (1.0, 3.0)]
    tried = [Tried((), depth, loss, 0.0) for depth, loss in places]
    found = [(one.depth, one.loss) for one in pareto(tried)]
    assert found == [(1.0, 2.0), (2.0, 1.5), (3.0, 1.0)]
    tried = [Tried((), 3.0, 1.0, 0.5), Tried((0.25, 0.5), 1.0 / 3, 2.0, 0.1)]
    write_tries(tmp_path / "found.json", tried)
    assert read_tries(tmp_path / "found.json") == tried


def test_as_many_thresholds_as_layers_but_the_last() -> None:
    sizes = {"vocabulary": 9, "width": 16, "heads": 2, "layers": 4, "max_length": 16}
    calm, adaptive = (ef.create_model("rope", depth=d, **sizes) for d in ("calm", "depth-adaptive"))
    for model, count, told in (
        (calm, 3, "takes 1"),
        (adaptive, 2, "takes 1 or 3, one for each layer but the last"),
    ):
        with pytest.raises(ConfigError, match=told):
            set_threshold(model, [0.5] * count)
    set_threshold(adaptive, [0.1, 0.2, 0.3])
    assert exit_of(adaptive).options.thresholds == (0.1, 0.2, 0.3)
    set_threshold(adaptive, 0.4)
    assert (exit_of(adaptive).options.threshold, exit_of(adaptive).options.thresholds) == (0.4, ())
