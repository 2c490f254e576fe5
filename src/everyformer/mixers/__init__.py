"""Mixers, one file per member or close family; `MIXERS` finds them by name."""

from everyformer.core.mixer import Mixer
from everyformer.core.registry import Registry

MIXERS: Registry[type[Mixer]] = Registry("mixer", __name__, files={"amlp": "gmlp"})
