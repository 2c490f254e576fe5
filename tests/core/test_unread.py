"""An option that only one form of its part reads is refused beside another form."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Literal, get_args, get_origin

import pytest
from test_bounds import OPTIONS

import everyformer as ef
from everyformer.cli.verbs.train import read_run
from everyformer.core.bounds import Condition
from everyformer.core.config import conditions, converted, field_defaults, field_types, from_dict
from everyformer.core.errors import ConfigError
from option_walk import leaves


def others(kind: Any, default: Any) -> Iterator[Any]:
    """Some values of a type that are not the default."""
    literals = [leaf for leaf in leaves(kind) if get_origin(leaf) is Literal]
    words = [*chain(*map(get_args, literals)), True, False, 2, 1, 0.5, 3]
    for value in chain(words, ((word,) for word in words), zip(words, words, strict=True)):
        with suppress(ConfigError):
            if (made := converted(kind, value, "value")) != default:
                yield made


def read_with(when: Condition, kind: Any, read: bool) -> Any:
    """A value of the option of a condition with which the other one is read, or is not."""
    values = (*(converted(kind, v, "value") for v in when.values), *others(kind, None), None)
    return next(value for value in values if when.reads(value) == read)


def settled(options: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The ``values`` and those of other options with which they are read."""
    kinds, usual, added = field_types(options), field_defaults(options), dict(values)
    for name in conditions(options).keys() & {n for n in values if values[n] != usual[n]}:
        for when in conditions(options)[name]:
            if not when.reads(values.get(when.name, usual[when.name])):
                added.setdefault(when.name, read_with(when, kinds[when.name], True))
    return added if added == values else settled(options, added)


BESIDE = {"features": {"feature_map": "relu"}}
"""what no features ask for"""
CASES = [
    pytest.param(options, name, when, id=f"{options.__name__}.{name}")
    for options in OPTIONS
    for name, kind in field_types(options).items()
    for when in get_args(kind)
    if isinstance(when, Condition)
]


@pytest.mark.parametrize(("options", "name", "when"), CASES)
def test_an_option_of_another_form_is_refused(options: Any, name: str, when: Condition) -> None:
    kinds, default = field_types(options), field_defaults(options)[name]
    value = next(others(kinds[name], default))
    other = read_with(when, kinds[when.name], False)
    alone = settled(options, {when.name: other, **BESIDE.get(when.name, {})})
    given = settled(options, {**alone, name: value})
    said = f"`{name}={value!r}` is read with {when} alone, and {when.name} is {other!r}: leave"
    for make in (lambda: options(**given), lambda: from_dict(options, given, "table.")):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value).startswith(said)
    # the form stands by itself, and so it does with the default
    options(**alone)
    options(**alone | {name: default})
    options(**settled(options, {name: value}))


FLAGS = [
    ("image-transformer --mixer.tile 2 2 --mixer.dims 1", "`tile=(2, 2)` is read with dims=2"),
    ("attention --training.schedule noam --training.min-lr-ratio 0.2", "`min_lr_ratio=0.2` is re"),
    ("xl-relative --position.reach 3", "`reach=3` is read with distances='learned' alone"),
    ("attention --model.pixels.mixtures 3", "`mixtures=3` is read with output='mixture' alone"),
    ("gtrxl --residual.gate input --residual.gate-bias 1",
     "`gate_bias=1.0` is read with another gate than 'input' or 'residual' alone"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), FLAGS)
def test_flags_of_another_form_are_refused(words: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_run(words.split())
    assert said in str(caught.value)


def test_models_and_files_of_another_form_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=r"`start=0\.5` is read with dynamic=False alone"):
        ef.create_model("adaptive-span", width=8, layers=1, heads=2, start=0.5, dynamic=True)
    path = tmp_path / "run.toml"
    path.write_text('member = "attention"\n[model.pixels]\nmixtures = 3\n')
    with pytest.raises(ConfigError, match="'mixtures=3' is read with output"):
        read_run(["--config", str(path)])
