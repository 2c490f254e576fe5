"""Every law catches mixers that are wrong by a little, and holds for what they were made of."""

import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from everyformer.checks.verify import LAWS, check_law
from everyformer.core.outputs import MixerOutput
from everyformer.engines.softmax import cache, visibility
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.family import info
from everyformer.genes.mixers import aft_local, attention
from everyformer.genes.mixers._aft import hide_padding
from everyformer.genes.mixers.aft_simple import AFTSimple, SimpleState


@dataclass(frozen=True)
class Wrong:
    """One change of one right function, and what its law says of it."""

    law: str
    what: str
    says: str
    member: str
    owner: Any
    name: str
    """of the function of ``owner`` that is changed"""
    change: Callable[[Callable[..., Any]], Callable[..., Any]]
    """the wrong function from the right one"""


def output(extra: Callable[..., Any]) -> Callable[..., Any]:
    """A change of `forward`: ``extra`` (mixer, x, y) instead of y."""

    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def forward(self, x, **more):
            out = right(self, x, **more)
            return MixerOutput(extra(self, x, out.y), out.state, out.losses)

        return forward

    return change


def forgotten(right):
    """Of all keys and values the state drops the oldest, once more after every call."""

    def last(self, count):
        return right(self, self.keys.shape[2] - 1 if count is None else count)

    return last


def miscounting(right):
    """Every call counts as one token."""

    def forward(self, x, *, state=None, **more):
        out = right(self, x, state=state, **more)
        return (
            out
            if state is None
            else out._replace(state=replace(out.state, num_tokens=state.num_tokens + 1))
        )

    return forward


def unread(part):
    """What a mask says of ``part`` is not read."""

    def change(right):
        def forward(self, x, *, mask=None, **more):
            return right(self, x, mask=mask and mask.without(part), **more)

        return forward

    return change


def of_the_past(right):
    """Running sums in both forms."""

    def average(self, k, v, rows):
        weights = hide_padding(k, rows.padding_mask).exp()
        return (weights * v).cumsum(1) / weights.cumsum(1)

    return average


def overflowing(right):
    """Exponentials of the keys as they are."""

    def average(self, k, v, rows):
        weights = hide_padding(k, rows.padding_mask).exp()
        if self.causal:
            return (weights * v).cumsum(1) / weights.cumsum(1)
        return ((weights * v).sum(1, keepdim=True) / weights.sum(1, keepdim=True)).expand_as(v)

    return average


def products_in_strips(self, x, y):
    """All pairs are multiplied, and few of them at a time are there."""
    for strip in x.split(128, 1):
        y = y + 0 * (strip @ x.mT).sum()
    return y


def products_in_the_gradient(self, x, y):
    """As many, and only of gradients."""
    y.register_hook(lambda g: products_in_strips(self, g, g))
    return y


def table_of_pairs(self, x, y):
    """All pairs are there, and none is multiplied by a matrix product."""
    return y + 0 * (x[:, :, None, 0] - x[:, None, :, 0]).sum()


def branching(self, x, y):
    return y + 1e-3 if float(x.sum()) > 0 else y


def everywhere(x):
    return torch.arange(x.shape[1], device=x.device)


def read_in_the_gradient(self, x, y):
    if y.requires_grad:
        y.register_hook(lambda g: g * float(g.abs().max()))
    return y


def copying(right):
    """Tokens go after a copy of those that are held."""

    def grown(self, *new, stay=True):
        return right(self.in_room(None), *new, stay=stay)

    return grown


def read_again(right):
    """All keys and values are read once more."""

    def append(self, *tokens):
        after = right(self, *tokens)
        after.keys.sum(), after.values.sum()
        return after

    return append


def counting_up(right):
    """Something of the length of the text is made at each step."""

    def resume(self, k, v, padding_mask, state):
        torch.zeros(int(state.num_tokens.max()))
        return right(self, k, v, padding_mask, state)

    return resume


def reading(padded):
    """A branch on a number, with a mask or without."""

    def change(right):
        def forward(self, x, *, mask=None, **more):
            assert (mask is not None) != padded or x.isfinite().all()
            return right(self, x, mask=mask, **more)

        return forward

    return change


def one_step_a_token(self, x, y):
    """A loop that a compiler writes out, again for every length."""
    return torch.stack([y[:, t] for t in range(y.shape[1])], 1)


def with_a_tensor_beside(right):
    """A drawn tensor that is neither parameter nor buffer: a score for each head's sink."""

    def init(self, **options):
        right(self, **options)
        self.sink = torch.randn(options["heads"])

    return init


def with_a_count_beside(right):
    """Outputs that depend on how often the module was called."""

    def forward(self, x, **more):
        self.calls = getattr(self, "calls", 0) + 1
        out = right(self, x, **more)
        return MixerOutput(out.y * (1 + 1e-3 * self.calls), out.state, out.losses)

    return forward


def later_blocks(x, size=70):
    """The mean of each block, of which the first shows nothing."""
    means = [part.mean(1, keepdim=True).expand_as(part) for part in x.split(size, 1)]
    return torch.cat([0 * means[0], *means[1:]], 1)


def simple(law: str, what: str, says: str, name: str, change: Callable[..., Any]) -> Wrong:
    """A wrong AFT-simple."""
    return Wrong(law, what, says, "aft-simple", AFTSimple, name, change)


def softmax(law: str, what: str, says: str, owner: Any, name: str, change: Any) -> Wrong:
    """A wrong softmax attention."""
    return Wrong(law, what, says, "attention", owner, name, change)


WRONG = (
    simple(
        "equation", "keys are scaled in the fast path", "off by", "average",
        lambda right: lambda self, k, v, rows: right(self, 1.001 * k, v, rows),
    ),
    simple(
        "equation", "keys get no gradient", "gradient", "average",
        lambda right: lambda self, k, v, rows: right(self, k.detach(), v, rows),
    ),
    softmax(
        "causality", "a mask that shows one token ahead", "moves by",
        cache, "visibility",
        lambda right: lambda mask, q, k, **of: right(mask, q + 1, k, **of | {"regular": False}),
    ),
    simple(
        "causality", "a gradient to the next token", "has a gradient of", "forward",
        output(lambda self, x, y: y + 1e-15 * (x.roll(-1, 1) - x.roll(-1, 1).detach())),
    ),
    simple(
        "causality", "a mean of the whole row, without a gradient", "output 0 moves by",
        "forward", output(lambda self, x, y: y + 1e-6 * x.detach().mean(1, keepdim=True)),
    ),
    simple(
        "causality", "a mean of later blocks, without a gradient", "at length 320",
        "forward", output(lambda self, x, y: y + 1e-6 * later_blocks(x.detach())),
    ),
    simple(
        "agreement", "a faster path without gradients", "with gradients output 0", "forward",
        output(lambda self, x, y: y if torch.is_grad_enabled() else 1.01 * y),
    ),
    softmax(
        "streaming", "a state that drops a token", "come in pieces that end at",
        KeyValueState, "last", forgotten,
    ),
    softmax(
        "streaming", "a reset that clears nothing", "a row that starts over", KeyValueState,
        "reset", lambda right: lambda self, where: self,
    ),
    simple(
        "streaming", "an average that is carried without its weight", "off by", "resume",
        lambda right: lambda self, k, v, padding_mask, state: right(
            self, k, v, padding_mask, replace(state, lse=state.lse.clamp(max=0.0))
        ),
    ),
    simple(
        "streaming", "a count of calls in the place of tokens", "the cache has seen [1, 1]",
        "forward", miscounting,
    ),
    Wrong(
        "streaming", "rows that stay where they were", "in the order", "aft-simple", SimpleState,
        "reorder", lambda right: lambda self, index: self,
    ),
    simple(
        "padding", "padding that is read", "stand in its padding", "forward",
        unread("padding_mask"),
    ),
    simple(
        "packing", "documents that mix", "marked by documents", "forward", unread("documents"),
    ),
    softmax(
        "conditions", "ids that come again are one document", "off by", visibility, "runs_of",
        lambda right: lambda documents, padding_mask=None: documents,
    ),
    softmax(
        "limits", "a window one key too narrow", "window >= L", cache, "visibility",
        lambda right: lambda *of, windows=(None,), **more: right(
            *of, windows=tuple(w and w - 1 for w in windows), **more
        ),
    ),
    Wrong(
        "limits", "a window one place too wide", "window 0 is AFT-simple", "aft-local", aft_local,
        "reach", lambda right: lambda window, length: right(window + 1, length),
    ),
    simple("numbers", "exponentials that overflow", "not finite", "average", overflowing),
    simple(
        "numbers", "another dtype", "of float32 on cpu, not", "forward",
        output(lambda self, x, y: y.float()),
    ),
    simple(
        "numbers", "keys of few digits", "has the digits of bfloat16", "average",
        lambda right: lambda self, k, v, rows: right(
            self, k if k.dtype == torch.float64 else k.to(torch.bfloat16).to(k), v, rows
        ),
    ),
    simple(
        "gradients", "keys that learn nothing", "parameters get no gradient", "average",
        lambda right: lambda self, k, v, rows: right(self, k.detach(), v, rows),
    ),
    simple(
        "cost", "products of all pairs", "operations grow faster", "forward",
        output(products_in_strips),
    ),
    simple(
        "cost", "products of all pairs of gradients", "operations grow faster", "forward",
        output(products_in_the_gradient),
    ),
    simple(
        "cost", "a table of all pairs", "largest tensor grow faster", "forward",
        output(table_of_pairs),
    ),
    simple("compiles", "a branch on a number", "not one graph", "forward", output(branching)),
    simple(
        "compiles", "a graph for each length", "as of a loop", "forward", output(one_step_a_token)
    ),
    simple(
        "compiles", "another graph for longer texts", "; 0/0: ", "forward",
        output(lambda self, x, y: y + 0 if x.shape[1] <= 16 else y * 1),
    ),
    simple(
        "compiles", "another output where it is compiled", "off by", "forward",
        output(lambda self, x, y: y * 1.001 if torch.compiler.is_compiling() else y),
    ),
    Wrong(
        "saving", "a tensor that is not saved", "something that outputs", "attention",
        attention.Attention, "__init__", with_a_tensor_beside,
    ),
    simple(
        "determinism", "numbers of another generator", "two runs in evaluation", "forward",
        output(lambda self, x, y: y * (1 + 1e-3 * random.random())),
    ),
    simple(
        "determinism", "a count that is not saved", "two runs in evaluation", "forward",
        with_a_count_beside,
    ),
    simple(
        "bidirectional", "a mixer that reads the past in both forms", "causal alone", "average",
        of_the_past,
    ),
    simple(
        "bidirectional", "a mixer that reads nothing", "in any form", "average",
        lambda right: lambda self, k, v, rows: v,
    ),
    simple("devices", "a branch on a number", "on meta", "forward", output(branching)),
    simple("devices", "a number that is read of texts alone", "on meta", "forward", reading(False)),
    simple("devices", "a number that is read of padded rows", "on meta", "forward", reading(True)),
    simple(
        "devices", "a tensor that stays on the host", "on meta", "forward",
        output(lambda self, x, y: y * torch.ones(y.shape[-1], dtype=y.dtype)),
    ),
    simple(
        "devices", "numbers that the host sends at every step", "_to_copy", "forward",
        output(lambda self, x, y: y * torch.ones(y.shape[-1], dtype=y.dtype).to(y.device)),
    ),
    simple(
        "devices", "a number that only the gradient reads", "on meta", "forward",
        output(read_in_the_gradient),
    ),
    simple(
        "devices", "sums that autocast makes of another dtype", "under autocast", "forward",
        output(lambda self, x, y: torch.zeros_like(x).index_add(1, everywhere(x), y)),
    ),
    simple(
        "devices", "outputs that no gradient passes", "does not require grad", "forward",
        output(lambda self, x, y: y.detach()),
    ),
    softmax(
        "traffic", "a copy at each step", "a copy of the past", KeyValueState, "grown", copying
    ),
    softmax(
        "traffic", "what is held, twice", "and the row says", KeyValueState, "append", read_again
    ),
    simple("traffic", "numbers of the whole text", "is constant", "resume", counting_up),
)  # fmt: skip


@functools.cache
def held(member: str, law: str) -> str:
    """A refusal of the right member; '' where the law holds."""
    found = check_law(info(member), law)
    return "" if found.status == "held" else found.detail


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: f"{w.law}: {w.what}".replace(" ", "-"))
def test_a_law_catches_what_is_wrong(wrong, monkeypatch):
    assert not held(wrong.member, wrong.law)
    # of a class the function that it inherits, too; of a module what stands there
    monkeypatch.setattr(wrong.owner, wrong.name, wrong.change(getattr(wrong.owner, wrong.name)))
    broken = check_law(info(wrong.member), wrong.law)
    assert broken.status == "failed"
    assert not re.match(r"[A-Z]\w*: ", broken.detail), "the law crashed"
    assert wrong.says in broken.detail


def test_every_law_has_its_wrong_mixers():
    assert {wrong.law for wrong in WRONG} == set(LAWS)
