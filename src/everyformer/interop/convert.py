"""The former name of `everyformer.lab.convert`, for one version."""

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    warnings.warn(
        f"everyformer.interop.convert is everyformer.lab.convert now: import {name} from there",
        FutureWarning,
        stacklevel=2,
    )
    return getattr(import_module("everyformer.lab.convert"), name)
