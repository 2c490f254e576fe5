"""Rows beside others that repeat one input."""

import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check


class Experts(nn.Module):
    """Each token to one of two layers, which takes some of them alone, in their order."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.embed = share, nn.Embedding(16, 4)
        self.gate, self.layers = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(0, 1)
        choice, y = self.gate(h).argmax(-1), torch.zeros_like(h)
        for n, layer in enumerate(self.layers):
            mine = (choice == n).nonzero()[: int(self.share * len(h)), 0]
            y = y.index_add(0, mine, layer(h[mine]))
        return y.unflatten(0, x.shape)


def test_rows_in_company_are_the_rows_alone() -> None:
    [one] = check(Experts(1.0), laws=["batch"], vocabulary=16)
    assert one.status == "held", one.detail


def test_a_share_of_experts_that_others_take_is_found() -> None:
    torch.manual_seed(0)
    model = Experts(0.9)
    [one] = check(model, laws=["batch"], vocabulary=16)
    assert one.detail.startswith("a row among 33, of which 30 repeat one input, gives"), one.detail
    assert shown(one, model) > 1e-3
