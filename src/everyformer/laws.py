"""`sequence_laws` by its name of before, for one version."""

import warnings
from typing import Any

import sequence_laws


def __getattr__(name: str) -> Any:
    if name not in sequence_laws.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(sequence_laws, name)
    warnings.warn("everyformer.laws is now sequence_laws", DeprecationWarning, stacklevel=2)
    return value
