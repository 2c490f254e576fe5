"""The Universal Transformer: signals, halting, what comes out, what it costs and what is refused.

Oracles: torch's encoder layer in a loop; Graves' recurrence in NumPy, which shares the layer with
the code but nothing else.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.blocks.passing import Pass
from everyformer.core.chosen import Chosen
from everyformer.core.dispatch import watched
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.data.text import TextDataset
from everyformer.genes.depth._pending import Pending
from everyformer.genes.depth.universal import Account, Universal, UniversalOptions
from everyformer.genes.wirings.pre import PreNorm
from everyformer.models.build import configure_layers
from everyformer.models.layers import build_stack
from everyformer.report.pictures import draw_pictures
from everyformer.training.evaluate import evaluate
from everyformer.training.optimiser import parameter_groups
from helpers import close, covering, draw
from sequence_laws.flops import count_flops

WIDTH, LENGTH = 12, 11
TEXT = draw(2, LENGTH, WIDTH)


def stack(causal: bool = True, layers: int = 1, wide: float = 3.0, **options: Any) -> Any:
    """Layers whose tokens halt at different steps: w is ``wide`` times as long as at the start."""
    own = {name: options.pop(name) for name in (*options,) if hasattr(UniversalOptions, name)}
    sizes = {"width": WIDTH, "heads": 3, "layers": layers, "dropout": 0.0, "length": 32}
    torch.manual_seed(0)
    config = configure_layers("universal", causal, depth_options=own, **sizes, **options)
    made = build_stack(config).double().eval()
    for parameter in made.blocks.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    if hasattr(made.depth, "weight"):
        made.depth.weight.data *= wide
    return made


def traced(made: Any, x: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """N and N + R of every token, (B, L) each."""
    with ef.trace(made) as seen:
        made(x, **given)
    [steps], [rest] = (seen.find(name).values() for name in ("halting", "remainder"))
    return steps, steps + rest


def signal(length: int, step: int, waves: str = "paper") -> np.ndarray:
    """P^t (L, width), a number at a time."""
    table = np.zeros((length, WIDTH))
    half = WIDTH // 2
    for i in range(length):
        for j in range(half):
            if waves == "paper":
                w, sine, cosine, t = 10000 ** (-2 * j / WIDTH), 2 * j, 2 * j + 1, step
            else:
                w, sine, cosine, t = 10000 ** (-j / (half - 1)), j, half + j, step - 1
            table[i, sine] = math.sin(i * w) + math.sin(t * w)
            table[i, cosine] = math.cos(i * w) + math.cos(t * w)
    return table


def oracle(made: Any, x: Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """y (B, L, width) before the last norm, N and the mean of N + R, token by token."""
    o, [layer] = made.depth.options, made.blocks
    w, b = made.depth.weight.detach().numpy(), float(made.depth.bias.detach())
    h, (rows, length, _) = x.detach().numpy().copy(), x.shape
    y, steps, rest = np.zeros_like(h), np.zeros((rows, length), int), np.zeros((rows, length))
    spent, runs = np.zeros((rows, length)), np.ones((rows, length), bool)
    for t in range(1, o.steps + 1):
        moved = h + signal(length, t, o.waves)
        new = layer(torch.from_numpy(moved)).y.detach().numpy()
        for r in range(rows):
            for i in range(length):
                running = runs[r, i]
                if running or o.halted == "evolve":
                    h[r, i] = new[r, i]
                if not running:
                    continue
                p = 1 / (1 + math.exp(-(moved[r, i] @ w + b)))
                steps[r, i] = t
                stops = spent[r, i] + p > 1 - o.epsilon or (t == o.steps and o.cap == "force")
                weight = 1 - spent[r, i] if stops else p
                if stops:
                    rest[r, i], runs[r, i] = weight, False
                else:
                    spent[r, i] += p
                if o.combine == "accumulated":
                    y[r, i] += weight * new[r, i]
                elif o.combine == "interpolate":
                    y[r, i] = weight * new[r, i] + (1 - weight) * y[r, i]
                else:
                    y[r, i] = new[r, i]
    return y, steps, float((steps + rest).mean())


@pytest.mark.parametrize("wiring", ["post", "pre"])
def test_without_signals_and_halting_it_is_the_layers_repeated(wiring: str) -> None:
    none = {"steps": 3, "halting": "none", "signal": "none"}
    made = stack(layers=2, wiring=wiring, position="alibi", **none)
    repeated = build_stack(
        configure_layers(
            "universal", True, 32, width=WIDTH, heads=3, layers=2, wiring=wiring, position="alibi",
            depth="repeat", times=3,
        )
    ).double().eval()  # fmt: skip
    repeated.load_state_dict(made.state_dict())
    close(made(TEXT).y, repeated(TEXT).y)


@pytest.mark.parametrize("waves", ["paper", "tensor2tensor"])
@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
def test_fixed_steps_are_torchs_layer_in_a_loop(first: bool, waves: str) -> None:
    made = stack(False, steps=4, halting="none", waves=waves, wiring="pre" if first else "post")
    [block] = made.blocks
    theirs = nn.TransformerEncoderLayer(
        WIDTH, 3, 4 * WIDTH, dropout=0.0, activation="relu", layer_norm_eps=1e-6, batch_first=True,
        norm_first=first, dtype=torch.float64,
    ).eval()  # fmt: skip
    feed, attention = block.feedforward, theirs.self_attn
    with torch.no_grad():
        for bias in (attention.in_proj_bias, attention.out_proj.bias):
            bias.zero_()
        attention.in_proj_weight.copy_(block.mixer.project.weights[0])
        attention.out_proj.weight.copy_(block.mixer.out.weight)
        norms = (theirs.norm1, block.mixer_norm), (theirs.norm2, block.feedforward_norm)
        for a, b in ((theirs.linear1, feed.up), (theirs.linear2, feed.down), *norms):
            a.weight.copy_(b.weight)
            a.bias.copy_(b.bias)
    h = TEXT
    for t in range(1, 5):
        h = theirs(h + torch.from_numpy(signal(LENGTH, t, waves)))
    close(made(TEXT).y, made.norm(h))


@covering(
    combine=["accumulated", "interpolate", "last"],
    halted=["copy", "evolve"],
    cap=["force", "drop"],
    causal=[True, False],
    feedforward=["relu", "sepconv"],
)
def test_halting_is_graves_recurrence(
    combine: str, halted: str, cap: str, causal: bool, feedforward: str
) -> None:
    own = {"combine": combine, "halted": halted, "cap": cap, "halting_bias": -0.5}
    made = stack(causal, steps=5, epsilon=0.05, tau=0.5, feedforward=feedforward, **own)
    y, steps, ponder = oracle(made, TEXT)
    assert set(steps.flatten()) == {1, 2, 3, 4, 5}
    out = made(TEXT)
    close(out.y, made.norm(torch.from_numpy(y)))
    close(float(out.losses["ponder"].detach()), 0.5 * ponder)
    assert traced(made, TEXT)[0].tolist() == steps.tolist()


class Counted(Pass):
    """A pass whose step t gives every token the unit vector of channel t + 1."""

    taken = 0

    def step(self, n: int, layer: int, stream: Tensor, chosen: Chosen | None = None) -> Tensor:
        self.taken += 1
        return torch.zeros_like(stream).index_fill(-1, torch.tensor(layer + 1), 1.0)


def counted(steps: int) -> Counted:
    return Counted([], PreNorm(), [(0,)] * steps)


def weights(p: list[float], **options: Any) -> tuple[list[float], float, int]:
    """How much of each step comes out where the chances to halt are ``p``; N + R; steps run."""
    own = UniversalOptions(steps=len(p), signal="learned", tau=1.0, **options)
    depth = Universal(own, width=100).double()
    given = counted(len(p))
    with torch.no_grad():
        depth.weight.zero_()[0] = 1.0
        depth.bias.zero_()
        depth.signals.zero_()
        # a certain p of 1 has no finite logarithm of its odds
        odds = [math.log(one / (1 - one)) if one < 1 else 50.0 for one in p]
        depth.signals[:, 0] = torch.tensor(odds, dtype=torch.float64) / 10
        x = torch.zeros(1, 1, 100, dtype=torch.float64)
        y = given.forward(x, depth.course(given, x))
    return y[0, 0, 1 : len(p) + 1].tolist(), float(given.losses["ponder"].detach()), given.taken


@pytest.mark.parametrize(
    ("p", "options", "expected", "ponder"),
    [
        ([0.3, 0.4, 0.9], {}, [0.3, 0.4, 0.3], 3.3),
        ([0.3, 0.4, 0.3], {"combine": "interpolate"}, [0.126, 0.28, 0.3], 3.3),
        ([0.3, 0.4, 0.3], {"combine": "last"}, [0, 0, 1], 3.3),
        ([0.05] * 6, {"cap": "drop"}, [0.05] * 6, 6.0),
        ([0.05] * 6, {}, [0.05] * 5 + [0.75], 6.75),
        ([1.0] * 4, {}, [1, 0, 0, 0], 2.0),
        ([0.99, 0.5], {}, [0.99, 0.01], 2.01),
        ([0.985, 0.5], {"epsilon": 0.02}, [1, 0], 2.0),
    ],
)
def test_weights_of_the_steps(
    p: list[float], options: dict[str, Any], expected: list[float], ponder: float
) -> None:
    found, cost, _ = weights(p, **options)
    assert found == pytest.approx(expected, abs=1e-12)
    assert cost == pytest.approx(ponder, abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4, 7, 20, 64])
def test_equal_chances_of_1_in_k_halt_after_k_steps(k: int) -> None:
    found, cost, taken = weights([1 / k] * (k + 3))
    assert taken == k
    assert sum(found) == pytest.approx(1, abs=1e-12)
    assert cost == pytest.approx(k + 1 / k, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_add_up_to_1_whatever_the_dtype(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    account = Account(torch.ones(64, 64, dtype=torch.bool), 0.01, torch.float32)
    total = torch.zeros(64, 64)
    for t in range(9):
        p = torch.rand(64, 64, generator=generator).to(dtype) / 2
        total = total + account.spend(p.float(), t == 8)
    close(total, torch.ones(64, 64), 1e-6)
    assert not bool(account.running.any())
    made = stack(steps=5, halting_bias=-0.5).to(dtype)
    assert made(TEXT.to(dtype)).losses["ponder"].dtype == torch.float32


def test_a_copied_token_stays_as_it_is() -> None:
    made = stack(steps=5, layers=2, halting_bias=-0.5)
    taps = [f"block-output:{2 * t}" for t in range(1, 6)]
    out = made(TEXT, taps=taps)
    steps, _ = traced(made, TEXT)
    assert 1 < float(steps.double().mean()) < 5
    streams = torch.stack([out.taps[tap] for tap in taps])
    for t in range(1, 5):
        halted = steps <= t
        assert torch.equal(streams[t][halted], streams[t - 1][halted])
        assert bool((streams[t][~halted] != streams[t - 1][~halted]).any(-1).all())


def test_without_order_texts_are_bags() -> None:
    made, by = stack(False, steps=5, order="none", halting_bias=-0.5), torch.randperm(LENGTH)
    close(made(TEXT[:, by]).y, made(TEXT).y[:, by])
    assert torch.equal(traced(made, TEXT[:, by])[0], traced(made, TEXT)[0][:, by])
    ordered = stack(False, steps=5, halting_bias=-0.5)
    assert not torch.allclose(ordered(TEXT[:, by]).y, ordered(TEXT).y[:, by])


@pytest.mark.parametrize("halted", ["copy", "evolve"])
@pytest.mark.parametrize("feedforward", ["relu", "sepconv"])
def test_the_future_changes_neither_outputs_nor_steps_nor_cost(
    halted: str, feedforward: str
) -> None:
    own = {"halted": halted, "feedforward": feedforward, "halting_bias": -0.5}
    made, cut = stack(steps=5, layers=2, **own), 6
    other = torch.cat((TEXT[:, :cut], draw(2, LENGTH - cut, WIDTH, seed=5)), 1)
    close(made(other).y[:, :cut], made(TEXT).y[:, :cut])
    for mine, theirs in zip(traced(made, TEXT), traced(made, other), strict=True):
        close(mine[:, :cut].double(), theirs[:, :cut].double())
    assert not torch.equal(traced(made, TEXT)[0], traced(made, other)[0])
    x = TEXT.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(made(x[:, :cut]).losses["ponder"], x)
    assert bool((gradient[:, :cut] != 0).any())
    (later,) = torch.autograd.grad(made(x).y[:, :cut].sum(), x)
    assert not bool(later[:, cut:].any())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right", "packed"])
@pytest.mark.parametrize("feedforward", ["relu", "sepconv"])
def test_padding_takes_no_steps_and_costs_nothing(
    side: str, causal: bool, feedforward: str
) -> None:
    made = stack(causal, steps=5, halting_bias=-0.5, tau=1.0, feedforward=feedforward)
    short, long = TEXT[:1, :4], TEXT[1:, :7]
    junk = torch.full((1, 3, WIDTH), 1e3, dtype=torch.float64)
    row = torch.cat((junk, short) if side == "left" else (short, junk), 1)
    keep = torch.ones(2, 7, dtype=torch.bool)
    keep[0, slice(0, 3) if side == "left" else slice(4, 7)] = False
    x, mask = torch.cat((row, long)), Mask(keep=keep)
    if side == "packed":
        x, ids = torch.cat((short, long), 1), torch.tensor([[3] * 4 + [5] * 7])
        mask = Mask(documents=ids)
    out, (steps, _) = made(x, mask=mask), traced(made, x, mask=mask)
    alone = [made(short), made(long)]
    total = 4 * alone[0].losses["ponder"] + 7 * alone[1].losses["ponder"]
    close(out.losses["ponder"], total / 11)
    if side != "packed":
        assert not bool(steps[~keep].any())
        close(out.y[keep], torch.cat([one.y[0] for one in alone]))
        steps = steps[keep]
    assert steps.flatten().tolist() == [n for t in (short, long) for n in traced(made, t)[0][0]]


def test_learned_tokens_in_front_have_no_place_and_are_not_counted() -> None:
    own = {"form": "etc", "extra_tokens": 2, "block_size": 2}
    made = stack(False, mixer="bigbird", steps=4, halting_bias=-0.5, tau=1.0, **own)
    out, (steps, cost) = made(TEXT), traced(made, TEXT)
    assert out.y.shape == TEXT.shape
    assert steps.shape == TEXT.shape[:2]
    close(out.losses["ponder"], cost.mean())
    # by hand: the learned tokens are part of the text, whose places begin behind them
    lead, made.lead = made.lead, None
    x = torch.cat((lead.expand(2, -1, -1), TEXT), 1)
    made.depth.adds_positions, plain = False, made.depth.signals_of

    def signals(positions: Tensor, like: Tensor) -> Any:
        places = torch.zeros(1, LENGTH + 2, WIDTH, dtype=torch.float64)
        places[:, 2:] = made.depth._waves(torch.arange(LENGTH)[None], like)
        return plain(positions, like)._replace(places=places)

    made.depth.signals_of = signals
    close(made(x).y[:, 2:], out.y)


def test_global_halting_is_one_for_each_document() -> None:
    made = stack(False, steps=6, halting="global", halting_bias=-1.5, tau=1.0)
    short, long = TEXT[:1, :4] + 0.5, TEXT[1:, :7]
    ids = torch.tensor([[3] * 4 + [5] * 7])
    both = torch.cat((short, long), 1)
    out, (steps, _) = (
        made(both, mask=Mask(documents=ids)),
        traced(made, both, mask=Mask(documents=ids)),
    )
    close(out.y, torch.cat((made(short).y, made(long).y), 1))
    one, other = steps[0, :4].unique().tolist(), steps[0, 4:].unique().tolist()
    assert len(one) == len(other) == 1
    assert one != other
    # the mean chance of the text that there is
    keep = torch.arange(11) < 7
    padded = torch.cat((long, 1e3 * TEXT[:1, :4]), 1)
    close(made(padded, mask=Mask(keep=keep[None])).y[:, :7], made(long).y)


@pytest.mark.parametrize("position", [None, "rope", "alibi", "t5-relative", "xl-relative"])
@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2},
        {"layers": 2, "wide": 8.0, "halting_bias": 2.0},
        {"halted": "evolve", "combine": "last"},
        {"cap": "drop", "combine": "interpolate", "signal": "learned", "window": 4},
        {"halting": "none"},
        {"layers": 2, "feedforward": "sepconv"},
        {"halted": "evolve", "feedforward": "sepconv"},
    ],
    ids=str,
)
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
        waited = waited or bool((state.layers[-1].seen < state.seen).any())
    close(torch.cat(parts, 1), whole)
    waits = options.get("halting") != "none" and options.get("halted") != "evolve"
    assert waits or not waited
    # a row that begins anew, rows in another order, and a piece with padding in front
    state = made.init_state(2)
    state = made(TEXT[:, :5], state=state).state
    anew = made(TEXT, state=state.reset(torch.tensor([True, False]))).y
    close(anew[0], whole[0])
    turned = made(TEXT[:, 5:].flip(0), state=state.reorder(torch.tensor([1, 0]))).y
    close(turned.flip(0), whole[:, 5:])
    keep = torch.tensor([[False, True, True], [True, True, True]])
    rows = torch.stack((torch.cat((TEXT[0, :1] * 1e3, TEXT[0, 5:7])), TEXT[1, 5:8]))
    out = made(rows, state=state, mask=Mask(keep=keep))
    close(out.y[keep], torch.cat((whole[0, 5:7], whole[1, 5:8])))
    rows = torch.stack((TEXT[0, 7:9], TEXT[1, 8:10]))
    close(made(rows, state=out.state).y, torch.stack((whole[0, 7:9], whole[1, 8:10])))


@pytest.mark.parametrize(
    "options",
    [{"mixer": "performer"}, {"mixer": "aft-local"}, {"mixer": "gmlp"}, {"feedforward": "sepconv"}],
    ids=str,
)
@pytest.mark.parametrize("halted", ["copy", "evolve"])
def test_layers_that_answer_for_all_alone_take_in_at_once(
    options: dict[str, str], halted: str
) -> None:
    made = stack(**options, layers=2, steps=5, halting_bias=-0.5, halted=halted)
    state, parts = made.init_state(2), []
    for piece in TEXT.split([4, 1, 5, 1], 1):
        out = made(piece, state=state)
        state = out.state
        parts.append(out.y)
        assert all(torch.equal(layer.seen, state.seen) for layer in state.layers)
    close(torch.cat(parts, 1), made(TEXT).y)


def test_chances_are_computed_in_full_precision() -> None:
    made = stack(steps=5, halting_bias=-0.5).float()
    x, real = TEXT.float(), torch.ones(2, LENGTH, dtype=torch.bool)
    plain = made.depth.chances(x, counted(1), real)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made.depth.chances(x, counted(1), real), plain)


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
        seen.append([int(layer.seen) for layer in state.layers])
    assert seen[6] == [7, 0, 0, 0, 0, 0]
    assert seen[7] == [8] * 6
    assert seen[-1] == [11, 8, 8, 8, 8, 8]
    assert isinstance(state.pending, Pending)
    assert state.pending.keep.shape == (1, 3)


def test_what_a_layer_lacks_is_what_a_row_has_read_since() -> None:
    waiting = Pending.empty(2, 1).append(
        torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [9.0], [5.0]]]),
        torch.tensor([[0, 1, 2], [0, 1, 1]]),
        torch.tensor([[True, True, True], [True, False, True]]),
    )
    assert waiting.seen.tolist() == [3, 2]
    found = waiting.lacked(torch.tensor([1, 1]))
    assert found is not None
    stream, positions, mask = found
    assert mask is not None
    assert mask.keep is not None
    assert mask.keep.tolist() == [[True, True], [False, True]]
    assert stream[mask.keep].flatten().tolist() == [2, 3, 5]
    assert positions[mask.keep].tolist() == [1, 2, 1]
    assert waiting.lacked(torch.tensor([3, 2])) is None
    # no mask where rows lack as many, so that caches stay without holes
    both = waiting.lacked(torch.tensor([1, 0]))
    assert both is not None
    assert both[2] is None


def test_the_cost_of_a_step_has_a_slope_of_minus_1_for_each_chance_before_the_last() -> None:
    made = stack(steps=5, halting_bias=-0.5, tau=1.0)
    bias, small = made.depth.bias, 1e-6
    (slope,) = torch.autograd.grad(made(TEXT).losses["ponder"], bias)
    ends = []
    steps = traced(made, TEXT)[0]
    for sign in (1, -1):
        bias.data += sign * small
        ends.append(float(made(TEXT).losses["ponder"].detach()))
        assert torch.equal(traced(made, TEXT)[0], steps)
        bias.data -= sign * small
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / (2 * small), rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mixer": "performer"},
        {"mixer": "aft-simple"},
        {"feedforward": "sepconv"},
        {"wiring": "pre"},
        {"layers": 1, "position": "rope", "signal": "learned"},
        {"position": "learned-per-layer"},
        {"mixer_options": {"bias": ("key", "output"), "kv_heads": 1, "qk_norm": True}},
    ],
    ids=str,
)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_left_out_changes_nothing(
    options: dict[str, Any], checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stack(**{"layers": 2, **options}, steps=5, halting_bias=-0.5).train()
    made.checkpointing = checkpointing
    for parameter in made.blocks.parameters():
        # biases too, which start at 0
        parameter.data += 0.1 * draw(*parameter.shape, seed=7)
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[0, :3] = False
    x = TEXT.clone().requires_grad_()
    # every token halts at a step that is drawn, and a little of its own p is spent before
    ends = torch.randint(1, 6, keep.shape, generator=torch.Generator().manual_seed(1))
    own = made.depth.chances
    now = iter(range(1, 100))

    def chances(*given: Any) -> Tensor:
        return own(*given) / 100 + (ends <= next(now))

    monkeypatch.setattr(made.depth, "chances", chances, raising=False)

    def run() -> list[Tensor]:
        nonlocal now
        now = iter(range(1, 100))
        torch.manual_seed(3)
        out = made(x, mask=Mask(keep=keep))
        loss = out.y[keep].square().sum() + out.losses["ponder"]
        return [out.y[keep], *torch.autograd.grad(loss, [x, *made.parameters()])]

    few = run()
    monkeypatch.setattr(Chosen, "of", classmethod(lambda cls, running: None))
    for a, b in zip(few, run(), strict=True):
        close(a, b, 1e-9)


def test_what_a_step_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    length, width, hidden = 40, 32, 128
    steps = torch.tensor([1] * 30 + [4] * 6 + [5] * 4).expand(2, length)
    options = {"width": width, "layers": 1, "heads": 4, "dropout": 0.0}
    config = configure_layers("universal", True, length, **options, depth_options={"steps": 5})
    made, now = build_stack(config).eval(), iter(range(1, 6))
    monkeypatch.setattr(
        made.depth, "chances", lambda x, given, real: (steps <= next(now)).float(), raising=False
    )
    with torch.no_grad():
        counted = count_flops(lambda: made(draw(2, length, width, dtype=torch.float32)))
    # queries, outputs, feed-forward and two products with keys of those that run
    running = 40 + 10 + 10 + 10 + 4
    # keys and values of all
    projected = 5 * 40
    tokens = running * (2 * width**2 + 2 * width * hidden + 2 * length * width)
    assert counted == 2 * (2 * tokens + 2 * projected * 2 * width**2)


def test_halted_tokens_cost_their_keys_and_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    length, width, goal = 96, 48, 3.0
    sizes = {"width": width, "heads": 4, "layers": 1, "dropout": 0.0}
    steps = torch.where(torch.arange(length) % 12 == 0, 12, 1) + torch.arange(length) % 4
    steps = steps.clamp(max=12)
    assert float(steps.double().mean()) == pytest.approx(goal, abs=0.5)
    x = draw(2, length, width, dtype=torch.float32)

    def cost(**options: Any) -> int:
        config = configure_layers("universal", True, length, **sizes, depth_options=options)
        made = build_stack(config)
        now = iter(range(1, 13))
        monkeypatch.setattr(
            made.depth, "chances",
            lambda x, given, real: (steps <= next(now)).float().expand(real.shape), raising=False,
        )  # fmt: skip
        return count_flops(lambda: made(x).y.sum().backward())

    fixed = cost(steps=12, halting="none")
    assert cost(steps=12) <= 0.45 * fixed
    assert cost(steps=12, halted="evolve") > 0.9 * fixed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, {("depth universal", "running tokens")}),
        (
            {"mixer": "performer"},
            {("depth universal", "running tokens"), ("mixer performer", "all tokens")},
        ),
        ({"feedforward": "sepconv"}, {("feed-forward sepconv", "all tokens")}),
    ],
)
def test_it_says_which_tokens_are_computed(
    options: dict[str, str], said: set[tuple[str, str]]
) -> None:
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


def moved(made: Any, first: int) -> Tensor:
    """Outputs of the text behind ``first`` tokens that nobody sees."""
    made.eval()
    state = made.init_state(2)
    state = type(state)(state.seen + first, state.layers, state.pending)
    return made(TEXT, state=state).y


def test_the_halting_head_does_not_decay() -> None:
    made = ef.create_model("universal", width=8, heads=2, signal="learned")
    depth = made.stack.depth
    decays = {
        id(p): group["weight_decay"]
        for group in parameter_groups(made, 0.1)
        for p in group["params"]
    }
    assert [decays[id(p)] for p in (depth.weight, depth.bias, depth.signals)] == [0, 0, 0]


def test_encoder_and_decoder_halt_by_themselves_and_padding_ponders_nowhere() -> None:
    torch.manual_seed(0)
    own = {"tau": 1.0, "halting_bias": -0.5}
    sizes = {"width": 12, "heads": 3, "vocabulary": 9, "max_length": 12}
    made = ef.create_model("universal", "seq2seq", depth_options=own, **sizes).double().eval()
    assert made.encoder.depth.weight is not made.stack.depth.weight
    for part in (made.encoder, made.stack):
        part.depth.weight.data *= 3
    source, target = torch.randint(1, 9, (2, 7)), torch.randint(1, 9, (2, 6))
    keep = torch.ones(2, 7, dtype=torch.bool)
    keep[0, 5:], target[0, 3:] = False, -100
    both = made(source, targets=target, mask=Mask(keep=keep)).losses
    one = made(source[:1, :5], targets=target[:1, :3]).losses
    two = made(source[1:], targets=target[1:]).losses
    close(both["ponder"], (5 * one["ponder"] + 7 * two["ponder"]) / 12)
    close(both["ponder-target"], (3 * one["ponder-target"] + 6 * two["ponder-target"]) / 9)
    counts = made.term_counts(source, target, Mask(keep=keep))
    assert (counts["ponder"], counts["ponder-target"]) == (12, 9)


def test_a_text_is_coloured_by_the_steps_of_its_tokens() -> None:
    torch.manual_seed(0)
    made = ef.create_model("universal", width=12, heads=3, vocabulary=9, max_length=40).eval()
    made.stack.depth.weight.data *= 4
    tokens = torch.randint(9, (1, 37))
    [figure] = draw_pictures(made, tokens, "halting", labels=list("abcd" * 9 + "e")).values()
    with ef.trace(made) as seen:
        made(tokens)
    [steps] = seen.find("halting").values()
    axes = figure.axes[0]
    cells = axes.images[0].get_array()
    assert cells.shape == (2, 32)
    assert cells.flatten()[:37].tolist() == steps[0].tolist()
    assert len(steps.unique()) > 1
    assert "".join(text.get_text() for text in axes.texts) == "abcd" * 9 + "e"
    assert [text.get_position() for text in axes.texts[31:33]] == [(31, 0), (0, 1)]


def test_an_evaluation_says_how_many_steps_a_token_takes() -> None:
    row = np.random.default_rng(0).integers(0, 11, 301).astype(np.uint8)
    text = TextDataset(
        name="text", task="lm", kind="text", vocabulary=11, length=8, split="", fingerprint="",
        train=row, validation=row[:45],
    )  # fmt: skip
    sizes = {"width": 12, "heads": 3, "vocabulary": 11}
    torch.manual_seed(0)
    made = ef.create_model("universal", **sizes, depth_options={"halting_bias": -0.5}).eval()
    made.stack.depth.weight.data *= 4
    found = evaluate(made, text, batch=3)
    assert found is not None
    taken = []
    for batch in text.validation_batches(3):
        with ef.trace(made) as seen:
            made(batch.inputs, mask=Mask(keep=batch.keep) if batch.keep is not None else None)
        taken += [n for n in seen.find("halting")["stack.depth"].flatten().tolist() if n]
    assert len(set(taken)) > 1
    assert found["mean_depth"] == pytest.approx(sum(taken) / len(taken), abs=1e-12)
    fixed = evaluate(ef.create_model("universal", **sizes, halting="none", steps=3), text)
    assert fixed is not None
    assert fixed["mean_depth"] == 3
    assert "mean_depth" not in (evaluate(ef.create_model("attention", **sizes), text) or {})


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: UniversalOptions(steps=0), ConfigError, "'steps' must be at least 1"),
    (lambda: UniversalOptions(epsilon=0.0), ConfigError, "'epsilon' must be above 0 and below 1"),
    (lambda: UniversalOptions(tau=-1.0), ConfigError, "'tau' must be at least 0"),
    (lambda: ef.create_model("universal", halting="global"), GeneError,
     "halting 'global' of depth 'universal' halts a text by the mean of all its tokens, but "
     "causal=True"),
    (lambda: ef.create_model("universal", "seq2seq", halting="global"), GeneError, "causal=True"),
    (lambda: ef.create_model("universal", wiring="reversible"), GeneError, "wiring 'reversible'"),
    (lambda: ef.create_model("universal", position="learned", order="sinusoid"), GeneError,
     "position 'learned' adds them too"),
    (lambda: ef.create_model("transformer-xl", depth="universal", order="sinusoid"), GeneError,
     "memory 'segment' would remember them too"),
    (lambda: ef.create_model("etc", "mlm", depth="universal"), GeneError,
     "at no place that depth 'universal' could add at each step"),
    (lambda: ef.create_model("universal", halting="random").init_state(1), UnsupportedError,
     "draws anew at every call"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "said"), REFUSED)
def test_what_contradicts_it_is_refused(
    make: Callable[[], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        make()
    assert said in str(caught.value)
