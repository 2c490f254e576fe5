"""A trace keeps what mixers offer, and costs nothing when none is open."""

import torch

from everyformer import create_model, trace


def test_modules_outside_the_trace_record_nothing():
    inside, outside = (create_model("gmlp", width=8, layers=1, max_length=8) for _ in range(2))
    with trace(inside) as seen:
        outside(torch.randint(0, 256, (1, 6)))
    assert seen.records == {}
