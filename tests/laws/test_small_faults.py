"""Small faults of modules of one's own, each beside the right module."""

import pytest
import torch
from programs import printed, shown
from torch import Tensor, nn

from sequence_laws import check


class Sums(nn.Module):
    """Running sums of embeddings; ``wrong`` names what goes wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).cumsum(1) / 8
        return self.head(self.changed(h))

    def changed(self, h: Tensor) -> Tensor:
        """What a wrong one does."""
        if self.wrong == "rows are numbered":
            return h + 0.1 * torch.arange(len(h))[:, None, None]
        if self.wrong == "faster without gradients" and not torch.is_grad_enabled():
            return h.round(decimals=1)
        if self.wrong == "compiled otherwise" and torch.compiler.is_compiling():
            return 2 * h
        return h


def verdict(law: str, wrong: str = "") -> tuple[object, nn.Module]:
    torch.manual_seed(0)
    model = Sums(wrong)
    [found] = check(model, laws=[law])
    return found, model


def test_the_program_of_rows_in_the_opposite_order_compares_them() -> None:
    found, model = verdict("batch", "rows are numbered")
    assert "in the opposite order" in found.detail
    assert printed(found, model)[-1].startswith("tensor(0.2")


@pytest.mark.parametrize(
    ("wrong", "status"),
    [("", "held"), ("faster without gradients", "held"), ("compiled otherwise", "failed")],
)
def test_a_compiled_model_is_compared_without_gradients_on_both_sides(
    wrong: str, status: str
) -> None:
    found, model = verdict("compiles", wrong)
    assert found.status == status, found
    assert status == "held" or shown(found, model) > 0.01
