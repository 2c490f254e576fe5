"""The feed-forward of separable convolutions: torch's own layers, a loop by the number, streams.

That padding, packing, resets, memories and pieces leave texts as they are is a law of all members,
which is tried with it too.
"""

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.checks.cases import randomize_
from everyformer.core.errors import EveryformerError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.genes.feedforward import FeedForwardOptions
from everyformer.genes.feedforward.sepconv import SeparableFeedForward
from helpers import both_ways, close, draw

WIDTH, HIDDEN = 6, 9
BOTH = pytest.mark.parametrize("causal", [True, False])


def feed(causal: bool) -> SeparableFeedForward:
    torch.manual_seed(0)
    own = FeedForwardOptions(expansion=1.5)
    made = SeparableFeedForward(own, width=WIDTH, causal=causal).double().eval()
    randomize_(made)
    return made


def by_number(made: SeparableFeedForward, text: Tensor) -> Tensor:
    """Of one whole text (L, width), a product at a time."""

    def convolved(x: Tensor, taps: Tensor, linear: nn.Linear) -> Tensor:
        reach = len(taps) - 1 if made.causal else (len(taps) - 1) // 2
        y = torch.zeros_like(x)
        for t in range(len(x)):
            for n in range(len(taps)):
                at = t + n - reach
                for channel in range(x.shape[1]):
                    if 0 <= at < len(x):
                        y[t, channel] += taps[n, channel] * x[at, channel]
        assert linear.bias is not None
        return torch.stack([linear.weight @ row + linear.bias for row in y])

    with torch.no_grad():
        return convolved(convolved(text, made.first, made.up).clamp(min=0), made.second, made.down)


@BOTH
def test_it_is_torchs_convolutions_and_linear_layers(causal: bool) -> None:
    made, x = feed(causal), draw(2, 9, WIDTH)

    def convolution(taps: Tensor) -> nn.Module:
        size, channels = taps.shape
        layer = nn.Conv1d(channels, channels, size, groups=channels, bias=False).double()
        layer.weight = nn.Parameter(taps.detach().t()[:, None].clone())
        left = size - 1 if causal else size // 2
        return nn.Sequential(nn.ConstantPad1d((left, size - 1 - left), 0.0), layer)

    h = convolution(made.first)(x.transpose(1, 2)).transpose(1, 2)
    h = convolution(made.second)(made.up(h).relu().transpose(1, 2)).transpose(1, 2)
    close(made(x)[0], made.down(h))


KEEP = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1, 0, 0]], dtype=torch.bool)
DOCUMENTS = torch.tensor([[7, 7, 3, 3, 3, 3, 5, 3, 3], [0, 0, 0, 0, 0, 2, 2, 2, 2]])
MASKS = {
    "all": (Mask(), [[[0, 1, 2, 3, 4, 5, 6, 7, 8]]] * 2),
    "padded": (Mask(padding_mask=KEEP), [[[2, 3, 4, 5, 6, 7, 8]], [[0, 1, 2, 4, 5, 6]]]),
    "packed": (
        Mask(documents=DOCUMENTS),
        [[[0, 1], [2, 3, 4, 5], [6], [7, 8]], [[0, 1, 2, 3, 4], [5, 6, 7, 8]]],
    ),
    "padded and packed": (
        Mask(padding_mask=KEEP, documents=DOCUMENTS),
        [[[2, 3, 4, 5], [6], [7, 8]], [[0, 1, 2, 4], [5, 6]]],
    ),
}
"""a mask, and which tokens each text of a row has"""


@BOTH
@pytest.mark.parametrize("name", MASKS)
def test_each_text_is_convolved_alone(name: str, causal: bool) -> None:
    made, x, (mask, rows) = feed(causal), draw(2, 9, WIDTH), MASKS[name]
    if mask.padding_mask is not None:
        x[~mask.padding_mask] = torch.nan
    y, _ = made(x, mask)
    for row, texts in enumerate(rows):
        for at in texts:
            close(y[row, at], by_number(made, x[row, at]))


@pytest.mark.parametrize("cuts", [(0, 1, 9), (0, 4, 5, 6, 9), (0, 2, 3, 4, 5, 6, 7, 8, 9)], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_any_cut_of_a_stream_is_the_whole(cuts: tuple[int, ...], padded: bool) -> None:
    made, x = feed(True), draw(2, 9, WIDTH)
    padding_mask = KEEP if padded else torch.ones_like(KEEP)
    whole, _ = made(x, Mask(padding_mask=padding_mask))
    state, parts = made.init_state(2), []
    for a, b in pairwise(cuts):
        mask = Mask(padding_mask=padding_mask[:, a:b]) if padded else None
        y, state = made(x[:, a:b], mask, state)
        parts.append(y)
    close(torch.cat(parts, 1)[padding_mask], whole[padding_mask])
    assert state.num_tokens.tolist() == padding_mask.sum(1).tolist()
    assert state.nbytes == 2 * 8 * (2 * WIDTH + 4 * HIDDEN + 1)
    # a row that starts over has nothing in front
    y, _ = made(x, None, state.reset(torch.tensor([True, False])))
    close(y[0], by_number(made, x[0]))
    assert not torch.allclose(y[1], by_number(made, x[1]))


def test_documents_beside_a_state_begin_with_what_it_holds_where_the_first_is_0() -> None:
    made, before, x = feed(True), draw(2, 3, WIDTH, seed=2), draw(2, 9, WIDTH)
    state = made(before, None, made.init_state(2))[1]
    y, after = made(x, Mask(documents=DOCUMENTS), state)
    close(y[0, :2], by_number(made, x[0, :2]))
    close(y[1, :5], by_number(made, torch.cat((before[1], x[1, :5])))[3:])
    close(y[1, 5:], by_number(made, x[1, 5:]))
    more = draw(2, 2, WIDTH, seed=3)
    y, _ = made(more, None, after)
    for row, at in ((0, [7, 8]), (1, [5, 6, 7, 8])):
        close(y[row], by_number(made, torch.cat((x[row, at], more[row])))[len(at) :])


def model(member: str = "gpt", task: str = "lm", **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 2, "layers": 2, "vocabulary": 9, "max_length": 32}
    plain = {"feedforward": "sepconv", "dropout": 0.0, "embedding_dropout": 0.0}
    made = ef.create_model(member, task, **sizes, **plain, **options).double()
    randomize_(made)
    return made


@pytest.mark.parametrize("member", ["transformer", "universal"])
def test_decoders_write_what_they_were_taught_with(member: str) -> None:
    own = {"halting_bias": -0.5, "steps": 4} if member == "universal" else {}
    made = model(member, "seq2seq", depth_options=own).eval()
    source, prefix = torch.randint(1, 9, (2, 7)), torch.randint(1, 9, (2, 6))
    padding_mask = torch.ones(2, 7, dtype=torch.bool)
    padding_mask[0, 5:] = False
    taught = made(source, prefix=prefix, mask=Mask(padding_mask=padding_mask)).logits
    context = made.encode(source, Mask(padding_mask=padding_mask)).context
    # two beams a sentence
    rows = torch.tensor([0, 0, 1, 1])
    state, parts = made.init_state(4), []
    for piece in prefix[rows].split([1, 1, 3, 1], 1):
        out = made.decode(piece, context, state=state)
        state = out.state
        parts.append(out.logits)
    close(torch.cat(parts, 1), taught[rows])
    if member == "universal":
        with ef.trace(made) as seen:
            made(source, prefix=prefix, mask=Mask(padding_mask=padding_mask))
        assert all(len(steps.unique()) > 1 for steps in seen.find("halting").values())


def test_reversible_stacks_learn_what_autograd_says() -> None:
    made = model("attention", residual="reversible", tie=False).train()
    tokens = torch.randint(0, 9, (2, 9))

    def gradients() -> list[Tensor]:
        out = made(tokens, targets=tokens.roll(-1, 1), mask=Mask(padding_mask=KEEP))
        return [out.loss, *torch.autograd.grad(out.loss, list(made.parameters()))]

    close(*both_ways(gradients))


@pytest.mark.parametrize("member", ["gtrxl", "gpt"])
def test_an_episode_that_begins_in_a_segment_reads_nothing_before_it(member: str) -> None:
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "layers": 2, "heads": 2, "max_length": 32}
    own = {"position": "xl-relative"} if member == "gtrxl" else {}
    body = ef.create_body(member, **sizes, feedforward="sepconv", **own).double().eval()
    x, reset = draw(2, 9, WIDTH), torch.zeros(2, 9, dtype=torch.bool)
    reset[0, [2, 6]] = reset[1, 5] = True
    y, state = body(x, None, reset)
    more = draw(2, 3, WIDTH, seed=2)
    later, _ = body(more, state)
    for row, first in ((0, 6), (1, 5)):
        alone, begun = body(x[row : row + 1, first:])
        close(y[row, first:], alone[0])
        close(later[row], body(more[row : row + 1], begun)[0][0])
    close(y[0, 2:6], body(x[:1, 2:6])[0][0])


def foreign() -> None:
    tokens, made = torch.zeros(1, 3, dtype=torch.long), model()
    made(tokens, state=ef.create_model("gpt", width=12, heads=2, layers=2).init_state(1))


REFUSED: list[tuple[Any, type[EveryformerError], str]] = [
    (lambda: model(depth="calm"), GeneError, "depth 'calm' needs the keys of tokens that have"),
    (lambda: model(depth="depth-adaptive"), GeneError, "feedforward 'sepconv' reads"),
    (lambda: model("gmlp"), GeneError, "`feedforward` has no meaning"),
    (lambda: feed(True)(draw(1, 3, WIDTH), Mask(attention_mask=torch.ones(3, 3, dtype=torch.bool))),
     UnsupportedError, "feed-forward 'sepconv' cannot honour the mask part(s) attention_mask"),
    (foreign, ShapeError, "continues from a LayerState"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "kind", "said"), REFUSED)
def test_what_cannot_be_is_refused(build, kind, said) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        build()
