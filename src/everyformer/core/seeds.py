"""Seeds that follow from several numbers or words, so that no two uses share random numbers.

Twins, one member under several names (NAME@LABEL), have each their own: a comparison of a member
with itself shows what is luck. They share data and their order, and differ as two trainings of one
member do, in the draw of their weights and in what is dropped.
"""

import hashlib
import re


def mixed(*parts: object) -> int:
    """A seed from 0 to 2^63 - 1 that ``parts`` give, in the order of them."""
    text = " ".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def twin(name: str) -> tuple[str, str]:
    """Member and label of a twin's name; of any other that name and ''."""
    found = re.fullmatch(r"([^@]+)@(\w[\w-]*)", name)
    return (found[1], found[2]) if found else (name, "")


def seed_of(seed: int, name: str) -> int:
    """The seed of a member's weights and of its dropout: ``seed``, of a twin mixed with its
    label."""
    label = twin(name)[1]
    return mixed(seed, label) if label else seed
