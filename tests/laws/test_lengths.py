"""Lengths: what is kept of the first one."""

import pytest
import torch
from programs import printed, shown
from torch import Tensor, nn

from sequence_laws import check


class Attends(nn.Module):
    """One layer of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(16, 8), nn.Linear(8, 24), nn.Linear(8, 16)
        self.kept: Tensor | None = None

    def mask(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).tril()

    def read(self, x: Tensor) -> Tensor:
        return self.embed(x)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = (q @ k.mT).masked_fill(~self.mask(x.shape[1]), -1e30)
        return self.head(h + scores.softmax(-1) @ v)


class MaskWhenShort(Attends):
    """Right: its mask is made again when it is too short."""

    def mask(self, length: int) -> Tensor:
        if self.kept is None or len(self.kept) < length:
            self.kept = super().mask(2 * length)
        return self.kept[:length, :length]


class Angles(Attends):
    """Right: its table of places is a buffer that grows, of which a part is used."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def read(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.sin(torch.arange(x.shape[1])[:, None] / 7 + torch.arange(8))
        return super().read(x) + self.table[: x.shape[1]].to(self.head.weight)


class FirstMask(Attends):
    def mask(self, length: int) -> Tensor:
        self.kept = super().mask(length) if self.kept is None else self.kept
        return self.kept[:length, :length]


class FirstLength(Attends):
    def read(self, x: Tensor) -> Tensor:
        self.kept = torch.tensor(x.shape[1]) if self.kept is None else self.kept
        return super().read(x) / self.kept


class LongestLength(Attends):
    def read(self, x: Tensor) -> Tensor:
        self.kept = torch.tensor(max(x.shape[1], 0 if self.kept is None else int(self.kept)))
        return super().read(x) / self.kept


@pytest.mark.parametrize("kind", [Attends, MaskWhenShort, Angles])
def test_what_grows_with_the_longest_input_holds(kind: type[nn.Module]) -> None:
    for one in check(kind(), laws=("determinism", "lengths")):
        assert one.status == "held", one.detail
        if one.law == "determinism":
            assert one.detail.endswith("same outputs, also after other lengths (2, 65)")


@pytest.mark.parametrize(
    ("kind", "before", "length"), [(FirstLength, 2, 65), (LongestLength, 65, 2)]
)
def test_what_is_kept_of_the_first_input_is_found(
    kind: type[nn.Module], before: int, length: int
) -> None:
    torch.manual_seed(0)
    [found] = check(model := kind(), laws=["determinism"])
    assert found.status == "failed", found
    assert found.detail.startswith(f"outputs of length {length} are off by ")
    assert found.detail.endswith(f"after inputs of length {before}: what it sees first is kept")
    assert shown(found, model) > 0.01


def test_a_mask_of_the_first_length_fails_at_the_second_and_refuses_none() -> None:
    found, lengths = check(model := FirstMask(), laws=("determinism", "lengths"))
    assert found.status == "failed"
    assert found.detail.startswith("a model that takes length 65 fails after inputs of length 2")
    with pytest.raises(RuntimeError, match="must match the size"):
        printed(found, model)
    assert lengths.status == "held"
    assert "refuses" not in lengths.detail
