"""Twins: one member under several names, NAME@LABEL, each with random numbers of its own.

A comparison of a member with itself shows what is luck: twins share data and their order, and
differ as two trainings of one member do, in the draw of their weights and in what is dropped.
"""

import re

from everyformer.core.seeds import mixed


def twin(name: str) -> tuple[str, str]:
    """Member and label of a twin's name; of any other that name and ''."""
    found = re.fullmatch(r"([^@]+)@(\w[\w-]*)", name)
    return (found[1], found[2]) if found else (name, "")


def seed_of(seed: int, name: str) -> int:
    """The seed of a member's weights and of its dropout: ``seed``, of a twin mixed with its
    label."""
    label = twin(name)[1]
    return mixed(seed, label) if label else seed
