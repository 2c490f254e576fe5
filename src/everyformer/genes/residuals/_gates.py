"""Gates g(x, y) of residual `gated`: x the stream, y a sub-layer's output, (B, L, width) each.

They have no biases but b_g, a vector that is learned. W and U start as Glorot's, each by itself,
also where several are held as rows of one matrix.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.panels import Panel, Panels, Recorded, layer_name, layer_title
from everyformer.core.trace import record


def open_gates(gates: Mapping[str, Tensor], causal: bool) -> Panels:
    """Openness of gates (B, L, width), a row a layer."""
    rows: dict[str, list[Panel]] = {}
    means = []
    for path, gate in gates.items():
        values = gate[0].float().cpu()
        part = path.rpartition(".")[2].removesuffix("_gate")
        panel = Panel(layer_title(path, part), values.numpy(), ("channel", "token"))
        rows.setdefault(layer_name(path), []).append(panel)
        means.append(f"{float(values.mean()):.0%}")
    caption = (
        "How far each gate is open: the weight of what the sub-layer gives, or, of input gates, of "
        f"the stream. On average, from gate to gate: {', '.join(means)}."
    )
    return Panels(list(rows.values()), caption, "gate", wide=True)


def _linear(width: int, outputs: int = 1) -> nn.Linear:
    """``outputs`` square matrices, one below the other."""
    linear = nn.Linear(width, outputs * width, bias=False)
    for matrix in linear.weight.detach().chunk(outputs):
        nn.init.xavier_uniform_(matrix)
    return linear


class Gate(nn.Module):
    """Base of all gates.

    Args:
        bias: what every number of b_g starts from.
    """

    keeps_stream: ClassVar[bool] = False
    """whether g(x, 0) = x, so that a sub-layer may be left out"""

    recorded: ClassVar[Recorded] = {"gates": open_gates}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The next stream."""
        raise NotImplementedError

    def opened(self, scores: Tensor) -> Tensor:
        """sigma of ``scores``, which a trace can look at."""
        gate = scores.sigmoid()
        record(self, "gates", lambda: gate)
        return gate


class InputGate(Gate):
    """sigma(W x) x + y."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.w = _linear(width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.opened(self.w(x)) * x + y


class OutputGate(Gate):
    """x + sigma(W x - b_g) y."""

    keeps_stream = True

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.w, self.bias = _linear(width), nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.opened(self.w(x) - self.bias) * y


class HighwayGate(Gate):
    """s x + (1 - s) y, s = sigma(W x + b_g)."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.w, self.bias = _linear(width), nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        # 1 - s = sigma(-.), which keeps its digits where s is near 1
        return x + self.opened(-self.w(x) - self.bias) * (y - x)


class SigTanhGate(Gate):
    """x + sigma(W y - b_g) tanh(U y)."""

    keeps_stream = True

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.of_y = _linear(width, 2)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        w, u = self.of_y(y).chunk(2, -1)
        return x + self.opened(w - self.bias) * torch.tanh(u)


class GruGate(Gate):
    """(1 - z) x + z h, r and z from both, h = tanh(W_g y + U_g (r x))."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.of_y, self.of_x = _linear(width, 3), _linear(width, 2)
        self.of_reset = _linear(width)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reset, update, new = self.of_y(y).chunk(3, -1)
        reset_x, update_x = self.of_x(x).chunk(2, -1)
        r, z = (reset + reset_x).sigmoid(), self.opened(update + update_x - self.bias)
        h = torch.tanh(new + self.of_reset(r * x))
        return torch.lerp(x, h.to(x.dtype), z.to(x.dtype))


GATES: dict[str, type[Gate]] = {
    "input": InputGate,
    "output": OutputGate,
    "highway": HighwayGate,
    "sigtanh": SigTanhGate,
    "gru": GruGate,
}
"""those with weights, by name"""
