"""A causal mixer of others that reads later tokens is found out, and one that does not is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from everyformer.core.leaks import leak_of
from everyformer.core.outputs import MixerOutput
from everyformer.genes.mixers.base import Rows, StreamingMixer

Reads = Callable[[Tensor], Tensor]
HONEST: dict[str, Reads] = {
    "itself": lambda x: x,
    "the sum so far": lambda x: x.cumsum(1),
    "chance": lambda x: x + torch.randn_like(x),
    "its row's first token": lambda x: x + x[:, :1],
}
LEAKING: dict[str, tuple[Reads, int, int]] = {
    # what is read, the first output that is changed, and by tokens from where on
    "the next token": (lambda x: x.roll(-1, 1), 0, 1),
    "the mean of all": (lambda x: x + x.mean(1, keepdim=True), 0, 1),
    "the end of its block of four": (lambda x: x[:, torch.arange(x.shape[1]) | 3], 0, 1),
    "a choice by the last token": (lambda x: torch.where(x[:, -1:, :1] > 0, x, -x), 0, 1),
}


def model_of(reads: Reads) -> nn.Module:
    """A mixer of others, whose outputs are what it reads."""

    class Reader(StreamingMixer):
        name = "reader"

        def build(self, max_length: int | None) -> None:
            self.out = nn.Linear(self.width, self.width)

        def forward_rows(self, rows: Rows, state: Any) -> MixerOutput:
            return MixerOutput(reads(rows.x), None, {})

    return nn.Sequential(Reader(width=4, causal=True))


@pytest.mark.parametrize("what", HONEST)
def test_no_output_changes_with_later_tokens(what: str) -> None:
    """Trying leaves the mode and the draws as they were."""
    model, before = model_of(HONEST[what]).train(), torch.get_rng_state()
    assert leak_of(model) is None
    assert model[0].training  # type: ignore[index]
    assert what == "chance" or torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("what", LEAKING)
def test_an_output_that_changes_with_later_tokens_is_named(what: str) -> None:
    reads, output, token = LEAKING[what]
    said = leak_of(model := model_of(reads))
    assert said is not None
    assert said.startswith(f"output {output} of the mixer 'reader' (")
    assert said.endswith(f"changes with tokens from {token} on, which come later")
    # one that reads both ways by right does not leak
    model[0].causal = False  # type: ignore[index]
    assert leak_of(model) is None


def later_blocks(x: Tensor, size: int = 48) -> Tensor:
    """The sum so far, but of the whole block in all blocks after the first."""
    at, blocks = torch.arange(x.shape[1]), torch.arange(x.shape[1]) // size
    same = (blocks[:, None] == blocks) & (blocks > 0)
    return ((at[:, None] >= at) | same).to(x) @ x


@pytest.mark.parametrize(
    ("length", "found"), [(40, None), (64, (48, 55)), (128, (48, 55)), (3000, (384, 429))]
)
def test_texts_as_long_as_those_trained_on_are_tried_too(length, found) -> None:
    said = leak_of(model_of(later_blocks), length)
    if found is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith(f"output {found[0]} ")
        assert f"from {found[1]} on" in said
