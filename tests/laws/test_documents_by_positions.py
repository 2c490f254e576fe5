"""Documents that are told by positions that start over, which not all models take for that."""

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check


class Sums(nn.Module):
    """Running sums over a document; ``way`` says what positions that start over do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.embed, self.head = way, nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1])
        given = places.expand_as(x) if positions is None else positions
        if self.way == "refused" and bool((given.diff() < 1).any()):
            raise ValueError("positions must increase")
        document = (given == 0).cumsum(1)
        if self.way == "of the first row":
            document = document[:1].expand_as(x)
        if self.way == "of no row":
            document = torch.zeros_like(x)
        if self.way == "blocks":  # one of them ends where a document does
            document = (places // 16).expand_as(x)
        same = (document[:, :, None] == document[:, None]).tril()
        counted = given + (self.way == "from one" and positions is None)
        h = self.embed(x) + torch.sin(counted[..., None] / 7.0 + torch.arange(4)).to(
            self.embed.weight
        )
        return self.head(same.to(h) @ h)


@pytest.mark.parametrize(
    ("way", "status", "words"),
    [
        ("of each row", "held", "17 and 16; 16, 16 and 1 in a row, marked by positions"),
        ("of no row", "reported", "positions that start over do not separate documents"),
        ("blocks", "reported", "positions that start over do not separate documents"),
        ("refused", "reported", "ValueError: positions must increase"),
        ("from one", "exempt", "positions 0, 1, 2 ... are not as none"),
        ("of the first row", "failed", "while those of row 0 are kept apart"),
    ],
)
def test_positions_that_start_over_are_tried_as_documents(
    way: str, status: str, words: str
) -> None:
    torch.manual_seed(0)
    [one] = check(model := Sums(way), laws=["packing"], vocabulary=16)
    assert one.status == status, one.detail
    assert words in one.detail
    if status == "failed":
        assert shown(one, model) > 1e-3
