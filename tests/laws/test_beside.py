"""Modules that must be given more than their inputs: targets, a context, the ids of an encoder."""

from typing import Any

import pytest
import torch
from programs import shown
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sequence_laws import check
from sequence_laws.errors import ShapeError

LAWS = ("causality", "padding", "batch", "gradients", "lengths")


class Attends(nn.Module):
    """Causal attention, and attention to a context; ``wrong`` names what goes wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 8), nn.Linear(8, 16)
        self.qkv, self.read = nn.Linear(8, 24), nn.Linear(8, 16)

    def hidden(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(h).chunk(3, -1)
        seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril(int(self.wrong == "leaks"))
        seen = seen if mask is None or self.wrong == "mask" else seen & mask[:, None]
        h = h + (q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v
        return h + h.mean(0) if self.wrong == "batch" else h

    def crossed(self, h: Tensor, context: Tensor) -> Tensor:
        k, v = self.read(context).chunk(2, -1)
        return self.head(h + (h @ k.mT).softmax(-1) @ v)


class LastAlone(Attends):
    """Without targets it gives the last output."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        del self.read

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Any]:
        h = self.hidden(self.embed(idx))
        if targets is None:
            return self.last(self.head(h[:, [-1]])), None
        y = self.head(h)
        return y, cross_entropy(y.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def last(self, y: Tensor) -> Tensor:
        return y


class LastVector(LastAlone):
    """As (B, C), like what pools."""

    def last(self, y: Tensor) -> Tensor:
        return y[:, 0]


class Context(Attends):
    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.crossed(self.hidden(self.embed(x), mask), context)


class Memory(Attends):
    """It reads features."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.embed, self.d_model = nn.Identity(), 8

    def forward(self, x: Tensor, memory: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        mask = None if padding_mask is None else ~padding_mask
        return self.crossed(self.hidden(x, mask), memory)


class Both(Attends):
    def forward(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        mask = None if decoder_attention_mask is None else decoder_attention_mask.bool()
        h = self.hidden(self.embed(decoder_input_ids), mask)
        context = self.embed(input_ids)
        return {"logits": self.crossed(h, context + context.mean(1, keepdim=True))}


class Required(Attends):
    def forward(self, src: Tensor, src_mask: Tensor, tgt: Tensor) -> Tensor:
        context = self.embed(src) * src_mask[..., None]
        return self.crossed(self.hidden(self.embed(tgt)), context)


KINDS = (LastAlone, LastVector, Context, Memory, Both, Required)
MASKED = (Context, Memory, Both)


@pytest.mark.parametrize("kind", KINDS)
def test_right_modules_hold(kind: type[Attends]) -> None:
    torch.manual_seed(0)
    for one in check(kind(), laws=LAWS):
        exempt = one.law == "padding" and kind not in MASKED
        assert one.status == ("exempt" if exempt else "held"), one


@pytest.mark.parametrize(
    ("kind", "wrong", "law"),
    [
        *((kind, "leaks", "causality") for kind in KINDS),
        *((kind, "batch", "batch") for kind in KINDS),
        *((kind, "mask", "padding") for kind in MASKED),
    ],
)
def test_what_is_wrong_in_them_is_found(kind: type[Attends], wrong: str, law: str) -> None:
    torch.manual_seed(0)
    model = kind(wrong)
    [found] = check(model, laws=[law])
    assert found.status == "failed", found
    if law == "batch":  # it prints three numbers
        assert "given(x)" in found.reproduction
        return
    assert shown(found, model) > 1e-3


def test_a_context_is_given_to_a_cache_too() -> None:
    class Sums(Attends):
        def forward(
            self, x: Tensor, context: Tensor, cache: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            h = self.embed(x).cumsum(1)
            h = h if cache is None else h + cache * (self.wrong != "forgets")
            return self.crossed(h, context), h[:, -1:]

    torch.manual_seed(0)
    [found] = check(Sums(), laws=["streaming"])
    assert found.status == "held", found
    [found] = check(model := Sums("forgets"), laws=["streaming"])
    assert found.status == "failed"
    assert shown(found, model) > 1e-3


def test_labels_of_a_classifier_are_no_targets() -> None:
    class Classifies(Attends):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
            y = self.head(self.embed(x).mean(1))
            loss = None if labels is None else cross_entropy(y, labels)
            return {"logits": y, "loss": loss}

    [found] = check(Classifies(), laws=["causality"])
    assert found.detail == "it gives one output a row, and none at a position"


def test_one_output_of_a_text_is_no_output_at_each_position() -> None:
    class Last(Attends):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.hidden(self.embed(x)))[:, -1:]

    with pytest.raises(ShapeError, match="expected an output at each position"):
        check(Last())
