"""An option that only one form of its part reads is refused beside another form."""

import tomllib
from typing import Any, get_args

import pytest
from test_bounds import OPTIONS

import everyformer as ef
from everyformer.cli.run_options import read_run
from everyformer.core.bounds import Condition
from everyformer.core.config import field_types, from_dict
from everyformer.core.errors import ConfigError
from everyformer.genes.depth import DEPTHS
from everyformer.genes.memory import MEMORIES
from everyformer.genes.mixers import MIXERS
from everyformer.genes.model_options import DecisionOptions, PixelOptions, SummaryOptions
from everyformer.genes.positions import POSITIONS
from everyformer.genes.wirings import WIRINGS
from everyformer.training.config import TrainingConfig


def mixer(name: str) -> Any:
    return MIXERS.get(name).Options  # type: ignore[attr-defined]


CASES: list[tuple[Any, dict[str, Any], str, dict[str, Any]]] = [
    # options, what is given, what is said, with which it is read
    (TrainingConfig, {"min_lr_ratio": 0.2, "schedule": "noam"},
     "'min_lr_ratio'=0.2 is read with schedule='cosine' or 'linear' or 'constant' alone, and "
     "schedule is 'noam': leave 'min_lr_ratio' out", {"schedule": "linear"}),
    (PixelOptions, {"tile": [2, 6]}, "'tile'=(2, 6) is read with order='blocks' alone, and order "
     "is 'raster': leave 'tile' out", {"order": "blocks"}),
    (PixelOptions, {"mixtures": 3}, "'mixtures'=3 is read with output='mixture' alone, and output "
     "is 'categorical'", {"output": "mixture"}),
    (SummaryOptions, {"every": 4}, "'every'=4 is read with per='tokens' alone, and per is None",
     {"per": "tokens"}),
    (SummaryOptions, {"cpc_share": 0.5}, "'cpc_share'=0.5 is read with another cpc than 0 alone, "
     "and cpc is 0.0: leave 'cpc_share' out", {"cpc": 0.5}),
    (SummaryOptions, {"cpc_temperature": 0.5}, "'cpc_temperature'=0.5 is read with another cpc",
     {"cpc": 0.5}),
    (SummaryOptions, {"cpc_stop": True}, "'cpc_stop'=True is read with another cpc than 0 alone",
     {"cpc": 0.5}),
    *((DecisionOptions, {"body": "mlp", name: value},
       f"'{name}'={value!r} is read with body='layers' alone, and body", {"body": "layers"})
      for name, value in (("variant", "atari"), ("return_to_go", False), ("state_weight", 1.0),
                          ("return_weight", 1.0))),
    (mixer("bigbird"), {"extra_tokens": 3}, "'extra_tokens'=3 is read with form='etc' alone, and "
     "form is 'itc'", {"form": "etc"}),
    (mixer("linear"), {"nu": 2}, "'nu'=2 is read with feature_map='dpfp' alone, and feature_map "
     "is 'elu'", {"feature_map": "dpfp"}),
    (mixer("sparse-transformer"), {"sets": ["first"], "mode": "merged"},
     "'sets'=('first',) is read with mode='heads' or 'interleave' alone, and mode is 'merged'",
     {"mode": "heads"}),
    (mixer("sparse-transformer"), {"columns": 2, "pattern": "strided"},
     "'columns'=2 is read with pattern='fixed' alone, and pattern is 'strided'",
     {"pattern": "fixed"}),
    (mixer("sparse-transformer"), {"groups": 2, "pattern": "strided"},
     "'groups'=2 is read with pattern='fixed' alone", {"pattern": "fixed"}),
    (mixer("sparse-transformer"), {"inclusive": True, "pattern": "fixed"},
     "'inclusive'=True is read with pattern='strided' alone", {"pattern": "strided"}),
    (mixer("image-transformer"), {"tile": [2, 2]}, "'tile'=(2, 2) is read with dims=2 alone, and "
     "dims is 1: leave 'tile' out", {"dims": 2}),
    (mixer("image-transformer"), {"flange": [1, 1]}, "'flange'=(1, 1) is read with dims=2 alone",
     {"dims": 2}),
    (mixer("image-transformer"), {"grid": [4, 4]}, "'grid'=(4, 4) is read with dims=2 alone",
     {"dims": 2}),
    (mixer("image-transformer"), {"block_size": 8, "dims": 2}, "'block_size'=8 is read with dims=1 "
     "alone, and dims is 2", {"dims": 1}),
    (mixer("image-transformer"), {"memory_size": 8, "dims": 2},
     "'memory_size'=8 is read with dims=1 alone", {"dims": 1}),
    (mixer("rfa"), {"pool": 4, "redraw": None}, "'pool'=4 is read with another redraw than None "
     "alone, and redraw is None", {"redraw": 2}),
    (mixer("performer"), {"draw": "iid", "features": 0, "feature_map": "relu"},
     "'draw'='iid' is read with another features than 0 alone, and features is 0",
     {"features": 8}),
    (mixer("performer"), {"redraw": 7, "features": 0, "feature_map": "relu"},
     "'redraw'=7 is read with another features than 0 alone", {"features": 8}),
    (mixer("routing"), {"decay": 0.5, "update": "none"}, "'decay'=0.5 is read with update='ema' "
     "alone, and update is 'none'", {"update": "ema"}),
    (mixer("routing"), {"commitment": 0.5, "update": "none"},
     "'commitment'=0.5 is read with update='ema' or 'gradient' alone", {"update": "gradient"}),
    (mixer("adaptive-span"), {"start": 0.5, "dynamic": True}, "'start'=0.5 is read with "
     "dynamic=False alone, and dynamic is True", {"dynamic": False}),
    (mixer("adaptive-span"), {"dynamic_bias": 0.5}, "'dynamic_bias'=0.5 is read with dynamic=True "
     "alone, and dynamic is False", {"dynamic": True}),
    (POSITIONS.get("alibi").Options, {"right_slopes": [0.5]}, "'right_slopes'=(0.5,) is read with "  # type: ignore[attr-defined]
     "sides='asymmetric' alone, and sides is 'symmetric'", {"sides": "asymmetric"}),
    (POSITIONS.get("xl-relative").Options, {"clamp": 4, "distances": "learned", "reach": 4},  # type: ignore[attr-defined]
     "'clamp'=4 is read with distances='waves' alone", {"distances": "waves", "reach": None}),
    (POSITIONS.get("xl-relative").Options,  # type: ignore[attr-defined]
     {"wave_dropout": 0.5, "distances": "learned", "reach": 4},
     "'wave_dropout'=0.5 is read with distances='waves' alone",
     {"distances": "waves", "reach": None}),
    (POSITIONS.get("xl-relative").Options, {"reach": 4}, "'reach'=4 is read with "  # type: ignore[attr-defined]
     "distances='learned' alone, and distances is 'waves'", {"distances": "learned"}),
    (MEMORIES.get("compressive").Options,  # type: ignore[attr-defined]
     {"reconstruction_norm": "sum", "reconstruction": "none"},
     "'reconstruction_norm'='sum' is read with another reconstruction than 'none' alone",
     {"reconstruction": "attention"}),
    (MEMORIES.get("memorizing").Options, {"gate": -1.0, "combine": "joint"},  # type: ignore[attr-defined]
     "'gate'=-1.0 is read with another combine than 'joint' alone", {"combine": "gate"}),
    (MEMORIES.get("memorizing").Options,  # type: ignore[attr-defined]
     {"unit_scale": 3.0, "normalize": False},
     "'unit_scale'=3.0 is read with another normalize than False alone", {"normalize": True}),
    (WIRINGS.get("gated").Options, {"gate_bias": 1.0, "gate": "input"}, "'gate_bias'=1.0 is read "
     "with another gate than 'input' or 'residual' alone, and gate is 'input'", {"gate": "gru"}),
    (DEPTHS.get("universal").Options, {"combine": "last", "halting": "none"}, "'combine'='last' is "
     "read with another halting than 'none' alone, and halting is 'none'", {"halting": "random"}),
    (DEPTHS.get("universal").Options, {"halted": "evolve", "halting": "none"},
     "'halted'='evolve' is read with another halting than 'none' alone", {"halting": "act"}),
    (DEPTHS.get("universal").Options, {"cap": "drop", "halting": "none"},
     "'cap'='drop' is read with another halting than 'none' alone", {"halting": "act"}),
    (DEPTHS.get("universal").Options, {"epsilon": 0.1, "halting": "none"},
     "'epsilon'=0.1 is read with another halting than 'none' alone", {"halting": "act"}),
    (DEPTHS.get("universal").Options, {"tau": 0.1, "halting": "random"},
     "'tau'=0.1 is read with halting='act' or 'global' alone", {"halting": "act"}),
    (DEPTHS.get("universal").Options, {"halting_bias": 0.1, "halting": "none"},
     "'halting_bias'=0.1 is read with halting='act' or 'global' alone", {"halting": "global"}),
    (DEPTHS.get("calm").Options, {"decay_form": "code"},
     "'decay_form'='code' is read with another decay than None alone", {"decay": 4.0}),
    (DEPTHS.get("calm").Options, {"longest": 64},
     "'longest'=64 is read with another decay than None alone", {"decay": 4.0}),
    (DEPTHS.get("calm").Options, {"learns": "classifier"},
     "'learns'='classifier' is read with confidence='classifier' alone",
     {"confidence": "classifier"}),
    (DEPTHS.get("calm").Options, {"classifier_loss": "first"},
     "'classifier_loss'='first' is read with confidence='classifier' alone",
     {"confidence": "classifier"}),
    (DEPTHS.get("calm").Options,
     {"weighting": "root", "confidence": "classifier", "learns": "classifier"},
     "'weighting'='root' is read with another learns than 'classifier' alone",
     {"learns": "layers"}),
    (DEPTHS.get("depth-adaptive").Options, {"threshold": 0.3, "exits": "random"},
     "'threshold'=0.3 is read with exits='geometric' or 'threshold' alone", {"exits": "threshold"}),
    (DEPTHS.get("depth-adaptive").Options, {"thresholds": [0.3], "exits": "fixed"},
     "'thresholds'=(0.3,) is read with exits='geometric' or 'threshold' alone",
     {"exits": "geometric"}),
    (DEPTHS.get("depth-adaptive").Options, {"layer": 2},
     "'layer'=2 is read with exits='fixed' alone, and exits is 'geometric'", {"exits": "fixed"}),
    (DEPTHS.get("depth-adaptive").Options, {"samples": 2},
     "'samples'=2 is read with training='mixed' alone", {"training": "mixed"}),
    (DEPTHS.get("depth-adaptive").Options, {"weighting": "linear", "training": "mixed"},
     "'weighting'='linear' is read with training='aligned' alone", {"training": "aligned"}),
    (DEPTHS.get("depth-adaptive").Options, {"sigma": 1.0, "exits": "sequence"},
     "'sigma'=1.0 is read with exits='geometric' or 'multinomial' alone",
     {"exits": "multinomial"}),
    *((DEPTHS.get("depth-adaptive").Options, {name: value, "exits": "threshold"},
       f"'{name}'={value!r} is read with exits='geometric' or 'multinomial' or 'sequence' alone",
       {"exits": "sequence"})
      for name, value in (("oracle", "likelihood"), ("penalty", 0.5), ("alpha", 1.0),
                          ("detach", False))),
]  # fmt: skip


@pytest.mark.parametrize(("options", "given", "said", "read"), CASES)
def test_an_option_of_another_form_is_refused(
    options: Any, given: dict[str, Any], said: str, read: dict[str, Any]
) -> None:
    for make in (lambda: options(**given), lambda: from_dict(options, given, "table.")):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value).startswith(said)
    options(**given | read)
    # without it the form stands by itself, and so it does with the default
    name = said.split("'")[1]
    default = options.__dataclass_fields__[name].default
    options(**given | {name: default})


def test_every_option_of_one_form_has_its_case() -> None:
    marked = {
        (cls.__name__, name)
        for cls in OPTIONS
        for name, kind in field_types(cls).items()
        if any(isinstance(mark, Condition) for mark in get_args(kind))
    }
    tried = {(options.__name__, said.split("'")[1]) for options, _, said, _ in CASES}
    assert tried == marked


FLAGS = [
    ("image-transformer --mixer.tile 2 2 --mixer.dims 1", "'tile'=(2, 2) is read with dims=2"),
    ("attention --training.schedule noam --training.min-lr-ratio 0.2", "'min_lr_ratio'=0.2 is re"),
    ("alibi --position.right-slopes 0.5", "'right_slopes'=(0.5,) is read with sides='asymmetric'"),
    ("attention --model.pixels.mixtures 3", "'mixtures'=3 is read with output='mixture' alone"),
    ("compressive --memory.reconstruction none --memory.reconstruction-norm sum",
     "'reconstruction_norm'='sum' is read with another reconstruction than 'none' alone"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), FLAGS)
def test_flags_of_another_form_are_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_run(words.split())
    assert said in str(caught.value)


def test_files_of_another_form_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "run.toml"
    path.write_text('member = "attention"\n[model.pixels]\nmixtures = 3\n')
    assert tomllib.loads(path.read_text())["model"]
    with pytest.raises(ConfigError, match="'mixtures'=3 is read with output"):
        read_run(["--config", str(path)])


def test_a_model_is_refused_with_options_of_another_form() -> None:
    with pytest.raises(ConfigError, match="'nu'=2 is read with feature_map='dpfp' alone"):
        ef.create_model("linear", width=8, layers=1, heads=2, nu=2)
