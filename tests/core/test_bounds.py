"""Every number that can be chosen has bounds, and they hold in Python, in files and in flags."""

import dataclasses
import math
import sys
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest

from everyformer.cli.parsing import answer
from everyformer.cli.verbs.train import read_run
from everyformer.core.bounds import Between, Bounds, Count, Even, Odd, Part, Rate, bounds_of
from everyformer.core.config import Options, converted, from_dict
from everyformer.core.errors import ConfigError
from option_walk import all_options, leaves, numbers, shaped

OPTIONS = all_options()


NUMBERS = {cls: numbers([cls]) for cls in OPTIONS if numbers([cls])}
OF_EACH = pytest.mark.parametrize("cls", NUMBERS, ids=lambda cls: cls.__name__)


def _outside(bounds: Bounds, whole: bool) -> list[Any]:
    low, high = bounds.low, bounds.high
    found: list[Any] = [] if whole else [math.nan, math.inf, -math.inf]
    if low > -math.inf:
        found += [low if bounds.beyond else low - 1, -(10**12)]
    if high < math.inf:
        found.append(high if bounds.below else high + 1)
    found += [2**63, 10**400] if whole else []
    return found


def test_all_options_are_found() -> None:
    names = {cls.__name__ for cls in OPTIONS}
    assert names >= {
        "TrainingConfig", "DataConfig", "ModelConfig", "BlockOptions", "Sampling", "RoutingOptions",
        "RopeScaling", "AxialOptions", "CompressiveOptions", "GenerateOptions", "Setting",
    }  # fmt: skip
    assert sum(map(len, NUMBERS.values())) > 180


def test_no_options_are_plain_dataclasses() -> None:
    """What is called options or config anywhere in the library is held to its bounds."""
    plain = [
        f"{name}.{cls.__name__}"
        for name, module in list(sys.modules.items())
        if name.startswith("everyformer.")
        for cls in vars(module).values()
        if isinstance(cls, type)
        and cls.__module__ == name
        and dataclasses.is_dataclass(cls)
        and cls.__name__.endswith(("Options", "Config"))
        # a config of transformers, which holds one of ours as a dictionary
        and cls.__name__ != "EveryformerConfig"
        and not issubclass(cls, Options)
    ]
    assert plain == []


@OF_EACH
def test_every_number_has_bounds(cls: type) -> None:
    bare = [name for _, name, kind in NUMBERS[cls] if {int, float} & {*leaves(kind)}]
    assert bare == [], f"{cls.__name__} takes any number: say which"


@OF_EACH
def test_numbers_out_of_bounds_are_refused_in_python_and_in_files(cls: type) -> None:
    required = any(
        f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        for f in dataclasses.fields(cls)
    )
    for _, name, kind in NUMBERS[cls]:
        bounds = bounds_of(kind)
        assert bounds is not None
        whole = any(get_args(leaf)[:1] == (int,) for leaf in leaves(kind))
        for value in _outside(bounds, whole):
            given = shaped(kind, value)
            with pytest.raises(ConfigError, match=rf"`{name}[\[\]\d]*` must be"):
                converted(kind, given, name)
            with pytest.raises(ConfigError, match=rf"`table\.{name}[\[\]\d]*` must be"):
                from_dict(cls, {name: given}, "table.")
        if not required:
            with pytest.raises(ConfigError, match=rf"`{name}[\[\]\d]*` must be"):
                cls(**{name: shaped(kind, _outside(bounds, whole)[0])})


@dataclass(frozen=True)
class Sizes(Options):
    count: Count = 1
    rate: Rate = 0.0
    part: Part | None = None
    sides: tuple[Odd, ...] = ()
    both: Even | tuple[Even, Even] = 2
    decay: Between = 0.5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": 0}, "`count` must be at least 1, not 0"),
        ({"count": True}, "`count` must be int, not True (bool)"),
        ({"count": 2.0}, "`count` must be int, not 2.0 (float)"),
        ({"rate": 1.0}, "`rate` must be at least 0 and below 1, not 1.0"),
        ({"rate": math.nan}, "`rate` must be at least 0 and below 1, not nan"),
        ({"part": 0}, "`part` must be above 0 and at most 1, not 0.0"),
        ({"part": "half"}, "`part` must be float | None, not 'half' (str)"),
        ({"sides": (3, 4)}, "`sides[1]` must be odd and at least 1, not 4"),
        ({"both": (2, 5)}, "`both[1]` must be even and at least 0, not 5"),
        ({"decay": 1}, "`decay` must be above 0 and below 1, not 1.0"),
    ],
)
def test_what_is_refused_says_what_is_taken(given: dict[str, Any], said: str) -> None:
    for make in (lambda: Sizes(**given), lambda: from_dict(Sizes, given)):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value) == said


def test_numbers_of_numpy_become_plain_ones() -> None:
    made = Sizes(count=np.int64(3), rate=np.float32(0.25), sides=[np.int32(1)])  # type: ignore[arg-type]
    assert made == Sizes(3, 0.25, sides=(1,))
    assert (type(made.count), type(made.rate), type(made.sides[0])) == (int, float, int)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lr inf", "'--training.lr' must be above 0, not inf"),
        ("--steps 0", "'--training.steps' must be at least 1, not 0"),
        ("--model.block.drop-path 1.5", "'--model.block.drop-path' must be at least 0 and below 1"),
        ("--model.pixels.tile 4 0", "'--model.pixels.tile[1]' must be at least 1, not 0"),
        ("--mixer.attention-dropout=nan", "'--mixer.attention-dropout' must be at least 0 and bel"),
        ("--position.base=-1", "'--position.base' must be above 0, not -1.0"),
        ("--data.mask-rate 2", "'--data.mask-rate' must be above 0 and at most 1, not 2.0"),
    ],
)
def test_flags_out_of_bounds_are_refused_by_their_names(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_run(["longformer", *words.split()])
    assert answer(str(caught.value)).startswith(said)


def test_help_says_what_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_run(["longformer", "--help", "all"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "dropout on the weights in training (at least 0 and below 1; default: 0.0)" in told
    assert "peak learning rate (above 0; default: 0.001)" in told
