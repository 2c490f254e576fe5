"""Gradients by value: each look by a model that it alone finds wrong, and right ones beside it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from programs import printed, shown
from torch import Tensor, nn

from sequence_laws import check, derivatives, gradients
from sequence_laws.adapters import subject_of
from sequence_laws.adapters.plain import Plain
from sequence_laws.inputs import Inputs


class Base(nn.Module):
    """Embeddings, something between, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 16)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).cumsum(1) / 4
        return self.head(h + self.between(self.inner(h)))


class _Scaled(torch.autograd.Function):
    """Itself; the gradient is changed."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.change(grads[0]), None


class WrongBackward(Base):
    def between(self, h: Tensor) -> Tensor:
        return _Scaled.apply(h.tanh(), lambda g: 0.99 * g)


class Stopped(Base):
    """A gate whose gradient stops, as some write it by mistake."""

    def between(self, h: Tensor) -> Tensor:
        return h * h.sigmoid().detach()


class ClampedOutside(Base):
    """Large values are cut where autograd does not look."""

    def between(self, h: Tensor) -> Tensor:
        h = h.clone()
        h.data.clamp_(-0.3, 0.3)
        return h


class RootOfZero(Base):
    """The length of a vector of zeros: its slope is infinite, times zero."""

    def between(self, h: Tensor) -> Tensor:
        return h + (0 * h).square().sum(-1, keepdim=True).sqrt()


class NoDigits(Base):
    """Float32 loses in the backward pass what float64 keeps."""

    def between(self, h: Tensor) -> Tensor:
        return _Scaled.apply(h.tanh(), lambda g: (g + 1e8) - 1e8)


class Attends(Base):
    """Attention of queries, of which those of padding on the left see nothing: made zeros by
    `where`, behind which the gradient is NaN; right where scores are finite."""

    lowest = float("-inf")

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        keys = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        seen = torch.ones(x.shape[1], x.shape[1]).bool().tril() & keys[:, None]
        unseen = torch.zeros(seen.shape).to(h).masked_fill(~seen, self.lowest)
        weights = (self.inner(h) @ h.mT + unseen).softmax(-1)
        weights = torch.where(seen.any(-1, keepdim=True), weights, torch.zeros_like(weights))
        return self.head(h + weights @ h)


class AttendsFinitely(Attends):
    lowest = -1e30


class Slow(Base):
    way = ""

    def between(self, h: Tensor) -> Tensor:
        return _Scaled.apply(h.tanh(), lambda g: 0.5 * g) if self.way == "slow" else h.tanh()


class Ways(Plain):
    def variants(self) -> Any:
        for way in ("fast", "slow"):
            other = self.again()
            other.model = self.copy(torch.float32)
            other.model.way = way
            other.build = (*self.build, f"model.way = {way!r}") if way == "slow" else self.build
            yield way, other


class Look(NamedTuple):
    model: Callable[[], nn.Module]
    says: str
    owner: Any
    name: str
    least: float
    """that its program prints"""


LOOKS = (
    Look(WrongBackward, "are not the derivative", gradients, "differences", 1e-4),
    Look(Stopped, "are not the derivative", gradients, "differences", 1e-3),
    Look(ClampedOutside, "are not the derivative", gradients, "differences", 1e-3),
    Look(RootOfZero, "are not finite (length", gradients, "require_finite", 1),
    Look(Attends, "are not finite, behind padding (right, left, holes)", gradients, "same", 1),
    Look(NoDigits, "have no digit right", gradients, "require_digits", 0.1),
    Look(Slow, "with slow the gradients of", gradients, "same", 1e-3),
)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.model.__name__)
def test_a_wrong_gradient_is_found_by_one_look(look, monkeypatch):
    torch.manual_seed(0)
    model = look.model()
    made = Ways(model, "ways", Inputs(16)) if look.model is Slow else subject_of(model)
    [found] = check(made, laws=["gradients"])
    assert found.status == "failed", found
    assert look.says in found.detail
    assert shown(found, model) >= look.least
    monkeypatch.setattr(look.owner, look.name, lambda *_: "")
    [missed] = check(made, laws=["gradients"])
    assert missed.status == "held", missed


class Rounds(Base):
    """A codebook, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(5, 8))

    def between(self, h: Tensor) -> Tensor:
        near = self.codes[torch.cdist(h, self.codes[None]).argmin(-1)]
        return near + h - h.detach()


class OneBit(Base):
    """Weights of one bit, straight through."""

    def between(self, h: Tensor) -> Tensor:
        sign = self.inner.weight + (self.inner.weight.sign() - self.inner.weight).detach()
        return h @ sign


class Switched(Base):
    """A gate over itself: one, with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 8)

    def between(self, h: Tensor) -> Tensor:
        gate = self.gate(h).softmax(-1)
        return h * (gate / gate.detach())


class Routed(Base):
    """The best expert of each token, times its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8) / 4)

    def between(self, h: Tensor) -> Tensor:
        gate, which = self.router(h).softmax(-1).max(-1)
        return gate[..., None] * (h[..., None, :] @ self.experts[which])[..., 0, :]


class Hashed(Base):
    """Attention among those of one sign of a projection."""

    def between(self, h: Tensor) -> Tensor:
        kind = h[..., 0] > 0
        same = (kind[:, :, None] == kind[:, None]).tril()
        return (h @ h.mT).masked_fill(~same, -1e9).softmax(-1) @ h


class Edges(Base):
    """Edges: relu, max, abs, clamp, and exact zeros under a relu."""

    def between(self, h: Tensor) -> Tensor:
        edges = h.relu() + h.abs() + h.clamp(-0.2, 0.2) + h.max(-1, keepdim=True).values
        return edges + (h - h.detach()).relu().detach()


class Padded(Base):
    """An embedding of padding, which has no gradient, as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, padding_idx=3)


class Stable(Base):
    """A softmax less its maximum, whose gradient cancels."""

    def between(self, h: Tensor) -> Tensor:
        e = (h - h.max(-1, keepdim=True).values.detach()).exp()
        return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Rounds, "straight through"),
        (OneBit, "straight through"),
        (Switched, "straight through"),
        (Routed, "as differences have them"),
        (Hashed, "as differences have them"),
        (Edges, "as differences have them"),
        (Padded, "as differences have them"),
        (Stable, "as differences have them"),
        (AttendsFinitely, "finite behind padding"),
        (Base, "as differences have them"),
    ],
)
def test_right_gradients_and_meant_ones_hold(kind, words):
    for seed in range(3):
        torch.manual_seed(seed)
        [found] = check(kind(), laws=["gradients"], vocabulary=16)
        assert found.status == "held", found
        assert words in found.detail


def test_features_are_differentiated_too():
    """The parameters get what they should; what comes before the model does not."""

    class Features(nn.Module):
        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.wrong, self.head = wrong, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(_Scaled.apply(x, lambda g: 0.9 * g) if self.wrong else x)

    torch.manual_seed(0)
    [held] = check(Features(wrong=False), laws=["gradients"], width=4)
    assert held.status == "held"
    [broken] = check(model := Features(wrong=True), laws=["gradients"], width=4)
    assert broken.detail.startswith("the gradients of x are not the derivative")
    assert shown(broken, model) > 0.01


def test_the_error_of_differences_is_their_own():
    smooth = derivatives.Slope(given=1.0, found=1.0 + 1e-6, error=1e-10, size=1.0)
    assert smooth.agree
    assert not smooth._replace(found=1.0 + 2e-5).agree
    assert smooth._replace(found=1.5, error=1.0).agree
    assert smooth._replace(found=1e-12).flat


class MakesWhenCalled(Base):
    """A scale that is made in the first pass."""

    def __init__(self, kind: type[Base]) -> None:
        super().__init__()
        self.kind = kind
        self.scale: nn.Parameter | None = None

    def between(self, h: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = nn.Parameter(torch.ones(8).to(h))
        return self.kind.between(self, h * self.scale)


def test_a_weight_that_is_made_in_the_first_pass_is_one_of_its_copy():
    torch.manual_seed(0)
    [held] = check(MakesWhenCalled(Base), laws=["gradients"])
    assert held.status == "held", held
    model = MakesWhenCalled(NoDigits)
    [broken] = check(model, laws=["gradients"])
    assert "have no digit right" in broken.detail
    assert shown(broken, model) > 0.1


class Dead(Base):
    """What is between is multiplied by zero, so that gradients are zeros."""

    def between(self, h: Tensor) -> Tensor:
        return 0 * h


def test_the_program_of_dead_weights_names_them():
    torch.manual_seed(0)
    model = Dead()
    [broken] = check(model, laws=["gradients"])
    assert broken.detail == "2 of 5 parameters get no gradient: inner.weight and inner.bias"
    assert printed(broken, model) == ["['inner.weight', 'inner.bias']"]


class Masked(nn.Module):
    """Attention that hides by -inf, or by a number; ``pools`` for one output a row."""

    def __init__(self, hidden: float, pools: bool) -> None:
        super().__init__()
        self.hidden, self.pools = hidden, pools
        self.embed, self.qkv = nn.Embedding(16, 4), nn.Linear(4, 12)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], self.hidden)
        h = scores.softmax(-1) @ v
        if not self.pools:
            return h
        real = torch.ones_like(x) if mask is None else mask.long()
        return (h * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("pools", [False, True])
def test_gradients_beside_a_row_of_nothing_but_padding_are_said(pools: bool) -> None:
    torch.manual_seed(0)
    for hidden, words in (
        (-1e30, "finite behind padding (right, left, holes), finite beside a row of nothing"),
        (-torch.inf, "not finite beside a row of nothing but padding, which no loss reads (embed"),
    ):
        [one] = check(
            Masked(hidden, pools), laws=["gradients"], causal=False if not pools else None
        )
        assert one.status == "held", one
        assert words in one.detail
