"""Gradients to later inputs: every pair of positions, by two backward passes a window."""

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check, later_gradients
from sequence_laws.adapters import subject_of

LENGTH = 100


class Leaks(nn.Module):
    """Sums of embeddings; output t also sees a later input s, by its part in a thousand."""

    def __init__(self, t: int = -1, s: int = -1, longest: int = LENGTH, part: float = 1e-3) -> None:
        super().__init__()
        self.t, self.s, self.part, self.max_length = t, s, part, longest
        self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16)

    def between(self, h: Tensor) -> Tensor:
        return h.cumsum(1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        y = self.between(h)
        if self.t >= 0 and self.s < x.shape[1]:
            late = (torch.arange(x.shape[1]) == self.t)[:, None]
            y = y + self.part * late * h[:, self.s : self.s + 1]
        return self.head(y)


class Behind(Leaks):
    """Output t reads the input before it, and not its own."""

    def between(self, h: Tensor) -> Tensor:
        return nn.functional.pad(h, (0, 0, 1, 0))[:, :-1]


class Fourier(Leaks):
    """A causal convolution by Fourier transforms, whose rounding is everywhere."""

    def between(self, h: Tensor) -> Tensor:
        n = 2 * h.shape[1]
        decay = 0.9 ** torch.arange(h.shape[1]).to(h)[:, None]
        return torch.fft.irfft(torch.fft.rfft(h, n, 1) * torch.fft.rfft(decay, n, 0), n, 1)[
            :, : h.shape[1]
        ]


class Two(Leaks):
    """The leak comes by a table of its own."""

    def __init__(self) -> None:
        super().__init__(290, 300, 512)
        self.other = nn.Embedding(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, h = self.between(self.embed(x)), self.other(x)
        late = (torch.arange(x.shape[1]) == self.t)[:, None]
        return self.head(y + 0.1 * h.cumsum(1) + late * h[:, self.s : self.s + 1].sum(1)[:, None])


def suspected(model: nn.Module) -> list[int]:
    subject = subject_of(model, vocabulary=16)
    with subject.exactly():
        made = subject.copy()
        leaves, y = subject.differentiable(made, subject.inputs.draw(1, LENGTH))
    return later_gradients.suspects(y[0].sin().sum(-1), leaves)


@pytest.mark.parametrize(("t", "s"), [(0, 1), (30, 31), (31, 32), (31, 99), (63, 64), (64, 95)])
def test_one_pair_of_all_is_found(t, s):
    torch.manual_seed(0)
    for part in (1.0, 1e-6, 1e-9):
        model = Leaks(t, s, part=part)
        assert suspected(model) == [s]
        [found] = check(model, laws=["causality"], vocabulary=16)
        assert found.status == "failed"
    [found] = check(model := Leaks(t, s), laws=["causality"], vocabulary=16)
    if s < 65:  # it is seen by changes first
        assert f"output {t} " in found.detail
    else:
        assert found.detail.startswith(f"output {t} has a gradient of ")
    assert shown(found, model) > 1e-5


def test_right_models_are_suspected_of_nothing():
    torch.manual_seed(0)
    assert suspected(Leaks()) == suspected(Behind()) == []
    for kind in (Leaks, Behind, Fourier):
        [found] = check(kind(), laws=["causality"], vocabulary=16)
        assert found.status == "held", found


def test_where_powers_do_not_tell_all_inputs_are_changed():
    torch.manual_seed(0)
    [right] = check(Fourier(), laws=["causality"], vocabulary=16)
    assert "99 places of 100 inputs changed" in right.detail
    [sums] = check(Leaks(), laws=["causality"], vocabulary=16)
    assert "9 places of 100 inputs changed" in sums.detail
    [leaks] = check(Fourier(80, 90), laws=["causality"], vocabulary=16)
    assert leaks.status == "failed"


def test_a_second_table_is_differentiated_too():
    torch.manual_seed(0)
    [found] = check(model := Two(), laws=["causality"], vocabulary=16)
    assert found.status == "failed"
    assert shown(found, model) > 1e-5


def test_a_model_is_looked_at_up_to_its_own_length():
    torch.manual_seed(0)
    [found] = check(model := Leaks(299, 300, 512), laws=["causality"], vocabulary=16)
    assert found.detail.startswith("output 299 has a gradient of ")
    assert "to input 300" in found.detail
    assert shown(found, model) > 1e-5
    [shorter] = check(Leaks(299, 300, 256), laws=["causality"], vocabulary=16)
    assert "by gradients at length 256" in shorter.detail
