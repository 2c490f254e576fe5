"""Digits that bfloat16 loses inside of a model: wrong models whose outputs keep theirs, and right
ones that count, weaken with distance, and subtract."""

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check, lost_digits, numbers
from sequence_laws.adapters import subject_of
from sequence_laws.lost_digits import along, back, rounded

WIDTH = 32


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / WIDTH**0.5 + (0 if bias is None else bias)
    seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


class Base(nn.Module):
    """A layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.max_length = 512
        self.embed, self.norm = nn.Embedding(64, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 64)

    def turned(self, h: Tensor) -> Tensor:
        return h

    def bias(self, h: Tensor) -> Tensor | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        return self.head(h + attend(self.turned(q), self.turned(k), v, self.bias(h)))


class Rotary(Base):
    """Angles of places in float32; or as `of` makes them."""

    def angles(self, h: Tensor) -> Tensor:
        places = self.counted(h)
        return places[:, None] * (1e-4 ** (torch.arange(WIDTH // 2) / (WIDTH // 2))).to(places)

    def counted(self, h: Tensor) -> Tensor:
        kind = torch.float64 if h.dtype is torch.float64 else torch.float32
        return torch.arange(h.shape[1]).to(kind)

    def turned(self, h: Tensor) -> Tensor:
        a, (u, v) = self.angles(h), h.chunk(2, -1)
        cos, sin = a.cos().to(h), a.sin().to(h)
        return torch.cat((u * cos - v * sin, u * sin + v * cos), -1)


class CountsInHalf(Rotary):
    """Places in the dtype of what is turned."""

    def counted(self, h: Tensor) -> Tensor:
        return torch.arange(h.shape[1]).to(h)


class AnglesInHalf(Rotary):
    """Angles in it, of places that are right."""

    def angles(self, h: Tensor) -> Tensor:
        return super().angles(h).to(h)


class Distances(Base):
    """Distances in it, of which a share is taken off: rounding does not matter."""

    def bias(self, h: Tensor) -> Tensor | None:
        places = torch.arange(h.shape[1])
        return (places - places[:, None]).to(h) / 16


class Averages(Base):
    """Sums over how many there were, counted in it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(h.cumsum(1) / torch.arange(1, x.shape[1] + 1).to(h)[:, None])


class Cancels(Base):
    """A norm of one token of eight whose channels lie around 15; ``right`` takes the mean off
    before it squares. Most positions are as they should."""

    right = False

    def __init__(self) -> None:
        super().__init__()
        self.embed.weight.data[::8] += 15

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        mean = h.mean(-1, keepdim=True)
        if self.right:
            spread = (h - mean).square().mean(-1, keepdim=True)
        else:
            spread = (h * h).mean(-1, keepdim=True) - mean * mean
        return self.head((h - mean) / (spread.clamp(min=0) + 1e-5).sqrt())


class TakesOff(Cancels):
    right = True


WRONG = [
    (CountsInHalf, "257 becomes 256"),
    (AnglesInHalf, "257 becomes 256"),
    (Cancels, "no digit is right of what sub gives at test_numbers.py:"),
]


@pytest.mark.parametrize(("kind", "says"), WRONG)
def test_digits_that_are_lost_inside_are_found(kind, says, monkeypatch):
    torch.manual_seed(0)
    model = kind()
    [found] = check(model, laws=["numbers"], vocabulary=64)
    assert found.status == "failed", found
    assert says in found.detail
    assert shown(found, model) > 0.1
    monkeypatch.setattr(numbers, "lost_digits", lambda *_: None)
    [missed] = check(model, laws=["numbers"], vocabulary=64)
    assert missed.status == "held", missed


@pytest.mark.parametrize("kind", [Base, Rotary, Distances, Averages, TakesOff])
def test_right_models_lose_none(kind):
    for seed in range(3):
        torch.manual_seed(seed)
        [found] = check(kind(), laws=["numbers"], vocabulary=64)
        assert found.status == "held", found


def test_recurrences_lose_none():
    for model in (nn.LSTM(8, 8, 2, batch_first=True), nn.GRU(8, 8, batch_first=True)):
        [found] = check(model, laws=["numbers"])
        assert found.status == "held", found


def test_whole_numbers_are_found_in_columns():
    exact = torch.stack((torch.arange(300.0), torch.arange(300.0) / 7), 1)[None]
    low = exact.bfloat16().float()
    wrong = rounded(exact, low, 300)
    assert wrong is not None
    assert wrong[257].tolist() == [256, exact[0, 257, 1]]
    assert torch.equal(back(along(exact, 300), exact, 300), exact)
    assert rounded(exact[:, :257], low[:, :257], 257) is None


class RefusesModes(nn.Module):
    """Tokens, in code that refuses to be looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._len_torch_function_stack():
            raise ValueError("it is looked at")
        return self.head(self.embed(x).cumsum(1))


@pytest.mark.parametrize("law", ["agreement", "numbers"])
def test_what_a_model_raises_under_a_look_inside_is_its_own(law: str) -> None:
    [one] = check(RefusesModes(), laws=(law,), vocabulary=16)
    assert "it is looked at" in one.detail


class Chooses(nn.Module):
    """Of each token the larger half of 8 numbers, some of which are the same in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        scores = 300 + 0.01 * h  # no digit tells them apart in bfloat16, so that others are chosen
        best = scores.topk(4, -1).indices
        return self.head(
            torch.zeros_like(h).scatter(-1, best, h.gather(-1, best)).cumsum(1) + 3 * h
        )


def test_behind_a_choice_that_falls_otherwise_nothing_is_compared():
    torch.manual_seed(0)
    passes = lost_digits.Passes(subject_of(Chooses(), vocabulary=16), 64)
    assert passes.end < max(passes.exact)
