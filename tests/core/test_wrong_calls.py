"""Calls from Python that mean nothing are refused by what was given and what is expected."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer import functional
from everyformer.core.errors import EveryformerError

TOKENS = torch.arange(12).view(2, 6)


def model(name: str = "attention", task: str = "lm") -> Any:
    return ef.create_model(name, task, width=16, layers=1, heads=2, vocabulary=20).eval()


def drawn(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "flags for a mask": (lambda: model()(TOKENS, mask=TOKENS > 3), "(padding_mask=flags) marks"),
    "flags for a mixer's mask": (
        lambda: ef.create_mixer("linear", width=8)(drawn(1, 3, 8), mask=torch.ones(1, 3).bool()),
        "not a Tensor: Mask(padding_mask=flags)",
    ),
    "a number for a depth": (lambda: ef.create_model("gpt", depth=6), "`depth` is chosen by a"),
    "a list for a memory": (
        lambda: ef.create_model("gpt", memory=["segment"]), "compressive, memorizing, segment"
    ),
    "targets with fractions": (lambda: model()(TOKENS, targets=TOKENS + 0.9), "(2, 6) float32"),
    "targets of another length": (
        lambda: model()(TOKENS, targets=TOKENS[:, :5]), "must be (2, 6) integers"
    ),
    "no last token": (lambda: model()(TOKENS, last=0), "'last' is a number of tokens from 1 on"),
    "embeddings of another length": (
        lambda: model()(TOKENS, embeddings=drawn(2, 5, 16)), "(2, 5, 16), but the tokens (2, 6)"
    ),
    "no tokens after a state": (
        lambda: model("gpt")(TOKENS[:, :0], state=model("gpt").init_state(2)), "at least one row"
    ),
    "a prompt with fractions": (
        lambda: ef.generate(model(), torch.tensor([[1.9]]), tokens=2), "integers, not torch.float32"
    ),
    "a text from a masked model": (
        lambda: ef.generate(model("bert", "mlm"), [1], tokens=2), "the task mlm continues no text"
    ),
    "a task that there is not": (lambda: ef.list_members(task="x"), "unknown task 'x'; known: "),
    "an ability alone": (
        lambda: ef.list_members(abilities="streaming"),
        "('streaming',)",
    ),
    "an ability that there is not": (
        lambda: ef.list_members(abilities=("streams",)), "did you mean 'streaming'?"
    ),
    "lengths beyond the size": (
        lambda: ef.Mask.from_lengths(torch.tensor([2, 9]), 6), "from 0 to 6, not [2, 9]"
    ),
    "lengths below 0": (lambda: ef.Mask.from_lengths(torch.tensor([-1]), 6), "not [-1]"),
    "a word for a flag": (
        lambda: ef.create_mixer("attention", width=8, causal="no"),
        "`causal` must be bool",
    ),
    "flags for rows": (
        lambda: model().init_state(2).reorder(torch.tensor([True, False])), "not by (2,) bool"
    ),
    "rows of no number": (lambda: ef.predict(model(), np.zeros((0, 5), int)), "no rows to predict"),
    "batches of no row": (lambda: ef.predict(model(), TOKENS, batch=0), "from 1 on, not 0"),
    "a function to be checked": (
        lambda: ef.check(lambda x: x),
        "expected a torch.nn.Module",
    ),
    "numbers for flags": (
        lambda: functional.attention(*[drawn(1, 1, 3, 4)] * 3, mask=drawn(3, 3)), "as `bias`"
    ),
    "a gate that there is not": (
        lambda: functional.aft_simple(*[drawn(1, 3, 4)] * 3, gate="tanh"),
        "identity, relu, sigmoid",
    ),
    "a layout that there is not": (
        lambda: functional.rotate(drawn(1, 1, 3, 4), TOKENS[:1, :3], layout="interleave"),
        "did you mean 'interleaved'?",
    ),
    "a rule that there is not": (
        lambda: functional.alibi_slopes(6, "paper"),
        "known: alibi, geometric",
    ),
    "more tokens than rows of a table": (
        lambda: functional.spatial_gate(drawn(1, 9, 8), drawn(1, 5, 5), drawn(1, 5)), "(1, 9, 8)"
    ),
    "channels that do not divide": (
        lambda: functional.spatial_gate(drawn(1, 3, 8), drawn(3, 5, 5), drawn(3, 5)), "(3, 5, 5)"
    ),
    "a window below 0": (
        lambda: functional.aft_local(*[drawn(1, 3, 4)] * 3, drawn(3, 3), window=-1), "not -1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_means_nothing_is_refused(call: str) -> None:
    run, told = CALLS[call]
    with pytest.raises(EveryformerError) as caught:
        run()
    assert told in str(caught.value)
