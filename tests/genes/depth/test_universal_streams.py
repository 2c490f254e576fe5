"""The Universal Transformer's streams: which tokens a step computes, and what waits for later."""

from typing import Any

import pytest
import torch
from test_universal import LENGTH, TEXT, stack, traced
from torch import Tensor, nn

from everyformer.core.dispatch import watched
from everyformer.core.mask import Mask
from everyformer.core.subset import TokenSubset
from everyformer.genes.depth._deferred import Deferred
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_stack
from helpers import close, draw
from sequence_laws.flops import count_flops

HALTS: list[dict[str, Any]] = [
    {"layers": 2},
    {"layers": 2, "wide": 8.0, "halting_bias": 2.0},
    {"combine": "interpolate", "signal": "learned", "window": 4},
    {"halting": "none"},
    {"layers": 2, "feedforward": "sepconv"},
]
POSITIONS = [None, "rope", "alibi", "t5-relative", "xl-relative"]
# each with two of the positions, each position with two of them
EACH = [(POSITIONS[(n + k) % 5], options) for n, options in enumerate(HALTS) for k in (0, 2)]


@pytest.mark.parametrize(("position", "options"), EACH, ids=str)
def test_pieces_of_any_size_are_the_whole(position: str | None, options: dict[str, Any]) -> None:
    own = {"halting_bias": -0.5} if options.get("halting") != "none" else {}
    made = stack(steps=5, position=position, **{**own, **options})
    whole = made(TEXT).y
    if options.get("halting") != "none":
        steps, _ = traced(made, TEXT)
        assert len(steps.unique()) > 1
    state, parts, waited = made.init_state(2), [], False
    for piece in TEXT.split([4, 1, 1, 1, 1, 2, 1], 1):
        out = made(piece, state=state)
        state = out.state
        parts.append(out.y)
        waited = waited or bool((state.layers[-1].num_tokens < state.num_tokens).any())
    close(torch.cat(parts, 1), whole)
    assert options.get("halting") != "none" or not waited
    # a row that starts over, rows in another order, and a piece with padding in front
    state = made.init_state(2)
    state = made(TEXT[:, :5], state=state).state
    again = made(TEXT, state=state.reset(torch.tensor([True, False]))).y
    close(again[0], whole[0])
    turned = made(TEXT[:, 5:].flip(0), state=state.reorder(torch.tensor([1, 0]))).y
    close(turned.flip(0), whole[:, 5:])
    padding_mask = torch.tensor([[False, True, True], [True, True, True]])
    rows = torch.stack((torch.cat((TEXT[0, :1] * 1e3, TEXT[0, 5:7])), TEXT[1, 5:8]))
    out = made(rows, state=state, mask=Mask(padding_mask=padding_mask))
    close(out.y[padding_mask], torch.cat((whole[0, 5:7], whole[1, 5:8])))
    rows = torch.stack((TEXT[0, 7:9], TEXT[1, 8:10]))
    close(made(rows, state=out.state).y, torch.stack((whole[0, 7:9], whole[1, 8:10])))


@pytest.mark.parametrize(
    "options",
    [{"mixer": "performer"}, {"mixer": "aft-local"}, {"mixer": "gmlp"}, {"feedforward": "sepconv"}],
    ids=str,
)
def test_layers_that_answer_for_all_alone_take_in_at_once(options: dict[str, str]) -> None:
    made = stack(**options, layers=2, steps=5, halting_bias=-0.5)
    state, parts = made.init_state(2), []
    for piece in TEXT.split([4, 1, 5, 1], 1):
        out = made(piece, state=state)
        state = out.state
        parts.append(out.y)
        assert all(torch.equal(layer.num_tokens, state.num_tokens) for layer in state.layers)
    close(torch.cat(parts, 1), made(TEXT).y)


def test_deep_steps_take_in_what_waits_only_when_a_token_gets_there() -> None:
    made = stack(steps=6, wide=0.0, halting_bias=0.1)
    made.depth.weight.data[0] = 8.0
    made.depth.adds_positions = False
    x = TEXT[:1].clone()
    # the first channel alone says who halts: at once, or never
    for block in made.blocks:
        block.mixer.out.weight.data[0], block.feedforward.down.weight.data[0] = 0.0, 0.0
    x[..., 0] = 9.0
    x[:, 7, 0] = -9.0
    made.blocks[0].mixer_norm, made.blocks[0].feedforward_norm = nn.Identity(), nn.Identity()
    state, seen = made.init_state(1), []
    for piece in x.split(1, 1):
        out = made(piece, state=state)
        state = out.state
        seen.append([int(layer.num_tokens) for layer in state.layers])
    assert seen[6] == [7, 0, 0, 0, 0, 0]
    assert seen[7] == [8] * 6
    assert seen[-1] == [11, 8, 8, 8, 8, 8]
    assert isinstance(state.pending, Deferred)
    assert state.pending.padding_mask.shape == (1, 3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mixer": "performer"},
        {"mixer": "aft-simple"},
        {"feedforward": "sepconv"},
        {"residual": "pre"},
        {"layers": 1, "position": "rope", "signal": "learned"},
        {"position": "learned-per-layer"},
        {"mixer_options": {"bias": ("key", "output"), "kv_heads": 1, "qk_norm": True}},
    ],
    ids=str,
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_left_out_changes_nothing(options, checkpointing, monkeypatch) -> None:
    made = stack(**{"layers": 2, **options}, steps=5, halting_bias=-0.5).train()
    made.checkpointing = checkpointing
    for parameter in made.blocks.parameters():
        # biases too, which start at 0
        parameter.data += 0.1 * draw(*parameter.shape, seed=7)
    padding_mask = torch.ones(2, LENGTH, dtype=torch.bool)
    padding_mask[0, :3] = False
    x = TEXT.clone().requires_grad_()
    # every token halts at a step that is drawn, and a little of its own p is spent before
    ends = torch.randint(1, 6, padding_mask.shape, generator=torch.Generator().manual_seed(1))
    own = made.depth.chances
    now = iter(range(1, 100))

    def chances(x: Tensor) -> Tensor:
        return own(x) / 100 + (ends <= next(now))

    monkeypatch.setattr(made.depth, "chances", chances, raising=False)

    def run() -> list[Tensor]:
        nonlocal now
        now = iter(range(1, 100))
        torch.manual_seed(3)
        out = made(x, mask=Mask(padding_mask=padding_mask))
        loss = out.y[padding_mask].square().sum() + out.losses["ponder"]
        return [out.y[padding_mask], *torch.autograd.grad(loss, [x, *made.parameters()])]

    few = run()
    monkeypatch.setattr(TokenSubset, "of", classmethod(lambda cls, running: None))
    close(few, run(), 1e-9)


def test_what_a_step_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    length, width, hidden = 40, 32, 128
    steps = torch.tensor([1] * 30 + [4] * 6 + [5] * 4).expand(2, length)
    options = {"width": width, "layers": 1, "heads": 4, "dropout": 0.0}
    config = configure_layers("universal", True, length, **options, depth_options={"steps": 5})
    made, now = build_stack(config).eval(), iter(range(1, 6))
    halts = lambda x: (steps <= next(now)).float()  # noqa: E731
    monkeypatch.setattr(made.depth, "chances", halts, raising=False)
    with torch.no_grad():
        counted = count_flops(lambda: made(draw(2, length, width, dtype=torch.float32)))
    # queries, outputs, feed-forward and two products with keys of those that run
    running = 40 + 10 + 10 + 10 + 4
    # keys and values of all
    projected = 5 * 40
    tokens = running * (2 * width**2 + 2 * width * hidden + 2 * length * width)
    assert counted == 2 * (2 * tokens + 2 * projected * 2 * width**2)


RUNNING = ("depth universal", "running tokens")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, {RUNNING}),
        ({"mixer": "performer"}, {RUNNING, ("mixer performer", "all tokens")}),
        ({"feedforward": "sepconv"}, {("feed-forward sepconv", "all tokens")}),
    ],
)
def test_it_says_which_tokens_are_computed(options, said) -> None:
    made = stack(**options, steps=5, halting_bias=-0.5)

    def ways(**given: Any) -> set[tuple[str, str]]:
        with watched() as found:
            made(TEXT, **given)
        return {(way.engine, way.name) for way in found if "softmax" not in way.engine}

    assert said <= ways()
    assert ("depth universal", "all tokens") in ways(taps=["ffn-input:1"])


@pytest.mark.full("a rate over many draws")
def test_positions_begin_anywhere_in_training() -> None:
    made = stack(steps=2, halting="none", start=5)
    firsts = set()
    for seed in range(40):
        torch.manual_seed(seed)
        y = made.train()(TEXT).y
        firsts |= {
            first for first in range(7) for row in range(2)
            if torch.allclose(y[row], moved(made, first)[row], atol=1e-9)
        }  # fmt: skip
    assert firsts == set(range(6))
    close(made.eval()(TEXT).y, moved(made, 0))


def test_what_a_layer_lacks_is_what_a_row_has_read_since() -> None:
    waiting = Deferred.empty(2, 1).append(
        torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [9.0], [5.0]]]),
        torch.tensor([[0, 1, 2], [0, 1, 1]]),
        torch.tensor([[True, True, True], [True, False, True]]),
    )
    assert waiting.num_tokens.tolist() == [3, 2]
    found = waiting.lacked(torch.tensor([1, 1]))
    assert found is not None
    stream, positions, mask = found
    assert mask is not None
    assert mask.padding_mask is not None
    assert mask.padding_mask.tolist() == [[True, True], [False, True]]
    assert stream[mask.padding_mask].flatten().tolist() == [2, 3, 5]
    assert positions[mask.padding_mask].tolist() == [1, 2, 1]
    assert waiting.lacked(torch.tensor([3, 2])) is None
    # no mask where rows lack as many, so that caches stay without holes
    both = waiting.lacked(torch.tensor([1, 0]))
    assert both is not None
    assert both[2] is None


def moved(made: Any, first: int) -> Tensor:
    """Outputs of the text behind ``first`` tokens that nobody sees."""
    made.eval()
    state = made.init_state(2)
    state = type(state)(state.num_tokens + first, state.layers, state.pending)
    return made(TEXT, state=state).y
