"""An init of a whole model draws linear layers and tables; what starts otherwise keeps its start.

Gates of 1, scales of 1 and slopes are no matrices, however many dimensions they have.
"""

from typing import Any

import pytest
import torch

import everyformer as ef

KEPT: list[tuple[str, str, float, float]] = [
    # member, parameter, mean, standard deviation
    ("gmlp", "mixer.bias", 1.0, 0.0),
    ("gmlp", "mixer.spatial", 0.0, 1e-6),
    ("rfa", "mixer.scale", 1.0, 0.0),
    ("sinkhorn", "mixer.null", 0.0, 1.0),
    ("aft-full", "mixer.position.u", 0.0, 0.01),
    ("t5-relative", "position.table", 0.0, 0.1250000),
    ("shaw", "position.key_table", 0.0, 0.2500000),
]
INITS = {
    # linear layers of 64 inputs that are no residual outputs
    "bert": 0.02,
    "gpt2": 0.02,
    "image-transformer": 0.025,  # 0.2 / sqrt(64)
    "sparse-transformer": 0.0441942,  # sqrt(0.125 / 64)
}


@pytest.mark.parametrize(
    ("init", "case"), [(init, case) for n, init in enumerate(INITS) for case in KEPT[n % 2 :: 2]]
)
def test_an_init_leaves_what_is_no_linear_layer(init: str, case: Any) -> None:
    member, parameter, mean, std = case
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 64, "heads": 4, "layers": 4, "max_length": 128, "tie": False}
    model = ef.create_model(member, init=init, **sizes)
    parts = [p.detach() for name, p in model.named_parameters() if name.endswith(parameter)]
    found = torch.cat([part.flatten() for part in parts])
    few = 4 / len(found) ** 0.5
    assert float(found.mean()) == pytest.approx(mean, abs=few * std if mean == 0 else 1e-5)
    bound = 0.0 if std == 0 else few if mean == 0 else 1e-5
    assert float(found.std(unbiased=False)) == pytest.approx(std, rel=bound, abs=1e-9)


@pytest.mark.parametrize(("init", "std"), INITS.items())
@pytest.mark.parametrize("member", ["gmlp", "rfa", "alibi"])
def test_an_init_draws_linear_layers(init: str, std: float, member: str) -> None:
    torch.manual_seed(0)
    model = ef.create_model(member, init=init, width=64, heads=4, layers=4, tie=False)
    inside = ("mixer.up.weight", "project.weights.0")
    found = [p for name, p in model.named_parameters() if name.endswith(inside)]
    whole = torch.cat([p.detach().flatten() for p in found])
    assert float(whole.std()) == pytest.approx(std, rel=0.03)
    even = init == "image-transformer"
    assert (float(whole.abs().max()) <= 3**0.5 * std * 1.0001) is even, "uniform, or normal"
    biases = [p for n, p in model.named_parameters() if n.endswith(("up.bias", "out.bias"))]
    assert all(not bias.any() for bias in biases)
