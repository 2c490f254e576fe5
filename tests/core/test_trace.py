"""A trace keeps what mixers offer, and costs nothing when none is open."""

import torch

from everyformer import create_model, trace


def test_a_trace_holds_the_weights_of_every_layer():
    model = create_model("attention", width=8, layers=2, heads=2)
    tokens = torch.randint(0, 256, (1, 6))
    with trace(model) as seen:
        model(tokens)
    weights = seen.find("weights")
    assert list(weights) == ["stack.blocks.0.mixer", "stack.blocks.1.mixer"]
    for matrix in weights.values():
        assert matrix.shape == (1, 2, 6, 6)
        torch.testing.assert_close(matrix.sum(-1), torch.ones(1, 2, 6))
        assert torch.equal(matrix, matrix.tril())


def test_modules_outside_the_trace_record_nothing():
    inside, outside = (create_model("gmlp", width=8, layers=1, max_length=8) for _ in range(2))
    with trace(inside) as seen:
        outside(torch.randint(0, 256, (1, 6)))
    assert seen.records == {}
