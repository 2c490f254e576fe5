"""Lengths: what is kept of the first, what is beyond a limit, what is cut off."""

import pytest
import torch
from programs import printed, shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.errors import ShapeError


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


class Placed(Attends):
    """Positions of which a table has 32, or a bias of distances; ``how`` says what is beyond."""

    def __init__(self, how: str, *, causal: bool = True, layers: int = 1) -> None:
        super().__init__()
        self.how, self.causal, self.layers, self.max_length = how, causal, layers, 32
        self.places, self.bias = nn.Embedding(32, 8), nn.Parameter(torch.randn(32))

    def read(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        if self.how == "sinusoidal":
            return self.embed(x) + torch.sin(places[:, None] / 7 + torch.arange(8)).to(self.bias)
        table = {"clamped": places.clamp(max=31), "wrapped": places % 32}
        return self.embed(x) + (self.places(table[self.how]) if self.how in table else 0)

    def forward(self, x: Tensor) -> Tensor:
        h, places = self.read(x), torch.arange(x.shape[1])
        apart = places[:, None] - places
        seen = {
            "window": apart.abs() < 4,
            # positions of a block, which starts over
            "wrapped in blocks": places[:, None] // 32 == places // 32,
        }.get(self.how, apart < x.shape[1])
        seen = seen & (apart >= 0) if self.causal else seen
        for _ in range(self.layers):
            q, k, v = self.qkv(h).chunk(3, -1)
            scores = q @ k.mT
            scores = scores + self.bias[apart.abs().clamp(max=31)] * (self.how == "relative")
            h = h + scores.masked_fill(~seen, -1e30).softmax(-1) @ v
        return self.head(h)


class Blocked(Placed):
    def read(self, x: Tensor) -> Tensor:
        return self.embed(x) + self.places(torch.arange(x.shape[1]) % 32)


@pytest.mark.parametrize("how", ["clamped", "wrapped"])
@pytest.mark.parametrize(("causal", "layers"), [(True, 1), (False, 1), (False, 2)])
def test_an_order_that_is_lost_beyond_a_limit_fails(how: str, causal: bool, layers: int) -> None:
    torch.manual_seed(0)
    model = Placed(how, causal=causal, layers=layers)
    [found] = check(model, laws=["lengths"], causal=causal)
    assert found.status == "failed", found
    assert f"cannot tell their order (positions that are {how} do that)" in found.detail
    assert shown(found, model) == 1


@pytest.mark.parametrize("how", ["", "sinusoidal", "relative", "window"])
@pytest.mark.parametrize("causal", [True, False])
def test_what_is_seen_beyond_a_limit_as_within_it_holds(how: str, causal: bool) -> None:
    torch.manual_seed(0)
    [found] = check(Placed(how, causal=causal), laws=["lengths"], causal=causal)
    assert (found.status, found.detail) == ("held", "takes 1 to 65")


def test_positions_that_repeat_are_said_where_order_is_seen_all_the_same() -> None:
    torch.manual_seed(0)
    for model, words in (
        (Placed("clamped", layers=2), "are that of input 31 (clamped)"),
        (Placed("wrapped", layers=2), "are those of the first inputs (wrapped)"),
        (Blocked("wrapped in blocks"), "are those of the first inputs (wrapped)"),
    ):
        [found] = check(model, laws=["lengths"])
        assert found.status == "reported"
        assert found.detail == f"takes 1 to 65; positions beyond 32 {words}"


class Recurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.max_length = 32
        self.embed, self.layer = nn.Embedding(16, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embed(x))[0]


class Pools(Placed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(1)


def test_recurrences_and_pools_hold_and_a_pool_of_clamped_positions_fails() -> None:
    torch.manual_seed(0)
    for model, status in (
        (Recurs(), "held"),
        (Pools("relative", causal=False), "held"),
        (Pools("sinusoidal", causal=False), "held"),
        (Pools("clamped", causal=False), "failed"),
    ):
        [found] = check(model, laws=["lengths"])
        assert found.status == status, found


class Cuts(Attends):
    """It reads the first inputs alone."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, : self.most])


@pytest.mark.parametrize(("most", "length"), [(64, 65), (10, 12), (8, 9)])
def test_a_text_that_is_cut_off_fails_and_other_laws_go_on(most: int, length: int) -> None:
    torch.manual_seed(0)
    laws = ("causality", "batch", "lengths")
    *others, found = check(model := Cuts(most), laws=laws)
    assert {one.status for one in others} == {"held"}
    assert found.status == "failed"
    assert found.detail == f"gives {most} outputs for {length} inputs, without a word"
    assert shown(found, model) == length - most


def test_a_number_of_outputs_that_is_always_the_same_is_no_text_that_is_cut_off() -> None:
    class Latents(Attends):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, :1].repeat(1, 8))

    with pytest.raises(ShapeError, match="expected an output at each position"):
        check(Latents())
