"""The sentence of the law of compiling stands for what torch's compiler would say."""

import logging
from typing import Any

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.compiling import captures
from sequence_laws.verdict import LawBroken


def test_a_law_s_sentence_stands_for_the_compiler_s_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: said.append(record))

    def looping(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, t] for t in range(x.shape[1])], 1)

    x = torch.ones(2, 9)
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 1)
    with pytest.raises(LawBroken, match="as of a loop over inputs"), captures("L=9"):
        torch.compile(looping, backend="eager", fullgraph=True)(x)
    assert not [record for record in said if record.levelno >= logging.WARNING]


def test_what_only_some_lengths_meet_is_said() -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[1] % 16 else x + 1

    lengths = {"x": {1: torch.export.Dim("length", min=2, max=32)}}
    with pytest.raises(LawBroken, match=r"Constraints violated.*; .*% 16"), captures("L=9"):
        torch.export.export(Cut(), (torch.ones(2, 9),), dynamic_shapes=lengths)


class Means(nn.Module):
    """Means of what is real; ``wrong`` says how long a text is whose mask is dropped where it is
    compiled by the real compiler."""

    def __init__(self, wrong: int = 10**9) -> None:
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(x) if mask is None else mask.long()
        if torch.compiler.is_compiling() and x.shape[1] >= self.wrong:
            real = torch.ones_like(real)
        h = (self.embed(x) * real[..., None]).sum(1) / real.sum(1)[:, None]
        return self.head(h[:, None] + self.embed(x))


def test_what_fails_without_the_compiler_too_is_not_its_failure() -> None:
    class Filled(Means):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            if mask is not None:  # as one that fills texts up and forgets where they began
                torch.arange(x.shape[1], x.shape[1] - x.shape[1] % 8)
            return super().forward(x, mask)

    [found] = check(Filled(), laws=("compiles",), causal=False)
    assert found.status == "held"
    assert "padding" not in found.detail
    [found] = check(Means(), laws=("compiles",), causal=False)
    assert "with padding" in found.detail


@pytest.mark.full("compiles, for seconds each")
@pytest.mark.parametrize("wrong", [10**9, 65])
def test_the_real_compiler_is_given_masks_and_a_longer_text(wrong: int) -> None:
    torch.manual_seed(0)
    model = Means(wrong)
    how: dict[str, Any] = {"laws": ["compiles"], "vocabulary": 16, "causal": False}
    [usual] = check(model, **how)
    [deep] = check(model, **how, depth="deep")
    assert usual.status == "held", usual.detail
    if wrong > 65:
        where = (
            "equal at length 17, at length 17 with padding on the left, at length 65 with padding"
        )
        assert f"by the real compiler {where} on the left" in deep.detail
    else:
        assert deep.status == "failed", deep.detail
        assert "with a mask, outputs are off by" in deep.detail
        assert shown(deep, model) > 1e-3
