"""Taps: places inside a model whose tensors come out of its call, ``model(x, taps=[...]).taps``.

    attention-output:l    what the mixer of layer l gives, before dropout and the residual sum
    ffn-input:l           what the feed-forward of layer l reads, after its norm where it has one
    block-output:l        the residual stream after layer l; 0 is the input of the first layer

Layers are counted from 1, from the end if negative: the keys of a kNN-LM are ``ffn-input:-1``.
"""

from __future__ import annotations

from typing import NamedTuple

from everyformer.core.errors import ConfigError, unknown

NAMES = ("attention-output", "ffn-input", "block-output")


class Tap(NamedTuple):
    """One place; see the module."""

    name: str
    layer: int

    @classmethod
    def of(cls, text: str, layers: int) -> Tap:
        """The place that ``text`` names in a stack of so many layers.

        Raises:
            UnknownNameError: no such name. ConfigError: no such layer.
        """
        name, _, number = text.partition(":")
        if name not in NAMES:
            raise unknown("tap", name, NAMES)
        first = 0 if name == "block-output" else 1
        layer = int(number) if number.removeprefix("-").isdecimal() else None
        if layer is not None and layer < 0:
            layer += layers + 1
        if layer is None or not first <= layer <= layers:
            raise ConfigError(
                f"tap '{text}' names no layer of a stack of {layers}: write {name}:{first} to "
                f"{name}:{layers}, or {name}:-1 for the last"
            )
        return cls(name, layer)
