"""What a verdict says is so: refusals, shapes, causes and programs, of wrong models and right ones
beside them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import printed, shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.errors import ConfigError, ShapeError


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Sums(nn.Module):
    """Sums of what came so far."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16)

    def mix(self, h: Tensor) -> Tensor:
        return h.cumsum(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(x)))


class RightAlone(Sums):
    """It takes padding on the right, and says so."""

    says = "the mask must be right-padded"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            if bool((mask[:, 1:] & ~mask[:, :-1]).any()) or not mask[:, 0].all():
                raise ValueError(self.says)
            return self.head(self.mix(self.embed(x) * mask[..., None]))
        return super().forward(x)


class NoPadding(RightAlone):
    says = "padding is refused"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and not mask.all():
            raise NotImplementedError(self.says)
        return super().forward(x)


class Unclear(RightAlone):
    says = "bad input"


LAWS = ("padding", "gradients", "agreement")


def test_sides_that_are_refused_in_words_of_masks_are_said_and_not_judged() -> None:
    for one in check(RightAlone(), laws=LAWS, vocabulary=16):
        assert one.status == "held", one
        assert one.detail.endswith(
            "it refuses padding (left, holes): the mask must be right-padded"
        )
        assert one.law == "agreement" or "(right)" in one.detail
    [none] = check(NoPadding(), laws=["padding"], vocabulary=16)
    assert none.status == "undecided", none
    assert none.detail.endswith("it refuses padding (right, left, holes): padding is refused")
    with pytest.raises(ConfigError, match=r"refuses padding .left, holes.: the mask must be right"):
        check(RightAlone(), vocabulary=16, masks=["left"])


def test_an_error_that_says_nothing_of_masks_stays_a_failure() -> None:
    for one in check(Unclear(), laws=LAWS, vocabulary=16):
        assert (one.status, "bad input" in one.detail) == ("failed", True), one


class Squeezes(Sums):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(1)


class Refuses(Sums):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            raise ShapeError("a length of 1 is too short")
        return super().forward(x)


def test_outputs_of_another_shape_are_no_refusal_of_a_length() -> None:
    [found] = check(model := Squeezes(), laws=["lengths"], vocabulary=16)
    assert found.status == "failed"
    assert "gives (1, 16) for inputs of (rows, positions) (1, 1)" in found.detail
    assert printed(found, model) == ["(1, 16)"]
    [found] = check(Refuses(), laws=["lengths"], vocabulary=16)
    assert (found.status, found.detail) == ("held", "takes 2 to 65; refuses 1 clearly")


class SqueezesRows(Sums):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(0)


def test_an_order_that_cannot_be_looked_at_is_undecided() -> None:
    [found] = check(SqueezesRows(), laws=["order"], vocabulary=16)
    assert (found.status, "gives (9, 16)" in found.detail) == ("undecided", True), found


class KeepsTheLongest(Sums):
    """Its bias is of the longest text so far."""

    longest = 0

    def mix(self, h: Tensor) -> Tensor:
        self.longest = max(self.longest, h.shape[1])
        bias = torch.zeros(h.shape[1], h.shape[1]).masked_fill(
            torch.ones(h.shape[1], h.shape[1]).triu(1).bool(), -torch.inf
        )
        bias = bias - torch.arange(h.shape[1]) / self.longest
        return F.scaled_dot_product_attention(h, h, h, attn_mask=bias)


def test_what_is_kept_of_a_longer_text_is_found_in_a_model_of_fused_attention() -> None:
    [found] = check(model := KeepsTheLongest(), laws=["determinism"], vocabulary=16)
    assert found.status == "failed"
    assert "are off by" in found.detail
    assert shown(found, model) > 1e-3


class Normed(Sums):
    """It reads both ways behind a norm, whose outputs have a constant sum."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return F.layer_norm(h + h.mean(1, keepdim=True), h.shape[-1:])


class Sorts(Normed):
    """The rank of a token among all, a choice without a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        rank = self.embed(x)[..., 0].argsort(1).argsort(1)
        return self.embed(x) + rank[..., None]


def test_a_gradient_behind_a_norm_is_no_choice() -> None:
    choice = "a choice does it"
    for model, says in ((Normed(), False), (Sorts(), True)):
        [found] = check(model, laws=["causality"], vocabulary=16)
        assert (found.status, choice in found.detail) == ("failed", says), found


class Overflows(Sums):
    """Sums of terms that are scaled up and down again, beyond float32."""

    def mix(self, h: Tensor) -> Tensor:
        scale = (20 * torch.arange(h.shape[1]).to(h)).exp()[:, None]
        return (h * scale).cumsum(1) / scale


def test_nothing_is_compared_where_float32_is_not_finite() -> None:
    for depth, laws in (("usual", ["agreement", "numbers"]), ("quick", ["batch", "numbers"])):
        how: Any = {"laws": laws, "vocabulary": 16, "depth": depth}
        compared, numbers = check(Overflows(), **how)
        assert compared.status == "undecided", compared
        assert "in float32 are not finite" in compared.detail
        assert numbers.status == "failed"


class OfFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x))


class OfCompilers(OfFeatures):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if torch.compiler.is_compiling() else 1)


class Fuses(OfFeatures):
    """Its weights, as they were when it was made, where no gradients are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = self.out.weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        weight = self.out.weight if torch.is_grad_enabled() else self.fused.to(x)
        return F.linear(self.layer(x), weight)


class RootOfNothing(OfFeatures):
    """sqrt(1 - tanh(p)^2), whose gradient is 0 inf in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.full((4,), 12.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + (1 - self.p.tanh().square()).sqrt())


@pytest.mark.parametrize(
    ("kind", "law", "words"),
    [
        (OfCompilers, "compiles", "compiled outputs are off by"),
        (Fuses, "saving", "outputs that"),
        (RootOfNothing, "gradients", "not finite in float32"),
    ],
)
def test_programs_run_as_the_fault_was_found(kind: type[nn.Module], law: str, words: str) -> None:
    [found] = check(model := kind(), laws=[law], width=4)
    assert (found.status, words in found.detail) == ("failed", True), found
    assert shown(found, model) > 1e-3


@torch.library.custom_op("own_laws::doubles", mutates_args=("x",))
def doubles(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("own_laws::doubles_and_hides_it", mutates_args=())
def doubles_and_hides_it(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("own_laws::halves", mutates_args=())
def halves(x: Tensor) -> Tensor:
    return x[..., ::2].clone()


for of in (doubles, doubles_and_hides_it):
    of.register_fake(lambda x: None)
halves.register_fake(lambda x: torch.empty_like(x))


class ByAnOperation(OfFeatures):
    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation, self.narrow = operation, nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        y = getattr(torch.ops.own_laws, self.operation)(h)
        return self.out(h) if y is None else self.narrow(y)


class Branches(OfFeatures):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if bool(x.isfinite().all()) else x


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        (ByAnOperation("doubles"), "held", "one graph"),
        (ByAnOperation("doubles_and_hides_it"), "failed", "compiled outputs are off by"),
        (ByAnOperation("halves"), "failed", "torch.compile(model) fails"),
        (Branches(), "reported", "not one graph"),
    ],
)
def test_what_operations_declare_is_what_is_compiled(
    model: nn.Module, status: str, words: str
) -> None:
    [found] = check(model, laws=["compiles"], width=4)
    assert (found.status, words in found.detail) == (status, True), found
    if "off by" in words:
        assert shown(found, model) > 1e-3
    elif status == "failed":
        with pytest.raises(RuntimeError):
            printed(found, model)


class FloatState(Sums):
    """It convolves behind zeros of float32, whatever the rest is in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)

    def mix(self, h: Tensor) -> Tensor:
        zeros = torch.zeros(len(h), 4, 2, dtype=torch.float32)
        return self.conv(torch.cat((zeros, h.mT), -1)).mT


class ByFourier(Sums):
    """What CPUs do not compute in bfloat16."""

    def mix(self, h: Tensor) -> Tensor:
        length = h.shape[1]
        return torch.fft.irfft(torch.fft.rfft(h, 2 * length, 1), 2 * length, 1)[:, :length]


def test_a_clash_of_dtypes_in_bfloat16_fails_and_a_lack_of_the_device_does_not() -> None:
    [found] = check(model := FloatState(), laws=["numbers"], vocabulary=16)
    assert found.status == "failed", found
    assert "in FloatState.mix: RuntimeError: " in found.detail
    with pytest.raises(RuntimeError, match=r"float.* and .*BFloat16"):
        printed(found, model)
    [found] = check(ByFourier(), laws=["numbers"], vocabulary=16)
    assert (found.status, found.detail) == ("held", "it does not run in bfloat16")


class Strays(Sums):
    """Numbers in a list and a layer, which are neither parameters nor buffers."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.width, self.held = width, [torch.randn(width, width), nn.Linear(width, width)]

    def mix(self, h: Tensor) -> Tensor:
        matrix, layer = self.held
        return layer((h @ matrix).cumsum(1))


def test_tensors_outside_parameters_and_buffers_are_named_once() -> None:
    laws = ("causality", "batch", "lengths", "order", "numbers", "saving")
    *others, numbers, saving = check(Strays(), laws=laws, vocabulary=16)
    assert [one.status for one in others] == ["held", "held", "held", "reported"], others
    assert numbers.status == "failed"
    names = "held.0, held.1.weight and held.1.bias, outside parameters and buffers"
    assert f".to() leaves {names}" in numbers.detail
    assert saving.status == "failed", saving
    assert "drawn when one is made" in saving.detail


class OfTheFirst(OfFeatures):
    """It scales by the first input that it sees, and does not save that."""

    scale: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.scale = float(x.detach().std()) if self.scale is None else self.scale
        return super().forward(x) / self.scale


class OfTheFirstSaved(OfFeatures):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.scale:
            self.scale.fill_(x.detach().std())
        return super().forward(x) / self.scale


def test_what_is_kept_of_the_first_text_must_be_saved() -> None:
    [found] = check(model := OfTheFirst(), laws=["saving"], width=4)
    assert found.status == "failed", found
    assert shown(found, model) > 1e-3
    [found] = check(OfTheFirstSaved(), laws=["saving"], width=4)
    assert found.status == "held", found
