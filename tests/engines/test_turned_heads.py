"""Queries and keys that are turned as they are projected."""

from typing import Any

import pytest
from torch import Tensor

from everyformer.engines.projections import HeadProjections
from helpers import close, draw, shifted

CASES: list[tuple[dict[str, Any], int]] = [
    ({"heads": (3, 3), "dims": (4, 4)}, 1),
    ({"heads": (4, 2), "dims": (4, 4), "biases": ("query", "key", "value")}, 1),
    ({"heads": (4, 2), "dims": (4, 6)}, 1),
    ({"heads": (3, 1), "dims": (4, 4), "norm": True}, 2),
]
"""options, and calls of the turn"""


@pytest.mark.parametrize(("options", "calls"), CASES, ids=str)
def test_turned_heads_are_heads_turned(options: dict[str, Any], calls: int) -> None:
    project: Any = shifted(HeadProjections((12, 12, 12), **options).double())
    x, by = draw(2, 5, 12), draw(1, 1, 5, 4, seed=2)
    sizes = []

    def apply_rotary(heads: Tensor) -> Tensor:
        sizes.append(heads.shape[1])
        return heads * by + heads.flip(-1)

    q, k, v = project(x)
    turned = project(x, apply_rotary=apply_rotary)
    for got, expected in zip(turned, (q * by + q.flip(-1), k * by + k.flip(-1), v), strict=True):
        close(got, expected)
    assert len(sizes) == calls
    assert sum(sizes) == sum(options["heads"])
