"""Options: values that cannot be meant are refused, and reading them imports no torch."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from everyformer.core.config import field_docs
from everyformer.core.errors import ConfigError, UnknownNameError
from everyformer.data import DataConfig, load_dataset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "byte"}, "did you mean 'bytes'"),
        ({"tokenizer": "bpe"}, "needs a vocabulary size"),
        ({"tokenizer": "bpe:256"}, "at least 257"),
        ({"tokenizer": "chars:80"}, "takes no size"),
        ({"validation": 0.0}, "above 0"),
        ({"length": 1}, "'length' must be at least 2"),
        ({"seed": -1}, "'seed' must"),
        ({"colour": "gray"}, "did you mean 'grey'"),
        ({"source": " "}, "is empty"),
    ],
)
def test_an_impossible_value_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**options)


def test_every_option_is_explained() -> None:
    assert set(field_docs(DataConfig)) == {f.name for f in dataclasses.fields(DataConfig)}


def test_reading_the_options_imports_no_torch() -> None:
    code = (
        "import sys, everyformer.data as d; d.DataConfig; d.BUILTINS; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_misspelt_built_in_is_offered() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'stdlib'"):
        load_dataset(DataConfig(source="stdlb"))


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pixels'"):
        load_dataset(DataConfig(), "pixel")
