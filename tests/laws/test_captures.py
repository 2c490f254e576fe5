"""The sentence of the law of compiling stands for what torch's compiler would say."""

import logging

import pytest
import torch

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
