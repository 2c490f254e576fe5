"""`load`: data with a cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everyformer.data import DataConfig, Dataset, load_dataset


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Dataset]:
    """`load_dataset` with its cache in the test's own folder."""

    def make(source: Path | str, task: str | None = None, **options: Any) -> Dataset:
        tokenizer = options.pop("reader", None)
        settings = {"cache": str(tmp_path / "cache"), **options}
        return load_dataset(DataConfig(source=str(source), **settings), task, tokenizer=tokenizer)

    return make
