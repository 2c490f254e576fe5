"""The former home of `everyformer.blocks.residual`, for one version."""

import warnings
from typing import Any

from everyformer.blocks import residual

_RENAMED = {"Wiring": "Residual", "Residual": "SingleStream"}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    now = f"{residual.__name__}.{_RENAMED.get(name, name)}"
    warnings.warn(f"{__name__}.{name} is {now} now", FutureWarning, stacklevel=2)
    return getattr(residual, _RENAMED.get(name, name))
