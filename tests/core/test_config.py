"""Configs: plain values and back, exactly; anything else is an error that helps."""

import json

import pytest

from everyformer import create_mixer, create_model
from everyformer.blocks.options import BlockOptions
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError
from everyformer.core.explained import field_docs
from everyformer.genes.config import ModelConfig
from everyformer.genes.feedforward import FEEDFORWARDS
from everyformer.genes.memory import MEMORIES
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.attention.options import AttentionOptions
from everyformer.genes.positions import POSITIONS
from everyformer.models.build import configure
from everyformer.training.config import TrainingConfig


@pytest.mark.parametrize("name", ["attention", "gpt", "aft-local", "gmlp"])
def test_a_config_survives_json(name):
    config = configure(name, "lm", width=32, heads=2)
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(config)))) == config


WRONG = [
    ({"windw": 3}, "unknown option `windw`; did you mean 'window'"),
    ({"window": "wide"}, "`window` must be"),
    ({"qk_norm": 1}, "`qk_norm` must be bool, not 1"),
    ({"bias": ["querry"]}, "did you mean 'query'"),
    ({"widths": {"key_dims": 3}}, "unknown option `widths.key_dims`"),
    ({"widths": 3}, "must be a table"),
    ({"kv_heads": 2.5}, "`kv_heads` must be"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_wrong_values_say_what_was_expected(values, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(AttentionOptions, values)
    # none is refused where it is no choice
    with pytest.raises(ConfigError, match=r"`longformer.window` must be int \| tuple.*, not None"):
        create_mixer("longformer", width=16, heads=2, window=None)
    assert create_mixer("attention", width=16, heads=2, window=None).options.window is None


def test_every_option_is_explained():
    undocumented = []
    for registry in (MIXERS, POSITIONS, MEMORIES, FEEDFORWARDS):
        for name in registry.names():
            options = registry.get(name).Options
            docs = field_docs(options)
            undocumented += [f"{name}.{f}" for f in to_dict(options()) if f not in docs]
    for cls in (ModelConfig, TrainingConfig):
        undocumented += [f for f in vars(cls()) if f not in field_docs(cls)]
    assert not undocumented


def test_every_option_has_a_name_of_its_own():
    """Loose options of create_model find their home by name, so no two homes share one."""
    shared = {"name"} | set(to_dict(ModelConfig())) | set(to_dict(BlockOptions()))
    for registry in (MIXERS, POSITIONS, MEMORIES, FEEDFORWARDS):
        for name in registry.names():
            assert not shared & set(to_dict(registry.get(name).Options())), name


CLASHES = [
    ({"width": 30, "heads": 4}, "`width=30` is not divisible by `heads=4`"),
    ({"kv_heads": 3}, "`heads=4` is not a multiple of `kv_heads=3`"),
    ({"layers": 0}, "`layers` must be at least 1"),
    ({"window": (1, 2, 3)}, "one for each of"),
    ({"position": "rope", "width": 12}, "even number"),
    ({"pooling": "class"}, "pooling='class'.*causal=True"),
    ({"causal": False}, "`causal=False` would leak"),
    ({"mixer": "aft-full", "position": "rope"}, r"position 'rope'.*mixer 'aft-full'"),
]


@pytest.mark.parametrize(("options", "message"), CLASHES)
def test_contradictions_are_refused_when_the_model_is_built(options, message):
    with pytest.raises(ConfigError, match=message):
        create_model("attention", **{"width": 32, "heads": 4, **options})
