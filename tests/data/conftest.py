"""`load`: data with a cache of the test's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everyformer.core.tasks import ALL_TASKS
from everyformer.data import DataConfig, Dataset, load_dataset


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Dataset]:
    """`load_dataset` with its cache in the test's own folder."""

    def make(source: Path | str, task: str | None = None, **options: Any) -> Dataset:
        tokenizer = options.pop("reader", None)
        able = options.pop("able", ALL_TASKS)
        settings = {"cache": str(tmp_path / "cache"), **options}
        config = DataConfig(source=str(source), **settings)
        return load_dataset(config, task, tokenizer=tokenizer, able=able)

    return make
