"""The former name of `everyformer.lab.convert`, for one version."""

import sys
import warnings
from importlib import import_module

warnings.warn(
    "everyformer.interop.convert is everyformer.lab.convert now: import it from there",
    FutureWarning,
    stacklevel=2,
)
sys.modules[__name__] = import_module("everyformer.lab.convert")
